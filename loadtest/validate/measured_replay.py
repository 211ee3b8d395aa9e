"""Replays a measured run's requests through the engine model: same arrivals, same lengths, in virtual time.

The prompts themselves were not published. A prompt's blocks are therefore found again only by the request itself,
after a preemption; what an unbounded cache could reuse between requests, 7.7 % of the prompt tokens, is computed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import xxhash

from gateway.core.step_cost import CostTable
from loadtest.engine.engine import Engine
from loadtest.engine.types import EngineEvent, EngineRequest, EngineSpec, FinishReason, RequestFinished, TokenMade
from loadtest.validate.measured_times import RequestTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What the engine model made of a run."""

    times: RequestTimes
    preemptions: int


def requests_of(run: Mapping[str, Any], block_tokens: int) -> list[tuple[float, EngineRequest]]:
    """The run's requests with their arrivals, in seconds from the first, in order of arrival."""
    first_s = run["requests"][0]["arrival_time"]
    return [
        (
            row["arrival_time"] - first_s,
            EngineRequest(
                request_id=row["request_id"],
                prompt_tokens=row["input_toks"],
                output_tokens=row["output_toks"],
                block_hashes=_own_hashes(row["request_id"], row["input_toks"] // block_tokens),
            ),
        )
        for row in run["requests"]
    ]


def replay(arrivals: Sequence[tuple[float, EngineRequest]], spec: EngineSpec, costs: CostTable) -> Replay:
    """Serve the requests, which arrive in the order given, until all have finished.

    Raises:
        ValueError: the engine rejects a request.
    """
    engine, log = Engine(spec, costs), _Log(arrivals, plans_ahead=spec.plans_ahead)
    now_s = 0.0
    for arrival_s, request in arrivals:
        while (due_s := engine.next_event_at_s()) is not None and due_s < arrival_s:
            now_s = due_s
            log.note(engine, now_s)
        now_s = max(now_s, arrival_s)
        engine.add(request, now_s)
    while (due_s := engine.next_event_at_s()) is not None:
        now_s = due_s
        log.note(engine, now_s)
    return Replay(times=log.times(), preemptions=engine.snapshot().preemptions)


class _Log:
    """Notes when each request was first scheduled, made its first token and its last."""

    def __init__(self, arrivals: Sequence[tuple[float, EngineRequest]], *, plans_ahead: bool) -> None:
        self._arrivals_s = [arrival_s for arrival_s, _ in arrivals]
        self._requests = requests = [request for _, request in arrivals]
        self._plans_ahead = plans_ahead
        self._last_noted_s = 0.0
        # The engine counts a prompt when it first admits it, and admits in order of arrival: so the count says who.
        self._counts = list(accumulate(request.prompt_tokens for request in requests))
        self._scheduled_s: list[float] = []
        self._first_s: dict[str, float] = {}
        self._last_s: dict[str, float] = {}

    def note(self, engine: Engine, now_s: float) -> None:
        """Let the engine go on to `now_s` and note what happened."""
        self._note_events(engine.advance(now_s))
        admitted_tokens = engine.snapshot().prefix_queried_tokens
        while len(self._scheduled_s) < len(self._counts) and self._counts[len(self._scheduled_s)] <= admitted_tokens:
            arrival_s = self._arrivals_s[len(self._scheduled_s)]
            # A plan made ahead was made when the step before began, unless the engine was idle until the arrival.
            ahead = self._plans_ahead and arrival_s <= self._last_noted_s
            self._scheduled_s.append(self._last_noted_s if ahead else now_s)
        self._last_noted_s = now_s

    def times(self) -> RequestTimes:
        """What was noted, once all have finished."""
        ids = [request.request_id for request in self._requests]
        return RequestTimes(
            arrival_s=np.array(self._arrivals_s),
            scheduled_s=np.array(self._scheduled_s),
            first_token_s=np.array([self._first_s[name] for name in ids]),
            last_token_s=np.array([self._last_s[name] for name in ids]),
            output_tokens=np.array([request.output_tokens for request in self._requests]),
        )

    def _note_events(self, events: Iterable[EngineEvent]) -> None:
        for event in events:
            match event:
                case TokenMade(index=0):
                    self._first_s[event.request_id] = event.at_s
                case RequestFinished(reason=FinishReason.REJECTED):
                    raise ValueError(f"the engine rejects {event.request_id!r}")
                case RequestFinished():
                    self._last_s[event.request_id] = event.at_s


def _own_hashes(request_id: str, blocks: int) -> tuple[int, ...]:
    return tuple(xxhash.xxh64_intdigest(f"{request_id}/{block}".encode()) for block in range(blocks))
