"""Stand-ins for the clock, the listener, the network and a worker."""

import asyncio
import heapq
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from gateway.upstream.connection import Connection
from gateway.upstream.errors import UpstreamError
from gateway.upstream.exchange import Exchange, Limits
from gateway.upstream.heads import UpstreamRequest
from gateway.upstream.origin import Origin
from gateway.upstream.pool import UpstreamPool

ORIGIN = Origin(host="worker", port=8000)
POST = UpstreamRequest(method=b"POST", target=b"/v1/completions", body=b'{"prompt":"hi"}')
GET = UpstreamRequest(method=b"GET", target=b"/v1/models")
LIMITS = Limits(
    connect_timeout_s=2.0,
    first_byte_timeout_s=60.0,
    idle_timeout_s=10.0,
    max_connections=2,
    max_idle=2,
    idle_expiry_s=4.0,
)
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"


class FakeTimer:
    """A scheduled call."""

    def __init__(self, callback: Callable[[], object]) -> None:
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class FakeScheduler:
    """A clock that moves when told to."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.scheduled = 0
        self._order = itertools.count()
        self._timers: list[tuple[float, int, FakeTimer]] = []

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay: float, callback: Callable[[], object], /) -> FakeTimer:
        self.scheduled += 1
        timer = FakeTimer(callback)
        heapq.heappush(self._timers, (self.now_s + delay, next(self._order), timer))
        return timer

    @property
    def pending(self) -> int:
        return sum(not timer.cancelled for _, _, timer in self._timers)

    def advance(self, seconds: float) -> None:
        """Run whatever falls due in the next `seconds`, in order."""
        until_s = self.now_s + seconds
        while self._timers and self._timers[0][0] <= until_s:
            due_s, _, timer = heapq.heappop(self._timers)
            self.now_s = due_s
            if not timer.cancelled:
                timer.callback()
        self.now_s = until_s


class Recorder:
    """A listener that keeps what it is told, and checks that nothing follows the end."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.headers: list[tuple[bytes, bytes]] = []
        self.reads: list[bytes] = []
        self.ended = False
        self.error: UpstreamError | None = None
        self.finished = asyncio.Event()
        self.told = asyncio.Event()
        self.calls = 0
        self.lulls = 0
        self.hooks: dict[str, Callable[[], object]] = {}

    @property
    def body(self) -> bytes:
        return b"".join(self.reads)

    @property
    def outcome(self) -> tuple[Any, ...]:
        """All that a client could tell apart."""
        kind = self.error.kind if self.error else None
        return self.status, self.headers, self.body, self.ended, kind

    def on_head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        assert self.status is None
        self.status, self.headers = status, headers
        self._called("head")

    def on_body(self, data: bytes) -> None:
        assert self.status is not None
        assert data
        self.reads.append(data)
        self._called("body")

    def on_lull(self) -> None:
        assert self.status is not None
        assert not self.ended
        self.lulls += 1

    def on_end(self) -> None:
        self.ended = True
        self._called("end")
        self.finished.set()

    def on_error(self, error: UpstreamError) -> None:
        self.error = error
        self._called("error")
        self.finished.set()

    def _called(self, name: str) -> None:
        assert not self.finished.is_set(), f"on_{name} after the end"
        self.calls += 1
        self.told.set()
        self.hooks.get(name, lambda: None)()


class FakeTransport:
    """The part of asyncio.Transport that the client uses."""

    def __init__(self, protocol: asyncio.Protocol | None = None) -> None:
        self.protocol = protocol
        self.written = b""
        self.aborted = False
        self.reading = True
        self.unsent_bytes = 0

    def writelines(self, segments: Sequence[bytes]) -> None:
        self.written += b"".join(segments)

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def is_closing(self) -> bool:
        return self.aborted

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True

    def abort(self) -> None:
        if not self.aborted and self.protocol is not None:
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)
        self.aborted = True


class FakePeer(FakeTransport):
    """The worker's end of a fake connection."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__(protocol)
        self.client = protocol

    def sends(self, data: bytes) -> None:
        self.client.data_received(data)

    def closes(self) -> None:
        """FIN, then the loss that asyncio reports for it."""
        self.client.eof_received()
        self.abort()

    def resets(self) -> None:
        self.aborted = True
        self.client.connection_lost(ConnectionResetError("reset"))


class FakeNetwork:
    """A connector whose dials wait for the test to accept or refuse them."""

    def __init__(self) -> None:
        self.peers: list[FakePeer] = []
        self._dials: asyncio.Queue[tuple[asyncio.Protocol, asyncio.Future[None]]] = asyncio.Queue()

    async def connect(self, protocol: asyncio.Protocol, origin: Origin) -> None:
        answer = asyncio.get_running_loop().create_future()
        self._dials.put_nowait((protocol, answer))
        await answer

    async def dialled(self) -> tuple[asyncio.Protocol, "asyncio.Future[None]"]:
        return await self._dials.get()

    async def accept(self) -> FakePeer:
        protocol, answer = await self.dialled()
        peer = FakePeer(protocol)
        self.peers.append(peer)
        protocol.connection_made(peer)  # type: ignore[arg-type]
        answer.set_result(None)
        return peer

    async def refuse(self, error: BaseException) -> None:
        _, answer = await self.dialled()
        answer.set_exception(error)

    @property
    def dials_waiting(self) -> int:
        return self._dials.qsize()


class FakeOwner:
    """An owner that only remembers."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def connection_freed(self, connection: Connection) -> None:
        self.said.append("freed")

    def connection_closed(self, connection: Connection) -> None:
        self.said.append("closed")

    def connection_stale(self, connection: Connection, exchange: Exchange) -> None:
        self.said.append("stale")

    def socket_gone(self, connection: Connection) -> None:
        self.said.append("gone")


class Bench:
    """A connected connection with one exchange on it, without a loop."""

    def __init__(self, *, limits: Limits = LIMITS, head_only: bool = False, reused: bool = False) -> None:
        self.clock = FakeScheduler()
        self.owner = FakeOwner()
        self.transport = FakeTransport()
        self.listener = Recorder()
        self.connection = Connection(ORIGIN, limits, self.owner, self.clock)
        self.connection._transport = self.transport  # type: ignore[assignment]
        self.connection.reused = reused
        self.exchange = self.exchange_for(self.listener, limits, head_only=head_only)
        self.connection.send(self.exchange)

    def exchange_for(self, listener: Recorder, limits: Limits = LIMITS, *, head_only: bool = False) -> Exchange:
        return Exchange(
            origin=ORIGIN,
            segments=(b"request",),
            head_only=head_only,
            listener=listener,
            limits=limits,
            carrier=self.connection,
        )

    def receive(self, *reads: bytes, eof: bool = False) -> None:
        for data in reads:
            if not self.transport.aborted:
                self.connection.data_received(data)
        if eof:
            self.connection.eof_received()
            self.connection.connection_lost(None)

    @property
    def closed(self) -> bool:
        return self.transport.aborted


def start(pool: UpstreamPool, request: UpstreamRequest = POST, **more: Any) -> tuple[Exchange, Recorder]:
    """Start an exchange with a fresh recorder."""
    listener = Recorder()
    return pool.start(ORIGIN, request, listener, **more), listener


def cuts(data: bytes) -> list[tuple[bytes, ...]]:
    """All ways to cut `data` in two, and byte by byte."""
    halves: list[tuple[bytes, ...]] = [(data[:i], data[i:]) for i in range(1, len(data))]
    return [*halves, tuple(data[i : i + 1] for i in range(len(data)))]
