"""A bounded queue of log lines between the event loop and a file.

The rule of this module: putting a line never blocks and never fails. When the writer cannot keep up or the disk
fails, lines are dropped and counted.
"""

import threading
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

import structlog
from structlog.typing import FilteringBoundLogger

CHUNK_LINES: Final = 64
"""Lines per write: a chunk is written wholly or dropped wholly."""
FLUSH_S: Final = 0.5
"""How long a line waits for its write at most, while the disk keeps up."""

log: Final[FilteringBoundLogger] = structlog.get_logger()


class ChunkFile(Protocol):
    """Where the lines go; see `rotation.RotatingFile`."""

    def write(self, chunk: bytes) -> None:
        """Append all of `chunk`, or nothing of it and raise OSError."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...


def tell_failure(error: OSError) -> None:
    """Log that a file could not be written."""
    log.error("log_file.write_failed", error=str(error))


class LineQueue:
    """Holds up to `capacity` lines until they are drained; no threads in here.

    `put()` belongs to the event loop's thread, `drain()` and `close()` to the writer's. `on_failure` is called once
    for each time that the file begins to fail.
    """

    def __init__(self, file: ChunkFile, *, capacity: int, on_failure: Callable[[OSError], None] = tell_failure) -> None:
        self._file: Final = file
        self._capacity: Final = capacity
        self._on_failure: Final = on_failure
        self._pending: Final[deque[bytes]] = deque()
        self._rejected = 0
        self._lost = 0
        self._is_failing = False
        self.written = 0
        """Lines written."""

    @property
    def dropped(self) -> int:
        """Lines lost to a full queue or to a failing disk."""
        # One count per thread: the additions of the two must not overwrite each other.
        return self._rejected + self._lost

    def put(self, line: bytes) -> None:
        """Queue a line with its newline, or drop it where the queue is full."""
        if len(self._pending) < self._capacity:
            self._pending.append(line)
        else:
            self._rejected += 1

    def drain(self) -> None:
        """Write everything that is queued, in order; a chunk that the disk refuses is dropped."""
        while lines := self._take():
            try:
                self._file.write(b"".join(lines))
            except OSError as error:
                self._lost += len(lines)
                self._report(error)
            else:
                self.written += len(lines)
                self._is_failing = False

    def close(self) -> None:
        """Write what is left and close the file."""
        self.drain()
        self._file.close()

    def _take(self) -> list[bytes]:
        pending = self._pending
        return [pending.popleft() for _ in range(min(CHUNK_LINES, len(pending)))]

    def _report(self, error: OSError) -> None:
        if not self._is_failing:
            self._on_failure(error)
        self._is_failing = True


class BackgroundDrain:
    """A thread that calls `drain` every `FLUSH_S` until it is stopped, and once more then."""

    def __init__(self, drain: Callable[[], None]) -> None:
        self._drain: Final = drain
        self._stopping: Final = threading.Event()
        self._thread: Final = threading.Thread(target=self._run, name="tidegate-log-writer", daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float | None = None) -> bool:
        """Return when the thread has ended, or after `timeout_s`.

        Returns:
            Whether it has ended, and what was queued is written: one that is stuck in a write may not.
        """
        self._stopping.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopping.wait(FLUSH_S):
            self._drain()
        self._drain()
