"""What a run comes to.

The rule of this module: pure, from records and an SLO to figures. Percentiles interpolate linearly between the
closest ranks (numpy's default, and what `vllm bench serve` prints), over the requests that ended well; attainment
is over all that can be judged, failures counted as missed.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from gateway.core.types import SloTarget
from loadtest.client.records import Record
from loadtest.report.slo import met_slo

NO_PATH = "unknown"
"""The path of requests whose answer did not name one."""


class Percentiles(msgspec.Struct, frozen=True, kw_only=True):
    """A distribution in seconds, over `count` requests."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float


class PathSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of one path."""

    requests: int
    attained_ratio: float | None
    ttft_s: Percentiles | None
    tpot_s: Percentiles | None


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """One run's figures; ratios are in [0,1], None where nothing could be measured."""

    asked: int
    """Requests that the run was to send."""
    completed: int
    failed: int
    cancelled: int
    """Under way when the run was stopped."""
    duration_s: float
    """From the first scheduled arrival to the end of the last answer."""
    slo_ttft_s: float | None
    slo_tpot_s: float | None
    attained_ratio: float | None
    ttft_s: Percentiles | None
    tpot_s: Percentiles | None
    itl_p99_s: Percentiles | None
    """Over requests, of each one's 99th percentile gap between content events."""
    e2e_s: Percentiles | None
    lag_s: Percentiles | None
    """How late the generator sent, over all requests that were sent."""
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    cached_ratio: float | None
    """Cached share of the input tokens of requests whose usage tells both."""
    requests_per_s: float
    output_tokens_per_s: float
    goodput_per_s: float
    """Requests per second that met the SLO."""
    paths: dict[str, PathSummary]
    workers: dict[str, int]
    errors: dict[str, int]
    """Failures by kind."""


def summarise(records: Sequence[Record], slo: SloTarget, *, asked: int | None = None) -> Summary:
    """The figures of a run; `asked` is how many requests it was to send, if more than there are records."""
    ok = [record for record in records if record.ok]
    cancelled = [record for record in records if record.cancelled]
    verdicts = [met_slo(record, slo) for record in records]
    duration_s = _duration_s(records)
    output_tokens = _known_sum(record.output_tokens for record in records)
    return Summary(
        asked=len(records) if asked is None else asked,
        completed=len(ok),
        failed=len(records) - len(ok) - len(cancelled),
        cancelled=len(cancelled),
        duration_s=duration_s,
        slo_ttft_s=slo.ttft_s,
        slo_tpot_s=slo.tpot_s,
        attained_ratio=_attained_ratio(verdicts),
        ttft_s=percentiles(record.ttft_s for record in ok),
        tpot_s=percentiles(record.tpot_s for record in ok),
        itl_p99_s=percentiles(record.itl_p99_s for record in ok),
        e2e_s=percentiles(record.e2e_s for record in ok),
        lag_s=percentiles(record.lag_s for record in records),
        input_tokens=_known_sum(record.input_tokens for record in records),
        cached_tokens=_known_sum(record.cached_tokens for record in records),
        output_tokens=output_tokens,
        cached_ratio=_cached_ratio(records),
        requests_per_s=_per_second(len(ok), duration_s),
        output_tokens_per_s=_per_second(output_tokens, duration_s),
        goodput_per_s=_per_second(sum(verdict is True for verdict in verdicts), duration_s),
        paths=_by_path(records, slo),
        workers=dict(sorted(Counter(record.worker for record in records if record.worker).items())),
        errors=dict(Counter(r.error_kind for r in records if r.error_kind and not r.cancelled).most_common()),
    )


def percentiles(values: Iterable[float | None]) -> Percentiles | None:
    """Of the values that are known; None without any."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    p50, p90, p99 = np.percentile(known, (50, 90, 99)).tolist()
    return Percentiles(count=len(known), mean=sum(known) / len(known), p50=p50, p90=p90, p99=p99)


def _by_path(records: Sequence[Record], slo: SloTarget) -> dict[str, PathSummary]:
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record.path or NO_PATH, []).append(record)
    return {path: _path_summary(group, slo) for path, group in sorted(groups.items())}


def _path_summary(records: Sequence[Record], slo: SloTarget) -> PathSummary:
    return PathSummary(
        requests=len(records),
        attained_ratio=_attained_ratio([met_slo(record, slo) for record in records]),
        ttft_s=percentiles(record.ttft_s for record in records if record.ok),
        tpot_s=percentiles(record.tpot_s for record in records if record.ok),
    )


def _attained_ratio(verdicts: Sequence[bool | None]) -> float | None:
    judged = [verdict for verdict in verdicts if verdict is not None]
    return sum(judged) / len(judged) if judged else None


def _cached_ratio(records: Sequence[Record]) -> float | None:
    told = [(r.input_tokens, r.cached_tokens) for r in records if r.input_tokens and r.cached_tokens is not None]
    if not told:
        return None
    return sum(cached for _, cached in told) / sum(tokens for tokens, _ in told)


def _duration_s(records: Sequence[Record]) -> float:
    ends_s = [record.scheduled_s + record.e2e_s for record in records if record.e2e_s is not None]
    return max(ends_s) - min(record.scheduled_s for record in records) if ends_s else 0.0


def _per_second(amount: float, duration_s: float) -> float:
    return amount / duration_s if duration_s > 0 else 0.0


def _known_sum(values: Iterable[int | None]) -> int:
    return sum(value for value in values if value is not None)
