"""What an emulated worker answers, route by route.

Whatever is asked, the answer is plain text of the right length: tools count as prompt and response formats are
read over. What a real vLLM 0.32 refuses is refused in the same words.
"""

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import uuid4

import msgspec

from loadtest.engine.types import EngineSpec
from loadtest.worker import bodies, metrics, tokenizer
from loadtest.worker.answers import VERSION, Envelope, Usage, whole_answer
from loadtest.worker.app import HttpCall, Routes
from loadtest.worker.bodies import TokenizeBody
from loadtest.worker.config import KvLoadFailurePolicy, WorkerConfig
from loadtest.worker.errors import ApiError
from loadtest.worker.generation import Generation, Plan, make_plans
from loadtest.worker.host import EngineHost
from loadtest.worker.pd import (
    CLAIM_PATH,
    RELEASE_PATH,
    ClaimRefusal,
    HeldKv,
    KvPeers,
    RemotePull,
    handover,
    remote_kv,
)
from loadtest.worker.requests import (
    GenerationRequest,
    Prompt,
    chat_prompt,
    from_chat,
    from_completion,
    token_prompt,
)
from loadtest.worker.streams import StreamWriter, error_events, stream_writer

DEFAULT_MAX_MODEL_LEN = 131_072


@dataclass(frozen=True, slots=True)
class _Job:
    request: GenerationRequest
    plans: Sequence[Plan]
    envelope: Envelope
    generation: Generation


class Worker:
    """One emulated vLLM server over one engine.

    `address` is where other workers reach it. `new_id(n)` gives n random bytes in hexadecimal, `wall_clock` Unix
    seconds. Raises ValueError for a context that the KV cache cannot hold.
    """

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
        self.max_model_len = _context_tokens(config, spec)
        self.held = HeldKv(engine_id=str(uuid4()), lease_s=spec.hold_lease_s)
        self._spec = spec
        self._host = host
        self._peers = peers
        self._address = address
        self._new_id = new_id
        self._wall_clock = wall_clock
        self._started = int(wall_clock())
        self._stats = metrics.WorkerStats()
        self._running: set[Generation] = set()

    def routes(self) -> Routes:
        """Every path that it serves."""
        return {
            "/v1/chat/completions": {"POST": self._chat},
            "/v1/completions": {"POST": self._complete},
            "/v1/models": {"GET": self._models},
            "/tokenize": {"POST": self._tokenize},
            "/detokenize": {"POST": self._detokenize},
            "/health": {"GET": self._alive},
            "/ping": {"GET": self._alive, "POST": self._alive},
            "/version": {"GET": self._version},
            "/metrics": {"GET": self._metrics},
            CLAIM_PATH: {"POST": self._kv_claim},
            RELEASE_PATH: {"POST": self._kv_release},
        }

    def break_off(self) -> None:
        """End every answer in flight with an error: the server stops."""
        for generation in tuple(self._running):
            generation.break_off()

    async def _chat(self, call: HttpCall) -> None:
        body = bodies.decode(bodies.CHAT, await call.json_body())
        await self._generate(call, from_chat(body))

    async def _complete(self, call: HttpCall) -> None:
        body = bodies.decode(bodies.COMPLETION, await call.json_body())
        await self._generate(call, from_completion(body))

    async def _generate(self, call: HttpCall, request: GenerationRequest) -> None:
        request.check(served_model=self.config.model, max_model_len=self.max_model_len)
        envelope = self._envelope(call, request)
        plans = make_plans(
            request,
            response_id=envelope.response_id,
            max_model_len=self.max_model_len,
            block_tokens=self._spec.block_tokens,
            model=self.config.model,
            new_id=self._new_id,
        )
        remote = remote_kv(request.kv)
        generation = Generation(
            plans,
            host=self._host,
            stats=self._stats,
            pull=None if remote is None else RemotePull(self._peers, remote),
            on_held=self._hold,
        )
        job = _Job(request, plans, envelope, generation)
        answer = self._stream if request.stream else self._whole
        self._running.add(generation)
        async with call.watching(generation.abandon):
            try:
                await answer(call, job)
            finally:
                generation.abandon()
                self._running.discard(generation)

    async def _whole(self, call: HttpCall, job: _Job) -> None:
        await self._start(job.generation)
        await job.generation.finish()
        params = self._handover(job.generation) if job.plans[0].holds_kv else None
        await call.reply(200, whole_answer(job.request, job.plans, job.envelope, self._usage(job), params))

    async def _stream(self, call: HttpCall, job: _Job) -> None:
        """Like vLLM it sends the head at once; what fails after that is told in an event."""
        await call.start_stream()
        writer = stream_writer(job.request, job.plans, job.envelope)
        try:
            await self._start(job.generation)
            await _send_events(call, writer, job.generation)
            tail = writer.end(self._usage(job))
        except ApiError as error:
            tail = error_events(error)
        await call.end(tail)

    async def _start(self, generation: Generation) -> None:
        policy = self.config.kv_load_failure_policy
        await generation.start(fail_without_kv=policy == KvLoadFailurePolicy.FAIL)

    def _usage(self, job: _Job) -> Usage:
        return Usage.of(job.request, job.generation, block_tokens=self._spec.block_tokens)

    def _envelope(self, call: HttpCall, request: GenerationRequest) -> Envelope:
        asked_id = call.header(b"x-request-id") or self._new_id(8)
        return Envelope(
            response_id=f"chatcmpl-{asked_id}" if request.chat else f"cmpl-{asked_id}",
            created=int(self._wall_clock()),
            model=self.config.model,
            details=self.config.enable_prompt_tokens_details,
        )

    def _hold(self, plan: Plan, now_s: float) -> None:
        self.held.hold(plan.engine_id, tokens=plan.prompt.tokens, now_s=now_s)

    def _handover(self, generation: Generation) -> dict[str, object]:
        running = generation.running[0]
        tokens = running.plan.prompt.tokens
        return handover(
            engine_id=self.held.engine_id,
            request_id=running.plan.engine_id,
            address=self._address,
            tokens=tokens,
            cached_tokens=running.cached_tokens,
            blocks=-(-tokens // self._spec.block_tokens),
        )

    async def _kv_claim(self, call: HttpCall) -> None:
        body = bodies.decode(bodies.KV_CLAIM, await call.json_body())
        claimed = self.held.claim(body.request_id, body.engine_id, now_s=self._host.now_s())
        match claimed:
            case ClaimRefusal.UNKNOWN:
                raise ApiError(404, "no such KV is held here", kind="NotFoundError")
            case ClaimRefusal.TAKEN:
                raise ApiError(409, "this KV has been claimed already", kind="ConflictError")
            case _:
                await call.reply(200, msgspec.json.encode({"tokens": claimed}))

    async def _kv_release(self, call: HttpCall) -> None:
        body = bodies.decode(bodies.KV_RELEASE, await call.json_body())
        self.held.release(body.request_id)
        released = self._host.release_held(body.request_id)
        await call.reply(200, msgspec.json.encode({"released": released}))

    async def _tokenize(self, call: HttpCall) -> None:
        body = bodies.decode(bodies.TOKENIZE, await call.json_body())
        self._check_model(body.model)
        prompt = _tokenize_prompt(body)
        token_ids = tokenizer.encode(prompt.data)
        strings = [tokenizer.text_of(tokenizer.decode([token_id])) for token_id in token_ids]
        answer = {
            "count": len(token_ids),
            "max_model_len": self.max_model_len,
            "tokens": token_ids,
            "token_strs": strings if body.return_token_strs else None,
        }
        await call.reply(200, msgspec.json.encode(answer))

    async def _detokenize(self, call: HttpCall) -> None:
        body = bodies.decode(bodies.DETOKENIZE, await call.json_body())
        self._check_model(body.model)
        text = tokenizer.text_of(token_prompt(body.tokens).data)
        await call.reply(200, msgspec.json.encode({"prompt": text}))

    async def _models(self, call: HttpCall) -> None:
        await call.reply(200, msgspec.json.encode({"object": "list", "data": [self._model_card()]}))

    def _model_card(self) -> dict[str, object]:
        permission = {
            "id": f"modelperm-{self._new_id(8)}",
            "object": "model_permission",
            "created": self._started,
            "allow_create_engine": False,
            "allow_sampling": True,
            "allow_logprobs": True,
            "allow_search_indices": False,
            "allow_view": True,
            "allow_fine_tuning": False,
            "organization": "*",
            "group": None,
            "is_blocking": False,
        }
        return {
            "id": self.config.model,
            "object": "model",
            "created": self._started,
            "owned_by": "vllm",
            "root": self.config.model,
            "parent": None,
            "max_model_len": self.max_model_len,
            "permission": [permission],
        }

    async def _alive(self, call: HttpCall) -> None:
        await call.reply(200, b"", content_type=None)

    async def _version(self, call: HttpCall) -> None:
        await call.reply(200, msgspec.json.encode({"version": VERSION}))

    async def _metrics(self, call: HttpCall) -> None:
        snapshot = self._host.snapshot()
        self.held.expire(self._host.now_s())
        body = metrics.exposition(
            model=self.config.model,
            spec=self._spec,
            snapshot=snapshot,
            stats=self._stats,
            expired_holds=self.held.expired,
        )
        await call.reply(200, body, content_type=metrics.CONTENT_TYPE)

    def _check_model(self, model: str | None) -> None:
        if model is not None and model != self.config.model:
            raise ApiError.no_such_model(model, self.config.model)


async def _send_events(call: HttpCall, writer: StreamWriter, generation: Generation) -> None:
    unfinished = len(generation.running)
    while deltas := await generation.deltas():
        events = []
        for delta in deltas:
            unfinished -= delta.ended
            events.append(writer.events(delta, last=not unfinished))
        await call.write(b"".join(events))


def _tokenize_prompt(body: TokenizeBody) -> Prompt:
    if body.messages is not None:
        generation_prompt = body.add_generation_prompt is not False
        return chat_prompt(body.messages, tools=bytes(body.tools), generation_prompt=generation_prompt)
    if body.prompt is None:
        raise ApiError.bad_request("Either prompt or messages must be provided.", param="prompt")
    return Prompt(data=body.prompt.encode())


def _context_tokens(config: WorkerConfig, spec: EngineSpec) -> int:
    capacity = spec.block_tokens * spec.total_blocks
    if config.max_model_len is None:
        return min(DEFAULT_MAX_MODEL_LEN, capacity)
    if config.max_model_len > capacity:
        raise ValueError(f"max_model_len {config.max_model_len} is more than the KV cache holds ({capacity})")
    return config.max_model_len
