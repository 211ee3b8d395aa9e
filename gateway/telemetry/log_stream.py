"""Standard output, as the log writes to it.

The rule of this module: request lines never block the event loop; they wait in a bounded queue that a thread writes
out. Every other line is written at once, and after the request lines that were told before it, so the order of lines
is that of their events. What waits when a process is killed is lost: request lines of the last `FLUSH_S`.
"""

import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, TextIO

import structlog
from structlog.typing import FilteringBoundLogger

from gateway.telemetry.line_queue import BackgroundDrain, LineQueue

QUEUE_LINES: Final = 20_000
"""Request lines that may wait for a slow reader: about 3 s at 7,000 requests/s."""
WHOLE_BYTES: Final = 4096
"""What a pipe takes in one piece (PIPE_BUF): where several processes write to one pipe, no line of theirs is torn."""
CLOSE_S: Final = 5.0
"""How long the end of the process may wait for a reader that is stuck."""

log: Final[FilteringBoundLogger] = structlog.get_logger()


class LogStream:
    """Writes log lines to a text stream, which stays open.

    `put()` belongs to the event loop's thread, the rest to any. `write()` and `flush()` are what structlog asks of a
    file.
    """

    def __init__(self, stream: TextIO, *, capacity: int = QUEUE_LINES) -> None:
        self._stream: Final = stream
        self._queue: Final = LineQueue(_Pieces(stream), capacity=capacity, on_failure=_keep_quiet)
        self._lock: Final = threading.Lock()
        self._writer: BackgroundDrain | None = None
        self._told = 0
        """Dropped lines of which a line has told."""

    def put(self, line: bytes) -> None:
        """Let a line, with its newline, be written soon; it is dropped where too many wait."""
        if self._writer is None:
            self._writer = BackgroundDrain(self.drain)
        self._queue.put(line)

    def write(self, text: str) -> None:
        """Write what waits, then this. Raises OSError or ValueError as the stream does."""
        with self._lock:
            self._queue.drain()
            self._stream.write(text)
            self._stream.flush()

    def flush(self) -> None:
        """Write what waits."""
        with self._lock:
            self._queue.drain()

    def drain(self) -> None:
        """Write what waits, and say where lines were dropped."""
        self.flush()
        dropped = self._queue.dropped
        if dropped > self._told:
            # A stream that still fails is told later.
            with suppress(OSError, ValueError):
                log.warning("log.lines_dropped", lines=dropped - self._told)
                self._told = dropped

    def close(self) -> None:
        """Stop writing in the background and write what waits, unless the stream's reader is stuck."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.stop(CLOSE_S)


class _Pieces:
    """Writes lines in pieces that a pipe takes whole."""

    def __init__(self, stream: TextIO) -> None:
        self._stream: Final = stream

    def write(self, chunk: bytes) -> None:
        try:
            for piece in pieces(chunk):
                self._stream.write(piece.decode())
                self._stream.flush()
        except ValueError as error:
            # The stream is closed, or its encoding has no such letter.
            raise OSError(str(error)) from error

    def close(self) -> None:
        """The stream is not ours."""


def pieces(chunk: bytes) -> Iterator[bytes]:
    """Whole lines, as many at a time as fit into `WHOLE_BYTES`; a longer line comes alone."""
    begin = 0
    while begin < len(chunk):
        end = chunk.rfind(b"\n", begin, begin + WHOLE_BYTES) + 1 or chunk.index(b"\n", begin) + 1
        yield chunk[begin:end]
        begin = end


def _keep_quiet(_error: OSError) -> None:
    """A line about it would go to the same stream."""
