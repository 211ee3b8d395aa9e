"""A whole gateway behind connections without sockets, by either data plane; and what its clients got."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import httptools
import httpx
import uvicorn
from uvicorn.server import ServerState

from gateway.api.auth import Keyring
from gateway.app import Gateway, open_gateway
from gateway.core.types import Outcome
from gateway.settings import Settings
from tests.conformance.wires import Wire, Worker

DataPlane = Literal["auto", "asgi"]
MODEL = "tiny"
CHAT = b"/v1/chat/completions"
MAX_BODY_BYTES = 64 * 1024
DEFAULTS = [(b"date", b"Mon, 01 Jan 2024 00:00:00 GMT"), (b"server", b"uvicorn")]
MANY_TURNS = 5_000
"""More turns of the event loop than any case needs."""


async def settle(condition: Callable[[], object], *, what: str = "it") -> None:
    """Let the event loop turn until the condition holds."""
    for _ in range(MANY_TURNS):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError(f"never: {what}")


async def idle(turns: int = 50) -> None:
    """Let everything run that can."""
    for _ in range(turns):
        await asyncio.sleep(0)


def body(*, stream: bool = False, **fields: Any) -> bytes:
    """A request's body. `include_usage` lets a stream pass unedited."""
    asked = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "stream": stream}
    options = {"stream_options": {"include_usage": True}} if stream else {}
    return json.dumps(asked | options | fields).encode()


def request(
    content: bytes | None = None, *headers: bytes, nonce: bytes = b"", start: bytes = b"POST " + CHAT + b" HTTP/1.1"
) -> bytes:
    """A request with a length."""
    content = body() if content is None else content
    lines = [start, b"host: gateway", b"content-type: application/json", b"content-length: %d" % len(content)]
    lines += [b"x-nonce: " + nonce] * bool(nonce)
    return b"\r\n".join([*lines, *headers]) + b"\r\n\r\n" + content


@dataclass(slots=True)
class Answer:
    """One answer as a strict client reads it."""

    status: int = 0
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    content: bytearray = field(default_factory=bytearray)
    whole: bool = False

    @property
    def body(self) -> bytes:
        return bytes(self.content)

    def header(self, name: bytes) -> bytes | None:
        values = [value for key, value in self.headers if key == name]
        assert len(values) <= 1, f"{name!r} was sent {len(values)} times"
        return values[0] if values else None

    def json(self) -> Any:
        return json.loads(self.body)


class _Reader:
    """Gathers answers; llhttp tells of them."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.parser: Any = httptools.HttpResponseParser(self)
        self.parser.set_dangerous_leniencies(lenient_keep_alive=True)
        self._read_bytes = 0

    def read_on(self, data: bytearray) -> list[Answer]:
        """All answers so far, the last of them maybe not whole; of the data, only what is new is read."""
        news = bytes(data[self._read_bytes :])
        self._read_bytes += len(news)
        if news:
            self.parser.feed_data(news)
        return self.answers

    def on_message_begin(self) -> None:
        self.answers.append(Answer())

    def on_header(self, name: bytes, value: bytes) -> None:
        self.answers[-1].headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.answers[-1].status = self.parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        self.answers[-1].content += data

    def on_message_complete(self) -> None:
        self.answers[-1].whole = True


@dataclass(slots=True)
class Client:
    """One connection."""

    wire: Wire
    protocol: Any
    _reader: _Reader = field(default_factory=_Reader)

    def send(self, *pieces: bytes) -> None:
        self.wire.send(*pieces)

    @property
    def answers(self) -> list[Answer]:
        """What a strict reader has made of it so far."""
        return self._reader.read_on(self.wire.taken)

    async def whole(self, count: int = 1) -> list[Answer]:
        """So many whole answers."""
        await settle(lambda: len(self.answers) >= count and self.answers[-1].whole, what=f"{count} answers")
        assert len(self.answers) == count
        return self.answers

    async def closed(self) -> None:
        """The gateway has closed the connection."""
        await settle(lambda: self.wire.over, what="the connection is closed")


class Plane:
    """The gateway, its one worker, and its books."""

    def __init__(self, kind: DataPlane, gateway: Gateway, worker: Worker, config: uvicorn.Config) -> None:
        self.kind = kind
        self.gateway = gateway
        self.worker = worker
        self.config = config
        self.state = ServerState()
        self.outcomes: list[Outcome] = []
        self._keep_outcomes()

    def client(self) -> Client:
        """A new connection."""
        protocol: Any = self.gateway.http(config=self.config, server_state=self.state, app_state={})
        wire = Wire(protocol)
        protocol.connection_made(wire)
        return Client(wire, protocol)

    def begin(self) -> None:
        """Before a case: nothing of the last one is left."""
        self.worker.reset()
        self.outcomes.clear()
        self.state = ServerState()
        self.state.default_headers = list(DEFAULTS)
        self.gateway.live.keyring = Keyring()
        self.config.limit_concurrency = None
        self.config.timeout_keep_alive = 3600

    async def ask(self, *pieces: bytes) -> Answer:
        """One answer, by a connection of its own."""
        client = self.client()
        client.send(*pieces)
        (answer,) = await client.whole()
        client.wire.leave()
        return answer

    async def check_settled(self) -> None:
        """Nothing is in flight, in any book."""
        await settle(lambda: not len(self.gateway.router.ledger), what="the ledger is empty")
        await settle(lambda: not self.state.tasks, what="no task is left")
        stats = self.gateway.pool.stats()
        assert stats.open == stats.idle
        assert stats.waiting == 0

    def _keep_outcomes(self) -> None:
        decisions = self.gateway.decisions
        append = decisions.append

        def kept(routed: Any, outcome: Outcome, **told: Any) -> None:
            self.outcomes.append(outcome)
            append(routed, outcome, **told)

        decisions.append = kept  # type: ignore[method-assign] # a spy


def _probed(asked: httpx.Request) -> httpx.Response:
    page = b'{"data":[{"id":"%b"}]}' % MODEL.encode()
    return httpx.Response(200, content=page if asked.url.path == "/v1/models" else b"")


@asynccontextmanager
async def plane_of(kind: DataPlane, **sections: Any) -> AsyncIterator[Plane]:
    """A gateway with one worker, to be asked by clients without sockets."""
    worker = Worker()
    tree: dict[str, Any] = {
        "server": {"data_plane": kind, "max_body_bytes": MAX_BODY_BYTES},
        "workers": [{"id": "w0", "url": "http://w0:8000", "kv_block_tokens": 16}],
        "admin": {"port": None},
        "routing": {"policy": "local"},
        "fleet": {"probe_interval_s": 3600, "scrape_interval_s": 3600, "sample_max_age_s": 3600},
        "telemetry": {"request_log": False},
    }
    settings = Settings(**(tree | sections))
    async with open_gateway(settings, instance="gw", transport=httpx.MockTransport(_probed)) as gateway:
        gateway.pool._connector = worker.connect
        config = uvicorn.Config(gateway.asgi, http=gateway.http, ws="none", lifespan="off", log_config=None)
        config.access_log = False
        config.load()
        await settle(lambda: gateway.registry.model_cards({}), what="the worker's models are known")
        yield Plane(kind, gateway, worker, config)
