"""Who gets which connection, on a network that the test accepts or refuses by hand."""

import asyncio
import socket
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from gateway.upstream.errors import BrokenResponse, ConnectFailed, ErrorKind, PoolClosed, UpstreamError
from gateway.upstream.exchange import Limits
from gateway.upstream.heads import UnsafeHead, UpstreamRequest
from gateway.upstream.origin import Origin
from gateway.upstream.pool import SWEEP_INTERVAL_S, PoolStats, UpstreamPool
from tests.upstream.upstream_fakes import (
    GET,
    LIMITS,
    OK,
    ORIGIN,
    POST,
    FakeNetwork,
    FakePeer,
    FakeScheduler,
    Recorder,
    start,
)

CLOSING = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nhi"


@pytest.fixture
def clock() -> FakeScheduler:
    return FakeScheduler()


@pytest.fixture
def network() -> FakeNetwork:
    return FakeNetwork()


@pytest.fixture
async def pool(clock: FakeScheduler, network: FakeNetwork) -> AsyncIterator[UpstreamPool]:
    pool = UpstreamPool(LIMITS, scheduler=clock, connector=network.connect)
    yield pool
    await pool.aclose()


async def idle(pool: UpstreamPool, network: FakeNetwork, count: int = 1) -> list[FakePeer]:
    """Leave `count` idle connections in the pool, the last one used last."""
    for _ in range(count):
        start(pool)
    peers = [await network.accept() for _ in range(count)]
    for peer in peers:
        peer.sends(OK)
        peer.written = b""
    return peers


def now(pool: UpstreamPool) -> tuple[int, int, int]:
    stats = pool.stats()
    return stats.open, stats.idle, stats.waiting


# assignment


async def test_first_exchange_opens_a_connection(pool: UpstreamPool, network: FakeNetwork) -> None:
    _, told = start(pool)
    peer = await network.accept()
    assert peer.written == (
        b'POST /v1/completions HTTP/1.1\r\nhost: worker:8000\r\ncontent-length: 15\r\n\r\n{"prompt":"hi"}'
    )
    peer.sends(OK)
    assert told.outcome == (200, [(b"content-length", b"2")], b"hi", True, None)
    assert pool.stats() == PoolStats(open=1, idle=1, waiting=0, created=1, reused=0, stale_retries=0)


async def test_idle_connection_is_written_within_the_call(pool: UpstreamPool, network: FakeNetwork) -> None:
    (peer,) = await idle(pool, network)
    start(pool, GET)
    assert peer.written == b"GET /v1/models HTTP/1.1\r\nhost: worker:8000\r\n\r\n"
    assert pool.stats().reused == 1


async def test_connection_used_last_is_reused_first(pool: UpstreamPool, network: FakeNetwork) -> None:
    older, younger = await idle(pool, network, 2)
    start(pool)
    assert younger.written
    assert not older.written


async def test_body_segments_are_sent_in_order(pool: UpstreamPool, network: FakeNetwork) -> None:
    (peer,) = await idle(pool, network)
    start(pool, UpstreamRequest(method=b"POST", target=b"/x", body=(b"{", b'"a":1,', b'"b":2}')))
    assert peer.written.endswith(b'content-length: 13\r\n\r\n{"a":1,"b":2}')


async def test_origins_do_not_share_connections(pool: UpstreamPool, network: FakeNetwork) -> None:
    (peer,) = await idle(pool, network)
    pool.start(Origin(host="other", port=8000), POST, Recorder())
    assert not peer.written
    assert (await network.accept()).written.startswith(b"POST /v1/completions HTTP/1.1\r\nhost: other:8000\r\n")


async def test_unsafe_request_is_refused_before_anything_is_begun(pool: UpstreamPool) -> None:
    with pytest.raises(UnsafeHead):
        start(pool, replace(POST, headers=((b"x-a", b"1\r\n2"),)))
    assert now(pool) == (0, 0, 0)


async def test_connection_the_worker_closes_after_its_answer_is_not_kept(
    pool: UpstreamPool, network: FakeNetwork
) -> None:
    _, told = start(pool)
    peer = await network.accept()
    peer.sends(CLOSING)
    assert told.ended
    assert peer.aborted
    assert now(pool) == (0, 0, 0)


# the cap and its queue


async def test_exchanges_over_the_cap_wait_in_order_of_arrival(pool: UpstreamPool, network: FakeNetwork) -> None:
    told = [start(pool, replace(GET, target=b"/%d" % i))[1] for i in range(5)]
    assert now(pool) == (2, 0, 3)
    first, second = await network.accept(), await network.accept()
    for peer in (second, first, second, first, second):
        peer.sends(OK)
    order = [line for peer in (first, second) for line in peer.written.split() if line.startswith(b"/")]
    assert order == [b"/0", b"/3", b"/1", b"/2", b"/4"]
    assert all(listener.ended for listener in told)
    assert network.dials_waiting == 0
    assert now(pool) == (2, 2, 0)


async def test_aborted_exchange_leaves_the_queue(
    pool: UpstreamPool, network: FakeNetwork, clock: FakeScheduler
) -> None:
    start(pool)
    start(pool)
    aborted, silent = start(pool, replace(GET, target=b"/aborted"))
    _, told = start(pool, replace(GET, target=b"/next"))
    aborted.abort()
    assert now(pool) == (2, 0, 1)
    peer = await network.accept()
    peer.sends(OK)
    assert peer.written.split()[-4] == b"/next"
    clock.advance(LIMITS.connect_timeout_s)
    peer.sends(OK)
    assert told.ended
    assert silent.calls == 0


async def test_closed_connection_makes_room_for_the_queue(pool: UpstreamPool, network: FakeNetwork) -> None:
    start(pool)
    start(pool)
    _, told = start(pool, GET)
    (await network.accept()).sends(CLOSING)
    await network.accept()
    peer = await network.accept()
    assert peer.written.startswith(b"GET /v1/models")
    peer.sends(OK)
    assert told.ended


async def test_failed_connect_makes_room_for_the_queue(pool: UpstreamPool, network: FakeNetwork) -> None:
    _, failed = start(pool)
    start(pool)
    _, told = start(pool, GET)
    await network.refuse(ConnectionRefusedError())
    await failed.finished.wait()
    await network.accept()
    (await network.accept()).sends(OK)
    assert told.ended


async def test_wait_in_the_queue_ends_with_the_connect_timeout(
    pool: UpstreamPool, network: FakeNetwork, clock: FakeScheduler
) -> None:
    start(pool)
    start(pool)
    await network.accept()
    await network.accept()
    _, told = start(pool)
    clock.advance(LIMITS.connect_timeout_s)
    assert isinstance(told.error, ConnectFailed)
    assert told.error.kind is ErrorKind.POOL_TIMEOUT
    assert told.error.retryable_elsewhere
    assert now(pool) == (2, 0, 0)


async def test_exchange_that_waited_and_was_sent_is_not_timed_as_waiting(
    pool: UpstreamPool, network: FakeNetwork, clock: FakeScheduler
) -> None:
    start(pool)
    start(pool)
    peer = await network.accept()
    await network.accept()
    _, told = start(pool)
    peer.sends(OK)
    clock.advance(10)
    assert told.error is None


async def test_callback_may_start_the_next_exchange_on_the_same_connection(
    pool: UpstreamPool, network: FakeNetwork
) -> None:
    second = Recorder()
    _, first = start(pool)
    first.hooks["end"] = lambda: pool.start(ORIGIN, GET, second)
    peer = await network.accept()
    peer.sends(OK)
    peer.sends(OK)
    assert second.ended
    assert pool.stats().created == 1


async def test_limits_of_an_exchange_override_the_pools(pool: UpstreamPool, network: FakeNetwork) -> None:
    for _ in range(4):
        start(pool, limits=replace(LIMITS, max_connections=3))
    assert now(pool) == (3, 0, 1)


# failures to connect


@pytest.mark.parametrize(
    ("cause", "kind"),
    [
        (ConnectionRefusedError(111, "refused"), ErrorKind.CONNECT_REFUSED),
        (socket.gaierror(-2, "unknown name"), ErrorKind.CONNECT_DNS),
        (UnicodeError("label too long"), ErrorKind.CONNECT_DNS),
        (TimeoutError(110, "timed out"), ErrorKind.CONNECT_TIMEOUT),
        (OSError(113, "no route"), ErrorKind.CONNECT_FAILED),
        (RuntimeError("anything"), ErrorKind.CONNECT_FAILED),
    ],
)
async def test_failed_connect_is_classified(
    pool: UpstreamPool, network: FakeNetwork, cause: Exception, kind: ErrorKind
) -> None:
    _, told = start(pool)
    await network.refuse(cause)
    await told.finished.wait()
    error = told.error
    assert isinstance(error, ConnectFailed)
    assert error.kind is kind
    assert error.retryable_elsewhere
    assert error.__cause__ is cause
    assert "http://worker:8000" in str(error)
    assert now(pool) == (0, 0, 0)


async def test_connect_timeout_cancels_the_dial(pool: UpstreamPool, network: FakeNetwork, clock: FakeScheduler) -> None:
    _, told = start(pool)
    _, answer = await network.dialled()
    clock.advance(LIMITS.connect_timeout_s)
    assert isinstance(told.error, ConnectFailed)
    assert told.error.kind is ErrorKind.CONNECT_TIMEOUT
    await pool.aclose()
    assert answer.cancelled()


# stale connections


async def test_stale_connection_is_replaced_unseen(pool: UpstreamPool, network: FakeNetwork) -> None:
    (stale,) = await idle(pool, network)
    _, told = start(pool)
    sent = stale.written
    stale.closes()
    fresh = await network.accept()
    assert fresh.written == sent
    fresh.sends(OK)
    assert told.outcome == (200, [(b"content-length", b"2")], b"hi", True, None)
    assert pool.stats() == PoolStats(open=1, idle=1, waiting=0, created=2, reused=1, stale_retries=1)


async def test_stale_retry_happens_once(pool: UpstreamPool, network: FakeNetwork) -> None:
    (stale,) = await idle(pool, network)
    _, told = start(pool)
    stale.resets()
    (await network.accept()).resets()
    assert isinstance(told.error, BrokenResponse)
    assert told.error.kind is ErrorKind.CLOSED_BEFORE_HEAD
    assert network.dials_waiting == 0
    assert pool.stats().stale_retries == 1


async def test_stale_retry_passes_over_other_idle_connections(pool: UpstreamPool, network: FakeNetwork) -> None:
    older, younger = await idle(pool, network, 2)
    start(pool)
    younger.resets()
    assert not older.written
    assert (await network.accept()).written


async def test_stale_retry_goes_before_the_queue(pool: UpstreamPool, network: FakeNetwork) -> None:
    older, younger = await idle(pool, network, 2)
    start(pool, replace(GET, target=b"/first"))
    start(pool, replace(GET, target=b"/second"))
    start(pool, replace(GET, target=b"/queued"))
    younger.resets()
    assert now(pool) == (2, 0, 1)
    assert (await network.accept()).written.split()[1] == b"/first"
    older.sends(OK)
    assert older.written.split()[-4] == b"/queued"


@pytest.mark.parametrize("byte", [b"H", b"HTTP/1.1 100 Continue\r\n\r\n"])
async def test_no_retry_once_a_response_byte_came(pool: UpstreamPool, network: FakeNetwork, byte: bytes) -> None:
    (peer,) = await idle(pool, network)
    _, told = start(pool)
    peer.sends(byte)
    peer.resets()
    assert isinstance(told.error, BrokenResponse)
    assert network.dials_waiting == 0


async def test_no_retry_on_a_fresh_connection(pool: UpstreamPool, network: FakeNetwork) -> None:
    _, told = start(pool)
    (await network.accept()).closes()
    assert isinstance(told.error, BrokenResponse)
    assert told.error.retryable_elsewhere
    assert network.dials_waiting == 0
    assert now(pool) == (0, 0, 0)


async def test_retry_can_be_aborted_while_it_dials(pool: UpstreamPool, network: FakeNetwork) -> None:
    (stale,) = await idle(pool, network)
    exchange, told = start(pool)
    stale.resets()
    exchange.abort()
    assert now(pool) == (0, 0, 0)
    assert told.calls == 0


async def test_failed_retry_reports_the_connect(pool: UpstreamPool, network: FakeNetwork) -> None:
    (stale,) = await idle(pool, network)
    _, told = start(pool)
    stale.resets()
    await network.refuse(ConnectionRefusedError())
    await told.finished.wait()
    assert told.error is not None
    assert told.error.kind is ErrorKind.CONNECT_REFUSED


# idle connections


async def test_connection_closed_while_idle_is_forgotten(pool: UpstreamPool, network: FakeNetwork) -> None:
    older, younger = await idle(pool, network, 2)
    older.closes()
    assert now(pool) == (1, 1, 0)
    start(pool)
    assert younger.written


async def test_connection_known_to_be_closing_is_passed_over(pool: UpstreamPool, network: FakeNetwork) -> None:
    older, younger = await idle(pool, network, 2)
    younger.aborted = True
    start(pool)
    assert older.written
    assert not younger.written
    younger.client.connection_lost(None)
    assert now(pool) == (1, 0, 0)


async def test_origin_without_connections_is_forgotten(pool: UpstreamPool, network: FakeNetwork) -> None:
    older, younger = await idle(pool, network, 2)
    older.closes()
    assert len(pool._lanes) == 1
    younger.closes()
    assert not pool._lanes


async def test_no_more_than_max_idle_are_kept(network: FakeNetwork, clock: FakeScheduler) -> None:
    limits = replace(LIMITS, max_connections=5, max_idle=3)
    pool = UpstreamPool(limits, scheduler=clock, connector=network.connect)
    peers = await idle(pool, network, 5)
    assert now(pool) == (3, 3, 0)
    assert [peer.aborted for peer in peers] == [False, False, False, True, True]
    await pool.aclose()


async def test_idle_connections_expire_by_one_timer(
    network: FakeNetwork, clock: FakeScheduler, pool: UpstreamPool
) -> None:
    (first,) = await idle(pool, network)
    clock.advance(1)
    _, told = start(pool)
    start(pool)
    second = await network.accept()
    first.sends(OK)
    clock.advance(2)
    second.sends(OK)
    assert told.ended
    clock.advance(2 - 0.01)
    assert now(pool) == (2, 2, 0)
    clock.advance(SWEEP_INTERVAL_S)
    assert (first.aborted, second.aborted) == (True, False)
    clock.advance(LIMITS.idle_expiry_s)
    assert now(pool) == (0, 0, 0)
    clock.advance(1000)
    assert clock.pending == 0


async def test_many_idle_connections_share_their_sweeps(network: FakeNetwork, clock: FakeScheduler) -> None:
    limits = replace(LIMITS, max_connections=200, max_idle=200, idle_timeout_s=None, first_byte_timeout_s=None)
    pool = UpstreamPool(limits, scheduler=clock, connector=network.connect)
    for _ in range(200):
        start(pool)
    for _ in range(200):
        await network.accept()
    clock.advance(10)
    before = clock.scheduled
    for peer in network.peers:
        peer.sends(OK)
        clock.advance(0.01)
    clock.advance(20)
    assert now(pool) == (0, 0, 0)
    assert clock.scheduled - before <= 2 + 200 * 0.01 / SWEEP_INTERVAL_S
    await pool.aclose()


async def test_shorter_expiry_of_one_role_is_kept(
    network: FakeNetwork, clock: FakeScheduler, pool: UpstreamPool
) -> None:
    await idle(pool, network)
    start(pool, limits=replace(LIMITS, idle_expiry_s=1.0))
    network.peers[0].sends(OK)
    clock.advance(1.0)
    assert now(pool) == (0, 0, 0)


# aborts in every state


async def test_abort_while_dialling_frees_the_place(pool: UpstreamPool, network: FakeNetwork) -> None:
    exchange, told = start(pool)
    _, answer = await network.dialled()
    exchange.abort()
    assert now(pool) == (0, 0, 0)
    await pool.aclose()
    assert answer.cancelled()
    assert told.calls == 0


async def test_connection_made_after_the_abort_is_closed(pool: UpstreamPool, network: FakeNetwork) -> None:
    exchange, told = start(pool)
    protocol, _ = await network.dialled()
    exchange.abort()
    late = FakePeer(protocol)
    protocol.connection_made(late)  # type: ignore[arg-type]
    assert late.aborted
    assert not late.written
    assert told.calls == 0


async def test_abort_before_the_dial_has_begun(pool: UpstreamPool, network: FakeNetwork) -> None:
    exchange, told = start(pool)
    exchange.abort()
    await pool.aclose()
    assert network.dials_waiting == 0
    assert told.calls == 0


@pytest.mark.parametrize("sofar", [b"", b"HTTP/1.1 2", OK[:-2], OK[:-1]])
async def test_abort_in_flight_closes_the_socket(pool: UpstreamPool, network: FakeNetwork, sofar: bytes) -> None:
    exchange, told = start(pool)
    peer = await network.accept()
    if sofar:
        peer.sends(sofar)
    calls = told.calls
    exchange.abort()
    exchange.abort()
    assert peer.aborted
    assert now(pool) == (0, 0, 0)
    await pool.aclose()
    assert told.calls == calls
    assert exchange.done


async def test_pause_before_the_connection_is_there_is_kept(pool: UpstreamPool, network: FakeNetwork) -> None:
    exchange, _ = start(pool)
    exchange.pause_reading()
    peer = await network.accept()
    assert not peer.reading
    exchange.resume_reading()
    assert peer.reading


async def test_pause_in_the_queue_is_kept(pool: UpstreamPool, network: FakeNetwork) -> None:
    start(pool)
    start(pool)
    exchange, _ = start(pool)
    exchange.pause_reading()
    peer = await network.accept()
    peer.sends(OK)
    assert not peer.reading


# closing


async def test_closing_the_pool_fails_whatever_it_holds(network: FakeNetwork, clock: FakeScheduler) -> None:
    pool = UpstreamPool(replace(LIMITS, max_connections=3), scheduler=clock, connector=network.connect)
    _, busy = start(pool)
    _, streaming = start(pool)
    await network.accept()
    (await network.accept()).sends(OK[:-1])
    _, dialling = start(pool)
    await network.dialled()
    _, waiting = start(pool)
    await pool.aclose()
    for told in (busy, streaming, dialling, waiting):
        assert isinstance(told.error, PoolClosed)
        assert not told.error.retryable_elsewhere
    assert now(pool) == (0, 0, 0)
    assert all(peer.aborted for peer in network.peers)
    assert clock.pending == 0
    with pytest.raises(PoolClosed):
        start(pool)


async def test_closing_twice_is_harmless(pool: UpstreamPool, network: FakeNetwork, clock: FakeScheduler) -> None:
    await idle(pool, network)
    await asyncio.gather(pool.aclose(), pool.aclose())
    await pool.aclose()
    assert now(pool) == (0, 0, 0)
    assert clock.pending == 0


async def test_closing_waits_until_the_sockets_are_gone(network: FakeNetwork, clock: FakeScheduler) -> None:
    pool = UpstreamPool(LIMITS, scheduler=clock, connector=network.connect)
    exchange, _ = start(pool)
    peer = await network.accept()
    peer.protocol = None  # its loss is not reported by itself
    exchange.abort()
    closing = asyncio.ensure_future(pool.aclose())
    await asyncio.wait({closing}, timeout=0)
    assert not closing.done()
    peer.client.connection_lost(None)
    await closing


def test_limits_need_room_for_one_connection() -> None:
    with pytest.raises(ValueError, match="max_connections"):
        Limits(max_connections=0)


def test_errors_carry_what_a_router_asks() -> None:
    error = UpstreamError(ORIGIN, ErrorKind.MALFORMED, "words", retryable_elsewhere=True)
    assert (error.origin, error.kind, error.retryable_elsewhere) == (ORIGIN, "malformed", True)
    assert str(error) == "http://worker:8000: words"
