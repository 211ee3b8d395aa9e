"""One connection on a fake transport: limits, backpressure, early answers, and callbacks that abort."""

from dataclasses import replace

import pytest

from gateway.upstream.errors import BrokenResponse, ErrorKind, FirstByteTimeout, IdleTimeout
from tests.upstream.upstream_fakes import LIMITS, OK, Bench, Recorder

HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n"
HINTS = b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_request_is_written_at_once(bench: Bench) -> None:
    assert bench.transport.written == b"request"


def test_body_is_released_with_the_first_response_byte(bench: Bench) -> None:
    bench.receive(b"H")
    assert bench.exchange.segments == ()


def test_finished_exchange_leaves_a_reusable_connection(bench: Bench) -> None:
    bench.receive(OK)
    assert bench.listener.ended
    assert bench.owner.said == ["freed"]
    assert bench.connection.reused


def test_owner_knows_before_the_listener(bench: Bench) -> None:
    seen: list[str] = []
    bench.listener.hooks["end"] = lambda: seen.extend(bench.owner.said)
    bench.receive(OK)
    assert seen == ["freed"]


def test_early_answer_is_delivered_and_the_connection_closed(bench: Bench) -> None:
    bench.transport.unsent_bytes = 1_000_000
    bench.receive(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno")
    assert (bench.listener.status, bench.listener.body, bench.listener.ended) == (413, b"no", True)
    assert bench.owner.said == ["closed"]
    assert bench.closed


def test_transport_that_is_closing_is_not_reused(bench: Bench) -> None:
    bench.transport.aborted = True
    bench.connection.data_received(OK)
    assert bench.listener.ended
    assert bench.owner.said == ["closed"]


@pytest.mark.parametrize("stray", [b"x", OK, b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n"])
def test_bytes_on_an_idle_connection_close_it(bench: Bench, stray: bytes) -> None:
    bench.receive(OK, stray)
    assert bench.closed
    assert bench.owner.said == ["freed", "closed"]


def test_idle_connection_notices_the_worker_close(bench: Bench) -> None:
    bench.receive(OK, eof=True)
    assert bench.owner.said == ["freed", "closed", "gone"]
    assert bench.listener.error is None


# time limits


def test_first_byte_timeout_ends_the_exchange(bench: Bench) -> None:
    bench.clock.advance(59)
    assert not bench.listener.finished.is_set()
    bench.clock.advance(1)
    error = bench.listener.error
    assert isinstance(error, FirstByteTimeout)
    assert error.retryable_elsewhere
    assert str(error) == "http://worker:8000: no response head within 60 s"
    assert bench.closed


@pytest.mark.parametrize("early", [HINTS, HINTS + HINTS, b"HTTP/1.1 2", HEAD[:-1]])
def test_only_the_final_head_meets_the_first_byte_timeout(bench: Bench, early: bytes) -> None:
    bench.clock.advance(50)
    bench.receive(early)
    bench.clock.advance(10)
    assert isinstance(bench.listener.error, FirstByteTimeout)


def test_idle_timeout_counts_from_the_last_read(bench: Bench) -> None:
    bench.receive(HEAD)
    for _ in range(3):
        bench.clock.advance(9)
        bench.receive(b"a")
    bench.clock.advance(9.9)
    assert bench.listener.error is None
    bench.clock.advance(0.1)
    error = bench.listener.error
    assert isinstance(error, IdleTimeout)
    assert not error.retryable_elsewhere
    assert bench.listener.body == b"aaa"


def test_reads_do_not_start_timers(bench: Bench) -> None:
    bench.receive(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
    before = bench.clock.scheduled
    bench.receive(*[b"a"] * 999)
    assert bench.clock.scheduled == before


def test_limits_that_are_off_never_pass() -> None:
    bench = Bench(limits=replace(LIMITS, first_byte_timeout_s=None, idle_timeout_s=None))
    bench.clock.advance(1e6)
    bench.receive(HEAD)
    bench.clock.advance(1e6)
    assert bench.listener.error is None
    assert bench.clock.scheduled == 0


def test_idle_connection_has_no_time_limit_of_its_own(bench: Bench) -> None:
    bench.receive(OK)
    bench.clock.advance(1e6)
    assert not bench.closed


def test_closed_connection_leaves_no_timer(bench: Bench) -> None:
    bench.exchange.abort()
    assert bench.clock.pending == 0


def test_next_exchange_has_its_own_limits(bench: Bench) -> None:
    bench.receive(OK)
    bench.clock.advance(30)
    again = Recorder()
    bench.connection.send(bench.exchange_for(again, replace(LIMITS, first_byte_timeout_s=5.0)))
    bench.clock.advance(5)
    assert isinstance(again.error, FirstByteTimeout)


# backpressure


def test_pause_and_resume_reach_the_transport_once(bench: Bench) -> None:
    for _ in range(2):
        bench.exchange.pause_reading()
        assert not bench.transport.reading
    for _ in range(2):
        bench.exchange.resume_reading()
        assert bench.transport.reading


def test_paused_time_is_not_the_workers(bench: Bench) -> None:
    bench.receive(HEAD)
    bench.exchange.pause_reading()
    bench.clock.advance(100)
    bench.exchange.resume_reading()
    bench.clock.advance(9)
    assert bench.listener.error is None
    bench.clock.advance(1)
    assert isinstance(bench.listener.error, IdleTimeout)


def test_connection_freed_while_paused_reads_again(bench: Bench) -> None:
    bench.listener.hooks["body"] = bench.exchange.pause_reading
    bench.receive(OK)
    assert bench.owner.said == ["freed"]
    assert bench.transport.reading


def test_exchange_paused_before_it_is_sent_stays_paused(bench: Bench) -> None:
    bench.receive(OK)
    exchange = bench.exchange_for(Recorder())
    exchange.paused = True
    bench.connection.send(exchange)
    assert not bench.transport.reading


def test_handle_of_a_finished_exchange_does_nothing(bench: Bench) -> None:
    bench.receive(OK)
    again = Recorder()
    bench.connection.send(bench.exchange_for(again))
    bench.exchange.pause_reading()
    bench.exchange.resume_reading()
    bench.exchange.abort()
    assert bench.transport.reading
    assert not bench.closed


def test_pausing_a_closing_transport_is_harmless(bench: Bench) -> None:
    bench.transport.aborted = True
    bench.exchange.pause_reading()
    assert bench.transport.reading


# aborts and losses


@pytest.mark.parametrize(("callback", "calls"), [("head", 1), ("body", 2)])
def test_callback_that_aborts_is_the_last_one(bench: Bench, callback: str, calls: int) -> None:
    bench.listener.hooks[callback] = bench.exchange.abort
    bench.receive(OK)
    assert bench.listener.calls == calls
    assert bench.owner.said == ["closed"]
    assert bench.closed


def test_abort_inside_the_last_callbacks_is_harmless(bench: Bench) -> None:
    bench.listener.hooks["end"] = bench.exchange.abort
    bench.receive(OK)
    assert bench.owner.said == ["freed"]


@pytest.mark.parametrize("sofar", [b"", b"HTTP/1.1 2", HINTS, HEAD, HEAD + b"ab"])
def test_aborted_exchange_hears_nothing_more(bench: Bench, sofar: bytes) -> None:
    if sofar:
        bench.receive(sofar)
    before = bench.listener.calls
    bench.exchange.abort()
    bench.connection.data_received(b"late")
    bench.connection.eof_received()
    bench.connection.connection_lost(None)
    assert bench.listener.calls == before
    assert bench.owner.said == ["closed", "gone"]


@pytest.mark.parametrize(
    ("sofar", "kind"),
    [
        (b"", ErrorKind.CLOSED_BEFORE_HEAD),
        (b"HTTP/1.1 2", ErrorKind.CLOSED_BEFORE_HEAD),
        (HINTS, ErrorKind.CLOSED_BEFORE_HEAD),
        (HEAD, ErrorKind.TRUNCATED),
        (HEAD + b"ab", ErrorKind.TRUNCATED),
        (b"HTTP/1.1 200 OK\r\n\r\nab", ErrorKind.TRUNCATED),
    ],
)
def test_reset_breaks_any_response(bench: Bench, sofar: bytes, kind: ErrorKind) -> None:
    if sofar:
        bench.receive(sofar)
    bench.connection.connection_lost(ConnectionResetError("reset by peer"))
    error = bench.listener.error
    assert isinstance(error, BrokenResponse)
    assert error.kind is kind
    assert error.retryable_elsewhere == (kind is ErrorKind.CLOSED_BEFORE_HEAD)
    assert "http://worker:8000" in str(error)
    assert "reset by peer" in str(error)


@pytest.mark.parametrize("reused", [False, True])
@pytest.mark.parametrize("sofar", [b"", b"H", HINTS])
def test_only_an_untouched_reused_connection_is_stale(reused: bool, sofar: bytes) -> None:
    bench = Bench(reused=reused)
    if sofar:
        bench.receive(sofar)
    bench.connection.connection_lost(BrokenPipeError())
    assert ("stale" in bench.owner.said) == (reused and not sofar)
    assert (bench.listener.error is None) == (reused and not sofar)


def test_stale_exchange_keeps_its_request(bench: Bench) -> None:
    bench = Bench(reused=True)
    bench.receive(eof=True)
    assert bench.exchange.segments == (b"request",)


@pytest.mark.parametrize("callback", ["head", "body"])
@pytest.mark.parametrize("data", [HEAD + b"ab", OK, b"HTTP/1.1 200 OK\r\n\r\nab"])
def test_listener_that_raises_never_sees_a_good_end(bench: Bench, callback: str, data: bytes) -> None:
    """The event loop answers an exception from data_received by losing the connection."""

    def fault() -> None:
        raise RuntimeError("listener")

    bench.listener.hooks[callback] = fault
    with pytest.raises(RuntimeError, match="listener") as caught:
        bench.receive(data)
    bench.connection.connection_lost(caught.value)
    assert bench.listener.error is not None
    assert bench.owner.said == ["gone", "closed"]
