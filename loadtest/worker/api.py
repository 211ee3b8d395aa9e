"""What an emulated worker answers, route by route.

A free answer is words without meaning of the right length; where the client asks for a form (JSON, a tool's call),
they stand in it. What a real vLLM 0.32 refuses is refused in the same words.
"""

import secrets
import time
from collections.abc import Callable

import msgspec

from loadtest.engine.types import EngineSpec
from loadtest.worker import bodies, metrics
from loadtest.worker.answers import VERSION, Json
from loadtest.worker.app import HttpCall, Routes
from loadtest.worker.config import Task, WorkerConfig
from loadtest.worker.dialects import messages, openai
from loadtest.worker.errors import ApiError
from loadtest.worker.host import EngineHost
from loadtest.worker.pd import CLAIM_PATH, RELEASE_PATH, ClaimRefusal, KvPeers
from loadtest.worker.pooling import PoolingRoutes
from loadtest.worker.requests import from_chat, from_completion
from loadtest.worker.responding import ResponseRoutes
from loadtest.worker.serving import Serving
from loadtest.worker.tokenizing import TokenizingRoutes
from loadtest.worker.transcription import TranscriptionRoutes


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
        self.serving = Serving(
            config, spec, host=host, peers=peers, address=address, new_id=new_id, wall_clock=wall_clock
        )
        self._spec = spec
        self._host = host
        self._started = int(wall_clock())

    def routes(self) -> Routes:
        """Every path that it serves."""
        tokenizing = TokenizingRoutes(self.serving)
        routes = {**self._server_routes(), **tokenizing.always()}
        if Task.GENERATE in self.config.tasks:
            routes |= {**self._generation_routes(), **tokenizing.generating()}
        if Task.POOLING in self.config.tasks:
            routes |= PoolingRoutes(self.serving).routes()
        if Task.TRANSCRIPTION in self.config.tasks:
            routes |= TranscriptionRoutes(self.serving).routes()
        return routes

    def break_off(self) -> None:
        """End every answer in flight with an error: the server stops."""
        self.serving.break_off()

    def _server_routes(self) -> Routes:
        return {
            "/v1/models": {"GET": self._models},
            "/health": {"GET": self._alive},
            "/ping": {"GET": self._alive, "POST": self._alive},
            "/version": {"GET": self._version},
            "/metrics": {"GET": self._metrics},
            CLAIM_PATH: {"POST": self._kv_claim},
            RELEASE_PATH: {"POST": self._kv_release},
        }

    def _generation_routes(self) -> Routes:
        return {
            "/v1/chat/completions": {"POST": self._chat},
            "/v1/completions": {"POST": self._complete},
            "/v1/messages": {"POST": self._message},
            **ResponseRoutes(self.serving).routes(),
        }

    async def _chat(self, call: HttpCall) -> None:
        body = bodies.decode(bodies.CHAT, await call.json_body())
        await self.serving.answer(call, lambda: from_chat(body), openai.CHAT)

    async def _complete(self, call: HttpCall) -> None:
        body = bodies.decode(bodies.COMPLETION, await call.json_body())
        await self.serving.answer(call, lambda: from_completion(body), openai.COMPLETION)

    async def _message(self, call: HttpCall) -> None:
        raw = await call.json_body()
        body = bodies.decode(messages.MESSAGES, raw)
        if body.max_tokens is None:
            shown = f"<dict of {len(msgspec.json.decode(raw))} items>"
            raise ApiError.schema(kind="missing", loc="body.max_tokens", message="Field required", shown=shown)
        await self.serving.answer(call, lambda: from_chat(messages.as_chat(body)), messages.MessagesDialect())

    async def _kv_claim(self, call: HttpCall) -> None:
        body = bodies.decode(bodies.KV_CLAIM, await call.json_body())
        claimed = self.serving.held.claim(body.request_id, body.engine_id, now_s=self._host.now_s())
        match claimed:
            case ClaimRefusal.UNKNOWN:
                raise ApiError(404, "no such KV is held here", kind="NotFoundError")
            case ClaimRefusal.TAKEN:
                raise ApiError(409, "this KV has been claimed already", kind="ConflictError")
            case _:
                await call.reply(200, msgspec.json.encode({"tokens": claimed}))

    async def _kv_release(self, call: HttpCall) -> None:
        body = bodies.decode(bodies.KV_RELEASE, await call.json_body())
        released = self.serving.drop_kv(body.request_id)
        await call.reply(200, msgspec.json.encode({"released": released}))

    async def _models(self, call: HttpCall) -> None:
        base = self.config.model
        cards = [self._model_card(base) | {"max_model_len": self.serving.max_model_len}]
        cards += [self._model_card(adapter) | {"parent": base} for adapter in self.config.adapters]
        await call.reply(200, msgspec.json.encode({"object": "list", "data": cards}))

    def _model_card(self, name: str) -> Json:
        permission = {
            "id": f"modelperm-{self.serving.new_id(8)}",
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
            "id": name,
            "object": "model",
            "created": self._started,
            "owned_by": "vllm",
            "root": name,
            "parent": None,
            "max_model_len": None,
            "permission": [permission],
        }

    async def _alive(self, call: HttpCall) -> None:
        await call.reply(200, b"", content_type=None)

    async def _version(self, call: HttpCall) -> None:
        await call.reply(200, msgspec.json.encode({"version": VERSION}))

    async def _metrics(self, call: HttpCall) -> None:
        held = self.serving.held
        snapshot = self._host.snapshot()
        held.expire(self._host.now_s())
        body = metrics.exposition(
            model=self.config.model,
            spec=self._spec,
            snapshot=snapshot,
            stats=self.serving.stats,
            expired_holds=held.expired,
        )
        await call.reply(200, body, content_type=metrics.CONTENT_TYPE)
