"""The decision log: what was decided for every request and what came of it.

The rule of this module: one record per request, encoded once, as it ends. It goes to a bounded queue that a thread
writes out, and the newest ones stay in memory to be explained by id.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Final

from gateway.core.types import Decision, DecisionId, Outcome, Refusal, RequestId
from gateway.telemetry.line_queue import BackgroundDrain, LineQueue
from gateway.telemetry.rotation import Opener, RotatingFile, log_files, open_append
from gateway.wire.decision_record import DecisionRecord, RecordEncoder, decode_record, decode_records

QUEUE_RECORDS: Final = 20_000
"""Records that may wait for the disk: about 3 s at 7,000 requests/s."""
RING_RECORDS: Final = 10_000
"""Decisions kept in memory."""
MAX_BYTES: Final = 256 * 1024 * 1024
KEEP_FILES: Final = 4


class DecisionRing:
    """The newest decisions' records by id.

    They are kept encoded: as objects, thousands of candidates would weigh on every garbage collection.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity: Final = capacity
        self._lines: Final[OrderedDict[DecisionId, bytes]] = OrderedDict()

    def add(self, decision_id: DecisionId, line: bytes) -> None:
        """Keep a record and forget the oldest where there is no room."""
        self._lines[decision_id] = line
        if len(self._lines) > self._capacity:
            self._lines.popitem(last=False)

    def get(self, decision_id: DecisionId) -> DecisionRecord | None:
        """The record, or None where it is unknown or already forgotten."""
        line = self._lines.get(decision_id)
        return None if line is None else decode_record(line)

    def newest(self, limit: int) -> list[bytes]:
        """The newest records as lines, newest first."""
        return list(islice(reversed(self._lines.values()), limit))


class DecisionLog:
    """Keeps the newest decisions, and writes every record to the file at `path` where one is given.

    Every `append()` is written exactly once or counted as dropped. `wall_clock` gives seconds since 1970.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        max_bytes: int = MAX_BYTES,
        keep_files: int = KEEP_FILES,
        queue_records: int = QUEUE_RECORDS,
        ring_records: int = RING_RECORDS,
        wall_clock: Callable[[], float] = time.time,
        opener: Opener = open_append,
    ) -> None:
        self._ring: Final = DecisionRing(ring_records)
        self._wall_clock: Final = wall_clock
        self._encoder: Final = RecordEncoder()
        self._queue: LineQueue | None = None
        self._writer: BackgroundDrain | None = None
        if path is not None:
            file = RotatingFile(path, max_bytes=max_bytes, keep=keep_files, opener=opener)
            self._queue = LineQueue(file, capacity=queue_records)

    @property
    def written(self) -> int:
        """Records written to the file."""
        return self._queue.written if self._queue is not None else 0

    @property
    def dropped(self) -> int:
        """Records lost to a full queue or to a failing disk."""
        return self._queue.dropped if self._queue is not None else 0

    def start(self) -> None:
        """Begin to write in the background; without a file there is nothing to do."""
        if self._queue is not None and self._writer is None:
            self._writer = BackgroundDrain(self._queue.drain)

    def close(self) -> None:
        """Stop the background writer, write what is left and close the file; blocks while it writes."""
        if self._writer is not None:
            self._writer.stop()
            self._writer = None
        if self._queue is not None:
            self._queue.close()

    def append(
        self,
        routed: Decision | Refusal | None,
        outcome: Outcome,
        *,
        request_id: RequestId,
        model: str | None,
    ) -> None:
        """Record a request that has just ended; called exactly once per request, however it ended.

        `routed` is the last decision, or the core's refusal, or None where the request never got to the core.
        """
        decision, refusal = (routed, None) if isinstance(routed, Decision) else (None, routed)
        record = DecisionRecord(
            request_id=request_id,
            arrived_at_s=self._wall_clock() - outcome.duration_s,
            model=model,
            decision=decision,
            refusal=refusal,
            outcome=outcome,
        )
        line = self._encoder.encode(record)
        if decision is not None:
            self._ring.add(decision.decision_id, line)
        if self._queue is not None:
            self._queue.put(line)

    def get(self, decision_id: DecisionId) -> DecisionRecord | None:
        """The record of a decision among the newest ones, else None."""
        return self._ring.get(decision_id)

    def newest(self, limit: int) -> list[bytes]:
        """The newest decisions' records as JSON lines, newest first."""
        return self._ring.newest(limit)


def read_decision_log(path: Path) -> Iterator[DecisionRecord]:
    """The records of a log and of its rotated files, oldest first; a last line cut short is skipped.

    Raises DecisionLogError for a line of another schema or that is not a record. Read a log at rest or a copy: one
    that rotates meanwhile may give records twice or leave some out.
    """
    return chain.from_iterable(map(_read_file, log_files(path)))


def _read_file(path: Path) -> Iterator[DecisionRecord]:
    with path.open("rb") as lines:
        yield from decode_records(lines)
