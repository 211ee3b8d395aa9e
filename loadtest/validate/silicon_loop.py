"""A closed loop of clients against one engine in virtual time.

The engine's front end is one process: it takes requests in one after another, so those that come together reach the
engine spread out. A first token needs a little time on its way back.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heappop, heappush
from statistics import fmean

from loadtest.engine.engine import Engine
from loadtest.engine.types import EngineEvent, EngineRequest, FinishReason, RequestFinished, TokenMade

REQUEST_S = 0.003
"""Front-end time per request: HTTP, validation, chat template, hand-over. Assumed, within what vLLM's server needs."""
TOKEN_S = 1.5e-6
"""Front-end time per prompt token: a Hugging Face tokenizer takes 1.5 ms for 1000."""
RETURN_S = 0.002
"""From the end of the step that made a first token to the client. Assumed."""

Lengths = tuple[int, int]
"""Prompt and output tokens of one request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopResult:
    """Means over all requests, as the clients see them."""

    ttft_s: float
    tpot_s: float


@dataclass(slots=True, eq=False)
class _Sent:
    request: EngineRequest
    sent_s: float
    first_token_s: float = 0.0


def run_closed_loop(
    engine: Engine, lengths: Iterable[Lengths], concurrency: int, *, front_end_is_serial: bool = True
) -> LoopResult:
    """Serve all requests: `concurrency` start at once, and each that ends sends the next.

    Raises:
        ValueError: the engine rejects a request.
    """
    loop = _Loop(engine, lengths, front_end_is_serial=front_end_is_serial)
    for _ in range(concurrency):
        loop.send(0.0)
    while loop.advance():
        pass
    return LoopResult(ttft_s=fmean(loop.ttft_s), tpot_s=fmean(loop.tpot_s))


class _Loop:
    def __init__(self, engine: Engine, lengths: Iterable[Lengths], *, front_end_is_serial: bool) -> None:
        self.ttft_s: list[float] = []
        self.tpot_s: list[float] = []
        self._engine = engine
        self._lengths = enumerate(lengths)
        self._front_end: list[tuple[float, int, _Sent]] = []
        self._front_end_is_serial = front_end_is_serial
        self._front_end_free_s = 0.0
        self._sent: dict[str, _Sent] = {}

    def send(self, now_s: float) -> None:
        """Send the next request, if there is one left."""
        index, (prompt_tokens, output_tokens) = next(self._lengths, (-1, (0, 0)))
        if index < 0:
            return
        request = EngineRequest(request_id=str(index), prompt_tokens=prompt_tokens, output_tokens=output_tokens)
        begins_s = max(self._front_end_free_s, now_s) if self._front_end_is_serial else now_s
        self._front_end_free_s = arrives_s = begins_s + REQUEST_S + TOKEN_S * prompt_tokens
        heappush(self._front_end, (arrives_s, index, _Sent(request, now_s)))

    def advance(self) -> bool:
        """Let the next thing happen, an arrival or whatever the engine has; False where there is none."""
        due_s = self._engine.next_event_at_s()
        if self._front_end and (due_s is None or self._front_end[0][0] <= due_s):
            arrives_s, _, sent = heappop(self._front_end)
            self._sent[sent.request.request_id] = sent
            self._engine.add(sent.request, arrives_s)
            return True
        if due_s is None:
            return False
        for event in self._engine.advance(due_s):
            self._note(event)
        return True

    def _note(self, event: EngineEvent) -> None:
        match event:
            case TokenMade(index=0):
                self._sent[event.request_id].first_token_s = event.at_s
            case RequestFinished(reason=FinishReason.LENGTH):
                self._note_finished(self._sent.pop(event.request_id), event.at_s)
                self.send(event.at_s)
            case RequestFinished():
                raise ValueError(f"request {event.request_id} does not fit the engine")

    def _note_finished(self, sent: _Sent, at_s: float) -> None:
        self.ttft_s.append(sent.first_token_s - sent.sent_s + RETURN_S)
        if sent.request.output_tokens > 1:
            self.tpot_s.append((at_s - sent.first_token_s) / (sent.request.output_tokens - 1))
