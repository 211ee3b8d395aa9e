"""The result table's row: one run, simulated or live.

The rule of this module: a row is flat and holds nothing that a repetition of a simulated run would change. Latencies
are over the requests that ended well, as in a `Summary`; unknown is None.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from gateway.core.types import Path
from loadtest.report.summary import NO_PATH, Percentiles, Summary

SIMULATED, LIVE = "simulated", "live"


class Coordinates(msgspec.Struct, frozen=True, kw_only=True):
    """Which run it was."""

    experiment: str
    workload: str
    fleet: str
    policy: str
    load: float
    """Multiple of the trace's rate."""
    slo: str
    seed: int


class Row(Coordinates, frozen=True, kw_only=True):
    """One run's figures; ratios are in [0,1]."""

    source: str
    """`simulated` or `live`."""
    key: str = ""
    """What the outcome depends on, as a hash; empty for live runs."""
    trace_hash: str = ""
    """Of the workload that was run: equal hashes are equal requests at equal times."""
    offered_per_s: float | None = None
    """Arrivals per second that come whatever the answers: requests in open loop and first turns of sessions."""
    slo_ttft_s: float | None
    slo_tpot_s: float | None
    asked: int
    completed: int
    failed: int
    cancelled: int
    duration_s: float
    attained_ratio: float | None
    requests_per_s: float
    goodput_per_s: float
    """Requests per second that met the SLO."""
    output_tokens_per_s: float
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    cached_ratio: float | None
    remote_ratio: float | None
    """Share of the remote path among the requests whose path is known."""
    ttft_mean_s: float | None
    ttft_p50_s: float | None
    ttft_p90_s: float | None
    ttft_p99_s: float | None
    tpot_mean_s: float | None
    tpot_p50_s: float | None
    tpot_p90_s: float | None
    tpot_p99_s: float | None
    e2e_mean_s: float | None
    e2e_p50_s: float | None
    e2e_p90_s: float | None
    e2e_p99_s: float | None
    itl_p99_p50_s: float | None
    itl_p99_p99_s: float | None
    """Over requests, of each one's 99th percentile gap."""
    lag_p99_s: float | None
    """How late the generator sent."""
    path_requests: dict[str, int]
    path_attained_ratio: dict[str, float | None]
    worker_requests: dict[str, int]
    errors: dict[str, int]


def to_row(
    where: Coordinates,
    summary: Summary,
    *,
    source: str = LIVE,
    key: str = "",
    trace_hash: str = "",
    offered_per_s: float | None = None,
) -> Row:
    """A run's row from its summary, which a simulated and a measured run (`Measurement.summary`) alike have."""
    figures: dict[str, Any] = {
        **msgspec.structs.asdict(where),
        **{name: getattr(summary, name) for name in Row.__struct_fields__ if name in Summary.__struct_fields__},
        **_spread("ttft", summary.ttft_s),
        **_spread("tpot", summary.tpot_s),
        **_spread("e2e", summary.e2e_s),
    }
    return Row(
        **figures,
        source=source,
        key=key,
        trace_hash=trace_hash,
        offered_per_s=offered_per_s,
        remote_ratio=_remote_ratio(summary),
        itl_p99_p50_s=None if summary.itl_p99_s is None else summary.itl_p99_s.p50,
        itl_p99_p99_s=None if summary.itl_p99_s is None else summary.itl_p99_s.p99,
        lag_p99_s=None if summary.lag_s is None else summary.lag_s.p99,
        path_requests={name: path.requests for name, path in summary.paths.items()},
        path_attained_ratio={name: path.attained_ratio for name, path in summary.paths.items()},
        worker_requests=summary.workers,
    )


def read_rows(content: bytes) -> list[Row]:
    """Rows from JSON Lines; raises `msgspec.MsgspecError` where a line is no row."""
    return msgspec.json.Decoder(Row).decode_lines(content)


def write_rows(rows: Sequence[Row]) -> bytes:
    """Rows as JSON Lines."""
    return msgspec.json.Encoder().encode_lines(rows)


def _spread(name: str, values: Percentiles | None) -> dict[str, float | None]:
    return {
        f"{name}_{point}_s": None if values is None else getattr(values, point)
        for point in ("mean", "p50", "p90", "p99")
    }


def _remote_ratio(summary: Summary) -> float | None:
    known = {name: path.requests for name, path in summary.paths.items() if name != NO_PATH}
    total = sum(known.values())
    return known.get(Path.REMOTE, 0) / total if total else None
