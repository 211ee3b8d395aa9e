"""What is known of one request after a run.

The rule of this module: one schema for live and simulated runs. Times are seconds of the run's clock;
latencies count from the *scheduled* arrival, so a request that was sent late is charged for it. Unknown is
None.
"""

from collections.abc import Iterable
from pathlib import Path

import msgspec

CANCELLED = "cancelled"
"""The error of a request that was under way when the run was stopped."""


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request of a run, as its client saw it."""

    request_id: str
    index: int
    """Position in the trace."""
    scheduled_s: float
    """When the trace says that it arrives, from the start of the run."""
    sent_s: float | None = None
    """When its last byte was handed to the socket."""
    lag_s: float | None = None
    """`sent_s` - `scheduled_s`: the generator's delay, connecting included."""
    status: int | None = None
    """HTTP status, where an answer began."""
    ok: bool = False
    """Answered with 200 and streamed to its proper end."""
    error: str | None = None
    """`kind` or `kind: detail`; see `error_kind`."""
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    """Token counts are those of the answer's `usage`."""
    ttft_s: float | None = None
    """First event with content; the role-only event is not it."""
    tpot_s: float | None = None
    """(last - first content) / (output tokens - 1); None under two tokens."""
    itl_max_s: float | None = None
    itl_p99_s: float | None = None
    itl_count: int = 0
    """Gaps between events with content, over which the two above are taken."""
    e2e_s: float | None = None
    """End of the answer, or of the attempt where there was none."""
    path: str | None = None
    worker: str | None = None
    policy: str | None = None
    decision_id: str | None = None
    """These four come from Tidegate's response headers; other gateways have none."""

    @property
    def error_kind(self) -> str | None:
        """The error without its detail.

        One of `connect`, `disconnected`, `protocol`, `timeout`, `truncated`, `stream_error`, `cancelled` and
        `http_` with the status.
        """
        return None if self.error is None else self.error.partition(":")[0]

    @property
    def cancelled(self) -> bool:
        """True where the run was stopped before the answer ended: neither a success nor a failure."""
        return self.error_kind == CANCELLED


def scaled(record: Record, factor: float) -> Record:
    """The same record with all its times multiplied."""
    if factor == 1.0:
        return record
    times = {
        name: value * factor
        for name in record.__struct_fields__
        if name.endswith("_s") and (value := getattr(record, name)) is not None
    }
    return msgspec.structs.replace(record, **times)


def write_records(path: Path, records: Iterable[Record]) -> None:
    """Writes JSON Lines, one record a line."""
    with path.open("wb") as file:
        file.writelines(msgspec.json.encode(record) + b"\n" for record in records)


def read_records(path: Path) -> list[Record]:
    """Reads what `write_records` wrote; raises `msgspec.MsgspecError` where a line is no record."""
    decoder = msgspec.json.Decoder(Record)
    with path.open("rb") as file:
        return [decoder.decode(line) for line in file if line.strip()]
