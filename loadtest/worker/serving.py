"""Takes a request through the engine to its answer, whichever API it came by.

An answer in flight is followed in one place: a client that leaves takes its work out of the engine, and what a
prefill leg computed is handed over or held until its lease ends.
"""

import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from uuid import uuid4

from loadtest.engine.types import EngineSpec
from loadtest.worker.answers import Envelope, Json, Usage
from loadtest.worker.app import HttpCall
from loadtest.worker.config import KvLoadFailurePolicy, WorkerConfig
from loadtest.worker.cuts import Cut
from loadtest.worker.dialects.base import Dialect, EventWriter, Job
from loadtest.worker.errors import ApiError
from loadtest.worker.generation import Generation, Plan, make_plans
from loadtest.worker.host import EngineHost
from loadtest.worker.metrics import WorkerStats
from loadtest.worker.pd import HeldKv, KvPeers, RemotePull, handover, remote_kv
from loadtest.worker.requests import GenerationRequest

DEFAULT_MAX_MODEL_LEN = 131_072


class Serving:
    """The generation side of one worker; the arguments are those of `loadtest.worker.api.Worker`."""

    def __init__(
        self,
        config: WorkerConfig,
        spec: EngineSpec,
        *,
        host: EngineHost,
        peers: KvPeers,
        address: tuple[str, int],
        new_id: Callable[[int], str] = secrets.token_hex,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.config = config
        self.spec = spec
        self.host = host
        self.new_id = new_id
        self.wall_clock = wall_clock
        self.max_model_len = _context_tokens(config, spec)
        self.held = HeldKv(engine_id=str(uuid4()), lease_s=spec.hold_lease_s)
        self.stats = WorkerStats()
        self.models = (config.model, *config.adapters)
        self._peers = peers
        self._address = address
        self._running: set[Generation] = set()

    def check_model(self, model: str | None) -> None:
        """Raise ApiError with status 404 for a model that is not served here."""
        if model is not None and model not in self.models:
            raise ApiError.no_such_model(model, ", ".join(self.models))

    def break_off(self) -> None:
        """End every answer in flight with an error: the server stops."""
        for generation in tuple(self._running):
            generation.break_off()

    def drop_kv(self, request_id: str) -> bool:
        """Free what a prefill leg holds; False where it holds nothing any more."""
        self.held.release(request_id)
        return self.host.release_held(request_id)

    async def answer(self, call: HttpCall, make_request: Callable[[], GenerationRequest], dialect: Dialect) -> None:
        """Generate, and answer as the dialect does it, also where `make_request` raises an ApiError."""
        try:
            request = make_request()
            own_id = call.header(b"x-request-id") if dialect.takes_request_id else None
            job, generation = self._begin(request, dialect.id_prefix, own_id)
            answer = self._stream if request.stream else self._whole
            async with self._following(call, generation):
                await answer(call, job, generation, dialect)
        except ApiError as error:
            await call.reply(error.status, dialect.refusal(error))

    async def finish(self, call: HttpCall, request: GenerationRequest, *, id_prefix: str) -> tuple[Job, Usage]:
        """Generate wholly and leave the answer to the caller. Raises ApiError for what is refused."""
        job, generation = self._begin(request, id_prefix, call.header(b"x-request-id"))
        async with self._following(call, generation):
            await self._start(generation)
            await _finish(call, generation)
            return job, self._usage(job, generation)

    def _begin(self, request: GenerationRequest, id_prefix: str, own_id: str | None) -> tuple[Job, Generation]:
        request.check(served_models=self.models, max_model_len=self.max_model_len)
        envelope = self._envelope(request, id_prefix + (own_id or self.new_id(8)))
        plans = make_plans(
            request,
            response_id=envelope.response_id,
            max_model_len=self.max_model_len,
            block_tokens=self.spec.block_tokens,
            model=envelope.model,
            new_id=self.new_id,
        )
        remote = remote_kv(request.kv)
        generation = Generation(
            plans,
            host=self.host,
            stats=self.stats,
            pull=None if remote is None else RemotePull(self._peers, remote),
            on_held=self._hold,
        )
        return Job(request=request, plans=plans, envelope=envelope), generation

    @asynccontextmanager
    async def _following(self, call: HttpCall, generation: Generation) -> AsyncIterator[None]:
        self._running.add(generation)
        async with call.watching(generation.abandon):
            try:
                yield
            finally:
                generation.abandon()
                self._running.discard(generation)

    async def _whole(self, call: HttpCall, job: Job, generation: Generation, dialect: Dialect) -> None:
        await self._start(generation)
        await _finish(call, generation)
        params = self._handover(generation) if job.plans[0].holds_kv else None
        await call.reply(200, dialect.whole(job, self._usage(job, generation), params))

    async def _stream(self, call: HttpCall, job: Job, generation: Generation, dialect: Dialect) -> None:
        """Like vLLM it sends the head at once; what fails after that is told in an event."""
        await call.start_stream()
        writer = dialect.writer(job)
        opening = writer.begin()
        if opening:
            await call.write(opening)
        try:
            await self._start(generation)
            await _send_events(call, writer, generation)
            tail = writer.end(self._usage(job, generation))
        except ApiError as error:
            tail = writer.failure(error)
        await call.end(tail)

    async def _start(self, generation: Generation) -> None:
        policy = self.config.kv_load_failure_policy
        await generation.start(fail_without_kv=policy == KvLoadFailurePolicy.FAIL)

    def _usage(self, job: Job, generation: Generation) -> Usage:
        return Usage.of(job.request, generation, block_tokens=self.spec.block_tokens)

    def _envelope(self, request: GenerationRequest, response_id: str) -> Envelope:
        return Envelope(
            response_id=response_id,
            created=int(self.wall_clock()),
            model=request.model or self.config.model,
            details=self.config.enable_prompt_tokens_details,
            max_model_len=self.max_model_len,
        )

    def _hold(self, plan: Plan, now_s: float) -> None:
        self.held.hold(plan.engine_id, tokens=plan.prompt.tokens, now_s=now_s)

    def _handover(self, generation: Generation) -> Json:
        running = generation.running[0]
        tokens = running.plan.prompt.tokens
        return handover(
            engine_id=self.held.engine_id,
            request_id=running.plan.engine_id,
            address=self._address,
            tokens=tokens,
            cached_tokens=running.cached_tokens,
            blocks=-(-tokens // self.spec.block_tokens),
        )


async def _finish(call: HttpCall, generation: Generation) -> None:
    if call.cut is not None:
        await _until_cut(call.cut, generation)
    await generation.finish()


async def _until_cut(cut: Cut, generation: Generation) -> None:
    while deltas := await generation.deltas():
        cut.take(deltas)
        cut.raise_if_due()
    cut.break_here()


async def _send_events(call: HttpCall, writer: EventWriter, generation: Generation) -> None:
    unfinished = len(generation.running)
    cut = call.cut
    while deltas := await generation.deltas():
        if cut is not None:
            deltas = cut.take(deltas)
        events = []
        for delta in deltas:
            unfinished -= delta.ended
            events.append(writer.events(delta, last=not unfinished))
        await call.write(b"".join(events))
        if cut is not None:
            cut.raise_if_due()
    if cut is not None:
        cut.break_here()


def _context_tokens(config: WorkerConfig, spec: EngineSpec) -> int:
    capacity = spec.block_tokens * spec.total_blocks
    if config.max_model_len is None:
        return min(DEFAULT_MAX_MODEL_LEN, capacity)
    if config.max_model_len > capacity:
        raise ValueError(f"max_model_len {config.max_model_len} is more than the KV cache holds ({capacity})")
    return config.max_model_len
