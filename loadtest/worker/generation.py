"""One HTTP request's sequences on their way through the engine.

A `Plan` is everything that can be known before the engine has done anything, the text included. A `Generation`
follows the plans' sequences from submission to their end; whichever way that comes, it leaves nothing behind in
the engine or at a KV holder.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from loadtest.engine.types import (
    EngineEvent,
    EngineRequest,
    FinishReason,
    RequestFinished,
    TokenMade,
    TransferFinished,
)
from loadtest.worker import filler, tokenizer
from loadtest.worker.errors import ApiError
from loadtest.worker.forms import Piece, Script, ToolCall
from loadtest.worker.host import EngineHost
from loadtest.worker.metrics import WorkerStats
from loadtest.worker.pd import RemotePull
from loadtest.worker.requests import GenerationRequest, Prompt


class ClientLeft(Exception):  # noqa: N818 - not an error: clients may leave
    """There is nobody to answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One sequence to be: what the engine is to do, and what the answer will say."""

    index: int
    """Its place among the answer's choices."""
    engine_id: str
    prompt: Prompt
    block_hashes: tuple[int, ...]
    output_tokens: int
    worded_tokens: int
    """Output tokens that have words: the end-of-text token of a natural answer has none."""
    finish_reason: str
    """`stop` where the answer ends by itself, else `length`."""
    key: int
    """The key of its words."""
    holds_kv: bool
    script: Script | None = None
    """What it must say; None leaves it to the filler."""

    @property
    def full_blocks(self) -> int:
        """How many blocks of the prompt can be cached."""
        return len(self.block_hashes)

    def text(self, first: int, count: int) -> bytes:
        """The words of `count` output tokens."""
        end = min(first + count, self.worded_tokens)
        if self.script is not None:
            return self.script.words(first, end)
        return filler.words(self.key, first=first, count=max(0, end - first))

    def piece(self, first: int, count: int) -> Piece:
        """What `count` output tokens add to a stream: text, or a part of a tool call."""
        if self.script is None or self.script.call is None:
            return Piece(text=self.text(first, count))
        return self.script.piece(first, first + count)

    @property
    def call(self) -> ToolCall | None:
        """The tool call that it makes, if it comes to its end."""
        return None if self.script is None or self.finish_reason != "stop" else self.script.call

    @property
    def told_reason(self) -> str:
        """The finish reason as OpenAI has it."""
        return "tool_calls" if self.call is not None and not self.call.named else self.finish_reason

    def token_ids(self, first: int, count: int) -> list[int]:
        """The ids of `count` output tokens."""
        ids = tokenizer.encode(self.text(first, count))
        return ids + [tokenizer.EOS_ID] * (count - len(ids))

    def engine_request(self, *, remote_tokens: int) -> EngineRequest:
        """The sequence in the engine's terms."""
        return EngineRequest(
            request_id=self.engine_id,
            prompt_tokens=self.prompt.tokens,
            output_tokens=self.output_tokens,
            block_hashes=self.block_hashes,
            holds_kv=self.holds_kv,
            remote_tokens=remote_tokens,
        )


def make_plans(
    request: GenerationRequest,
    *,
    response_id: str,
    max_model_len: int,
    block_tokens: int,
    model: str,
    new_id: Callable[[int], str],
) -> list[Plan]:
    """One plan per prompt and choice, in the answer's order. Engine ids look like vLLM's and are never reused."""
    seed = tokenizer.cache_seed(model, request.cache_salt)
    plans: list[Plan] = []
    for place, prompt in enumerate(request.prompts):
        hashes = tokenizer.block_hashes(prompt.data, block_tokens=block_tokens, seed=seed)
        name = f"{response_id}-{new_id(4)}" if request.chat else f"{response_id}-{place}-{new_id(4)}"
        limit = request.limit_tokens(prompt, max_model_len=max_model_len)
        for choice in range(request.choices):
            index = len(plans)
            key = filler.answer_key(f"{response_id if request.seed is None else request.seed}/{index}")
            script = None if request.form is None else request.form.script(key, limit_tokens=limit)
            output_tokens, finish_reason = _length(request, key, limit, script)
            plans.append(
                Plan(
                    index=index,
                    engine_id=name if request.choices == 1 else f"{choice}_{name}",
                    prompt=prompt,
                    block_hashes=hashes,
                    output_tokens=output_tokens,
                    worded_tokens=output_tokens - (finish_reason == "stop"),
                    finish_reason=finish_reason,
                    key=key,
                    # As in vLLM, only an answer that was cut short hands its KV over.
                    holds_kv=bool(request.kv.do_remote_decode) and finish_reason == "length" and index == 0,
                    script=None if script is None else script.lasting(output_tokens),
                )
            )
    return plans


def _length(request: GenerationRequest, key: int, limit_tokens: int, script: Script | None) -> tuple[int, str]:
    natural = filler.natural_length(key) if script is None else tokenizer.count_tokens(script.text) + 1
    wanted = limit_tokens if request.ignore_eos else max(natural, request.min_tokens)
    return (wanted, "stop") if wanted < limit_tokens else (limit_tokens, "length")


class Running:
    """One sequence while the engine has it."""

    __slots__ = ("cached_tokens", "ended", "last_token_s", "made", "plan", "submitted_s")

    def __init__(self, plan: Plan, submitted_s: float) -> None:
        self.plan = plan
        self.submitted_s = submitted_s
        self.last_token_s: float | None = None
        self.made = 0
        self.cached_tokens = 0
        self.ended = False


@dataclass(frozen=True, slots=True)
class Delta:
    """Output tokens that arrived together."""

    plan: Plan
    first: int
    count: int
    ended: bool


class Generation:
    """Follows the sequences of one request; read it with `deltas`, or with `finish` for the end alone."""

    def __init__(
        self,
        plans: Sequence[Plan],
        *,
        host: EngineHost,
        stats: WorkerStats,
        pull: RemotePull | None,
        on_held: Callable[[Plan, float], None],
    ) -> None:
        self.running = [Running(plan, host.now_s()) for plan in plans]
        self._remote_tokens = 0
        self._host = host
        self._stats = stats
        self._pull = pull
        self._on_held = on_held
        self._left = False
        self._failed = False
        self._deltas: list[Delta] = []
        self._news = asyncio.Event()
        self._over = asyncio.Event()

    async def start(self, *, fail_without_kv: bool) -> None:
        """Claim the remote KV, if any, and submit every sequence; only the first one can use the KV.

        Raises ApiError with status 500 where KV was promised, cannot be had and must not be computed here, and
        otherwise like `deltas`.
        """
        if self._pull is not None:
            await self._claim(self._pull, fail_without_kv=fail_without_kv)
        self._raise_if_broken()
        for running in self.running:
            request = running.plan.engine_request(remote_tokens=self.remote_tokens_of(running.plan))
            self._host.submit(request, partial(self._on_events, running))

    def remote_tokens_of(self, plan: Plan) -> int:
        """Prompt tokens whose KV another worker promised; only the first sequence has any."""
        return 0 if plan.index else self._remote_tokens

    async def deltas(self) -> list[Delta]:
        """What has arrived since the last call, at least one delta; empty once every sequence has ended.

        Raises ClientLeft after `abandon`, ApiError with status 500 after `break_off` or where the engine rejected
        a sequence.
        """
        while not (self._deltas or self._over.is_set()):
            self._news.clear()
            await self._news.wait()
        self._raise_if_broken()
        deltas, self._deltas = self._deltas, []
        return deltas

    async def finish(self) -> None:
        """Wait for the end of every sequence; raises like `deltas`."""
        await self._over.wait()
        self._raise_if_broken()

    def abandon(self) -> None:
        """The client left, or its call is over: whatever is still in the engine is taken out."""
        self._left |= self._take_out()

    def break_off(self) -> None:
        """The server will not finish the answer; its reader is told so."""
        self._failed |= self._take_out()

    def _take_out(self) -> bool:
        unfinished = [running for running in self.running if not running.ended]
        for running in unfinished:
            running.ended = True
            self._stats.finished["abort"] += 1
            self._host.cancel(running.plan.engine_id)
        self._release_pull()
        self._news.set()
        self._over.set()
        return bool(unfinished)

    async def _claim(self, pull: RemotePull, *, fail_without_kv: bool) -> None:
        tokens = await pull.claim()
        if tokens is None:
            self._stats.failed_transfers += 1
            if fail_without_kv:
                self._give_up()
                raise ApiError.internal()
        elif self._over.is_set():
            pull.release()
        else:
            self._remote_tokens = min(tokens, self.running[0].plan.prompt.tokens)

    def _release_pull(self) -> None:
        if self._pull is not None:
            self._pull.release()

    def _give_up(self) -> None:
        for running in self.running:
            running.ended = True
            self._stats.finished["error"] += 1

    def _raise_if_broken(self) -> None:
        if self._left:
            raise ClientLeft
        if self._failed:
            raise ApiError.internal()

    def _on_events(self, running: Running, events: list[EngineEvent]) -> None:
        first = running.made
        for event in events:
            match event:
                case TokenMade():
                    self._on_token(running, event.at_s)
                case RequestFinished():
                    self._on_finished(running, event)
                case TransferFinished():
                    self._release_pull()
        if running.made > first or running.ended:
            self._deltas.append(Delta(running.plan, first, running.made - first, running.ended))
            self._news.set()
        if running.ended and all(each.ended for each in self.running):
            self._over.set()

    def _on_token(self, running: Running, at_s: float) -> None:
        running.made += 1
        if running.last_token_s is None:
            self._stats.first_token_s.observe((at_s - running.submitted_s) / self._host.speed)
        else:
            self._stats.inter_token_s.observe((at_s - running.last_token_s) / self._host.speed)
        running.last_token_s = at_s

    def _on_finished(self, running: Running, event: RequestFinished) -> None:
        running.ended = True
        running.cached_tokens = event.cached_tokens
        if event.reason is FinishReason.REJECTED:
            self._failed = True
            self._stats.finished["error"] += 1
            return
        self._stats.finished[running.plan.finish_reason] += 1
        self._stats.count_prompt(
            tokens=running.plan.prompt.tokens,
            cached_tokens=event.cached_tokens,
            remote_tokens=self.remote_tokens_of(running.plan),
        )
        self._stats.request_s.observe((event.at_s - running.submitted_s) / self._host.speed)
        if running.plan.holds_kv:
            self._on_held(running.plan, event.at_s)
        if running.plan.index == 0:
            self._release_pull()
