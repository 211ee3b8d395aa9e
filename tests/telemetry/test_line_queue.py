"""The queue between the event loop and the disk: bounded, in order, every line written once or counted."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from gateway.telemetry import line_queue
from gateway.telemetry.line_queue import CHUNK_LINES, BackgroundDrain, LineQueue


class MemoryFile:
    """Keeps chunks; fails while `is_full`."""

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.is_full = False
        self.is_closed = False

    @property
    def lines(self) -> list[bytes]:
        return b"".join(self.chunks).splitlines(keepends=True)

    def write(self, chunk: bytes) -> None:
        if self.is_full:
            raise OSError(28, "No space left on device")
        self.chunks.append(chunk)

    def close(self) -> None:
        self.is_closed = True


def numbered(count: int) -> list[bytes]:
    return [f"{number}\n".encode() for number in range(count)]


def test_lines_are_written_in_order_and_in_chunks() -> None:
    file = MemoryFile()
    queue = LineQueue(file, capacity=1000)
    lines = numbered(2 * CHUNK_LINES + 1)
    for line in lines:
        queue.put(line)
    queue.drain()
    assert file.lines == lines
    assert len(file.chunks) == 3
    assert (queue.written, queue.dropped) == (len(lines), 0)


def test_a_full_queue_drops_the_newest_and_counts_them() -> None:
    file = MemoryFile()
    queue = LineQueue(file, capacity=3)
    for line in numbered(5):
        queue.put(line)
    queue.drain()
    assert file.lines == numbered(3)
    assert (queue.written, queue.dropped) == (3, 2)


def test_a_drained_queue_has_room_again() -> None:
    file = MemoryFile()
    queue = LineQueue(file, capacity=1)
    for line in numbered(3):
        queue.put(line)
        queue.drain()
    assert file.lines == numbered(3)
    assert queue.dropped == 0


def test_lines_that_the_disk_refuses_are_counted_and_it_is_said_once_per_failure() -> None:
    file = MemoryFile()
    queue = LineQueue(file, capacity=10)
    with capture_logs() as events:
        for is_full in (True, True, False, True):
            file.is_full = is_full
            queue.put(b"line\n")
            queue.drain()
    assert (queue.written, queue.dropped) == (1, 3)
    assert [event["event"] for event in events] == ["log_file.write_failed"] * 2


def test_closing_writes_what_is_left() -> None:
    file = MemoryFile()
    queue = LineQueue(file, capacity=10)
    queue.put(b"last\n")
    queue.close()
    assert file.lines == [b"last\n"]
    assert file.is_closed


@given(st.lists(st.sampled_from(["put", "drain", "fill disk", "empty disk"]), max_size=60))
def test_every_line_is_written_once_or_counted_as_dropped(steps: list[str]) -> None:
    file = MemoryFile()
    queue = LineQueue(file, capacity=4)
    put: list[bytes] = []
    with capture_logs():
        for step in steps:
            if step == "put":
                put.append(f"{len(put)}\n".encode())
                queue.put(put[-1])
            elif step == "drain":
                queue.drain()
            else:
                file.is_full = step == "fill disk"
        queue.close()
    assert queue.written + queue.dropped == len(put)
    assert len(file.lines) == queue.written
    assert file.lines == [line for line in put if line in file.lines]


def test_background_drain_runs_until_it_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_queue, "FLUSH_S", 0.001)
    drained = threading.Event()
    background = BackgroundDrain(drained.set)
    assert drained.wait(10)
    background.stop()
    drained.clear()
    assert not any(thread.name == "tidegate-log-writer" for thread in threading.enumerate())


def test_a_background_drain_drains_once_more_as_it_stops() -> None:
    drained = threading.Event()
    assert BackgroundDrain(drained.set).stop()
    assert drained.is_set()


def test_a_background_drain_that_is_stuck_is_not_waited_for_without_end() -> None:
    released = threading.Event()

    def wait() -> None:
        released.wait()

    background = BackgroundDrain(wait)
    assert not background.stop(0.01)
    released.set()
    assert background.stop()
