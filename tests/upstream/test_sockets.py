"""The client against a scripted worker on loopback, on asyncio's loop and on uvloop."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from gateway.upstream.errors import BrokenResponse, ConnectFailed, ErrorKind, PoolClosed
from gateway.upstream.exchange import Exchange, Limits
from gateway.upstream.heads import UpstreamRequest
from gateway.upstream.origin import Origin
from gateway.upstream.pool import UpstreamPool
from tests.upstream.upstream_fakes import GET, OK, POST, Recorder

LIMITS = Limits(first_byte_timeout_s=None, max_connections=8, max_idle=8, idle_expiry_s=60.0)
CHUNKED = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
BIG = 32 * 1024 * 1024


class Session:
    """The worker's end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def request(self) -> tuple[bytes, bytes]:
        """Read one request: its target and body."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        sizes = [int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length:")]
        body = await self.reader.readexactly(sizes[0]) if sizes else b""
        return head.split(b" ")[1], body

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def close(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def left(self) -> None:
        """Return once the client has closed."""
        try:
            while await self.reader.read(65_536):
                pass
        except ConnectionError:
            pass


class Worker:
    """A server whose sessions the test drives one by one."""

    def __init__(self) -> None:
        self.sessions: asyncio.Queue[Session] = asyncio.Queue()
        self.all: list[Session] = []

    async def listen(self) -> None:
        self.server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.origin = Origin(host="127.0.0.1", port=self.server.sockets[0].getsockname()[1])

    async def accept(self) -> Session:
        return await self.sessions.get()

    async def aclose(self) -> None:
        self.server.close()
        for session in self.all:
            session.writer.transport.abort()
        await asyncio.gather(*(s.writer.wait_closed() for s in self.all), return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        session = Session(reader, writer)
        self.all.append(session)
        self.sessions.put_nowait(session)


@pytest.fixture
async def worker() -> AsyncIterator[Worker]:
    worker = Worker()
    await worker.listen()
    yield worker
    await worker.aclose()


@pytest.fixture
async def pool() -> AsyncIterator[UpstreamPool]:
    pool = UpstreamPool(LIMITS)
    yield pool
    await pool.aclose()


def start(pool: UpstreamPool, worker: Worker, request: UpstreamRequest = POST) -> tuple[Exchange, Recorder]:
    listener = Recorder()
    return pool.start(worker.origin, request, listener), listener


async def warm(pool: UpstreamPool, worker: Worker) -> Session:
    """Leave one idle connection in the pool and return the worker's end of it."""
    _, told = start(pool, worker)
    session = await worker.accept()
    await session.request()
    session.send(OK)
    await told.finished.wait()
    return session


def empty(pool: UpstreamPool) -> bool:
    stats = pool.stats()
    return stats.open == stats.idle == stats.waiting == 0


async def test_request_and_answer_cross_the_wire_whole(pool: UpstreamPool, worker: Worker) -> None:
    body = bytes(range(256)) * 4096
    _, told = start(pool, worker, replace(POST, body=(b"{", body, b"}")))
    session = await worker.accept()
    assert await session.request() == (b"/v1/completions", b"{" + body + b"}")
    session.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    await told.finished.wait()
    assert told.ended
    assert told.body == body


async def test_stream_arrives_event_by_event(pool: UpstreamPool, worker: Worker) -> None:
    _, told = start(pool, worker)
    session = await worker.accept()
    session.send(CHUNKED)
    for number in range(20):
        told.told.clear()
        session.send(b"9\r\ndata: %02d\n\r\n" % number)
        await told.told.wait()
        while len(told.body) < 9 * (number + 1):
            told.told.clear()
            await told.told.wait()
    session.send(b"0\r\n\r\n")
    await told.finished.wait()
    assert told.body == b"".join(b"data: %02d\n" % number for number in range(20))


async def test_connections_send_without_delay(pool: UpstreamPool, worker: Worker) -> None:
    await warm(pool, worker)
    (connection,) = pool._sockets
    assert connection._transport is not None
    sock = connection._transport.get_extra_info("socket")
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_many_exchanges_share_the_allowed_connections(pool: UpstreamPool, worker: Worker) -> None:
    async def echo(session: Session) -> None:
        while True:
            target, body = await session.request()
            answer = target + b" " + body
            session.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(answer), answer))

    async def serve() -> None:
        while True:
            echoes.append(asyncio.create_task(echo(await worker.accept())))

    echoes: list[asyncio.Task[None]] = []
    serving = asyncio.create_task(serve())
    told = [start(pool, worker, replace(POST, target=b"/%d" % i, body=b"%d" % i))[1] for i in range(100)]
    assert pool.stats().waiting == 92
    await asyncio.gather(*(listener.finished.wait() for listener in told))
    assert [listener.body for listener in told] == [b"/%d %d" % (i, i) for i in range(100)]
    assert pool.stats().created == pool.stats().idle == 8
    assert pool.stats().reused == 92
    await pool.aclose()
    serving.cancel()
    await asyncio.gather(serving, *echoes, return_exceptions=True)


async def test_refused_connect_is_reported(pool: UpstreamPool) -> None:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        listener = Recorder()
        pool.start(Origin(host="127.0.0.1", port=unheard.getsockname()[1]), POST, listener)
        await listener.finished.wait()
    assert isinstance(listener.error, ConnectFailed)
    assert listener.error.kind is ErrorKind.CONNECT_REFUSED
    assert empty(pool)


async def test_connection_closed_by_the_worker_while_idle_is_replaced(pool: UpstreamPool, worker: Worker) -> None:
    (await warm(pool, worker)).close()
    _, told = start(pool, worker)
    session = await worker.accept()
    await session.request()
    session.send(OK)
    await told.finished.wait()
    assert told.ended
    assert pool.stats().open == 1


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_request_lost_on_a_stale_connection_is_sent_once_more(
    pool: UpstreamPool, worker: Worker, how: str
) -> None:
    stale = await warm(pool, worker)
    _, told = start(pool, worker)
    sent = await stale.request()
    getattr(stale, how)()
    fresh = await worker.accept()
    assert await fresh.request() == sent
    getattr(fresh, how)()
    await told.finished.wait()
    assert isinstance(told.error, BrokenResponse)
    assert told.error.kind is ErrorKind.CLOSED_BEFORE_HEAD
    assert pool.stats().stale_retries == 1
    assert worker.sessions.empty()
    assert empty(pool)


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_answer_cut_off_in_its_body_is_truncated(pool: UpstreamPool, worker: Worker, how: str) -> None:
    _, told = start(pool, worker)
    session = await worker.accept()
    await session.request()
    session.send(OK[:-1])
    await told.told.wait()
    getattr(session, how)()
    await told.finished.wait()
    assert told.error is not None
    assert told.error.kind is ErrorKind.TRUNCATED
    assert empty(pool)


async def test_body_without_a_length_ends_with_the_connection(pool: UpstreamPool, worker: Worker) -> None:
    _, told = start(pool, worker)
    session = await worker.accept()
    await session.request()
    session.send(b"HTTP/1.1 200 OK\r\n\r\nuntil the end")
    session.close()
    await told.finished.wait()
    assert told.ended
    assert told.body == b"until the end"
    assert empty(pool)


async def test_early_answer_is_delivered_while_the_body_is_unsent(pool: UpstreamPool, worker: Worker) -> None:
    _, told = start(pool, worker, replace(POST, body=bytes(BIG)))
    session = await worker.accept()
    await session.reader.readuntil(b"\r\n\r\n")
    session.send(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno")
    await told.finished.wait()
    assert (told.status, told.body, told.ended) == (413, b"no", True)
    assert empty(pool)
    await session.left()


@pytest.mark.parametrize("sofar", [b"", b"HTTP/1.1 2", CHUNKED, CHUNKED + b"5\r\nhe"])
async def test_worker_sees_the_abort(pool: UpstreamPool, worker: Worker, sofar: bytes) -> None:
    exchange, told = start(pool, worker)
    session = await worker.accept()
    await session.request()
    if sofar:
        session.send(sofar)
    if sofar.startswith(CHUNKED):
        await told.told.wait()
    exchange.abort()
    await session.left()
    assert empty(pool)
    assert not told.finished.is_set()


async def test_worker_sees_the_abort_of_an_upload(pool: UpstreamPool, worker: Worker) -> None:
    exchange, told = start(pool, worker, replace(POST, body=bytes(BIG)))
    session = await worker.accept()
    await session.reader.readuntil(b"\r\n\r\n")
    exchange.abort()
    await session.left()
    assert empty(pool)
    assert told.calls == 0


async def test_abort_while_connecting_leaves_nothing(pool: UpstreamPool, worker: Worker) -> None:
    exchange, told = start(pool, worker)
    exchange.abort()
    assert empty(pool)
    await pool.aclose()
    assert told.calls == 0


async def test_abort_at_every_turn_of_the_loop_while_connecting(worker: Worker) -> None:
    """The dial may be anywhere between its first step and the first answer byte."""
    for turns in range(12):
        pool = UpstreamPool(LIMITS)
        exchange, told = start(pool, worker)
        for _ in range(turns):
            await asyncio.sleep(0)
        exchange.abort()
        assert empty(pool)
        await pool.aclose()
        assert told.calls == 0
    while not worker.sessions.empty():
        await (await worker.accept()).left()


async def test_paused_exchange_holds_the_worker_back(pool: UpstreamPool, worker: Worker) -> None:
    exchange, told = start(pool, worker)
    told.hooks["head"] = exchange.pause_reading
    session = await worker.accept()
    await session.request()
    session.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % BIG + bytes(BIG))
    writing = asyncio.create_task(session.writer.drain())
    await told.told.wait()
    for _ in range(3):  # whole exchanges beside it give the loop every chance to read on
        other = UpstreamPool(LIMITS)
        await warm(other, worker)
        await other.aclose()
    read_bytes = len(told.body)
    assert not writing.done()
    assert read_bytes < BIG
    exchange.resume_reading()
    await told.finished.wait()
    await writing
    assert told.ended
    assert len(told.body) == BIG


async def test_closing_the_pool_closes_its_sockets(pool: UpstreamPool, worker: Worker) -> None:
    resting = await warm(pool, worker)
    _, reused = start(pool, worker, GET)
    _, told = start(pool, worker, GET)
    busy = await worker.accept()
    await busy.request()
    await pool.aclose()
    await resting.left()
    await busy.left()
    assert isinstance(told.error, PoolClosed)
    assert isinstance(reused.error, PoolClosed)
