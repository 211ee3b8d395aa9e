"""Lines on standard output: request lines wait in a queue, others are written at once, and the order is kept."""

import io
import threading
from collections.abc import Iterator
from itertools import pairwise

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from gateway.telemetry import log_stream
from gateway.telemetry.log_stream import WHOLE_BYTES, LogStream, pieces


class Out(io.StringIO):
    """Keeps each write; fails while `is_broken`, and lets nobody through before `opened`."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[str] = []
        self.is_broken = False
        self.opened = threading.Event()
        self.opened.set()

    def write(self, text: str) -> int:
        self.opened.wait()
        if self.is_broken:
            raise BrokenPipeError(32, "Broken pipe")
        self.writes.append(text)
        return len(text)


@pytest.fixture
def out() -> Out:
    return Out()


@pytest.fixture
def opened() -> Iterator[list[LogStream]]:
    """Whatever a test opens, for its end."""
    streams: list[LogStream] = []
    yield streams
    for stream in streams:
        stream.close()


def test_what_waits_is_written_before_a_line_that_does_not(out: Out, opened: list[LogStream]) -> None:
    stream = LogStream(out)
    opened.append(stream)
    stream.put(b"1\n")
    stream.put(b"2\n")
    assert out.writes == []
    stream.write("3\n")
    stream.put(b"4\n")
    stream.flush()
    assert out.writes == ["1\n2\n", "3\n", "4\n"]


def test_a_line_is_written_without_another_one(
    out: Out, opened: list[LogStream], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.telemetry.line_queue.FLUSH_S", 0.001)
    stream = LogStream(out)
    opened.append(stream)
    written = threading.Event()
    monkeypatch.setattr(out, "flush", written.set)
    stream.put(b"1\n")
    assert written.wait(10)
    assert out.writes == ["1\n"]


def test_closing_writes_what_waits(out: Out) -> None:
    stream = LogStream(out)
    stream.put(b"last\n")
    stream.close()
    stream.close()
    assert out.writes == ["last\n"]
    assert not out.closed


def test_a_stuck_reader_holds_up_neither_requests_nor_the_end(out: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.telemetry.line_queue.FLUSH_S", 0.001)
    monkeypatch.setattr(log_stream, "CLOSE_S", 0.01)
    out.opened.clear()
    stream = LogStream(out)
    for number in range(10):
        stream.put(f"{number}\n".encode())
    stream.close()
    assert out.writes == []
    out.opened.set()


def test_lost_lines_are_told_once_the_stream_takes_lines_again(out: Out, opened: list[LogStream]) -> None:
    structlog.configure(
        processors=[structlog.processors.KeyValueRenderer(key_order=["event", "lines"])],
        logger_factory=structlog.WriteLoggerFactory(out),
    )
    try:
        stream = LogStream(out, capacity=2)
        opened.append(stream)
        out.is_broken = True
        for _ in range(3):
            stream.put(b"lost\n")
        stream.drain()
        assert out.writes == []
        out.is_broken = False
        stream.put(b"kept\n")
        stream.drain()
        stream.drain()
    finally:
        structlog.reset_defaults()
    assert out.writes == ["kept\n", "event='log.lines_dropped' lines=3\n"]


def test_a_closed_stream_takes_nothing_and_nobody_is_told() -> None:
    out = io.StringIO()
    stream = LogStream(out)
    stream.put(b"late\n")
    out.close()
    stream.close()
    assert out.closed


@given(st.lists(st.integers(0, 2 * WHOLE_BYTES).map(lambda length: b"x" * length + b"\n"), max_size=12))
def test_pieces_are_whole_lines_that_a_pipe_takes_whole(lines: list[bytes]) -> None:
    found = list(pieces(b"".join(lines)))
    assert b"".join(found) == b"".join(lines)
    assert all(piece.endswith(b"\n") for piece in found)
    assert all(len(piece) <= WHOLE_BYTES or piece.count(b"\n") == 1 for piece in found)
    assert all(len(one) + other.index(b"\n") + 1 > WHOLE_BYTES for one, other in pairwise(found))
