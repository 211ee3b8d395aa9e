"""What can be said of a trace before it is served.

The rule of this module: it counts what the trace says and models no server; the cache is endless.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadtest.traces.types import TraceRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Percentiles and mean of one length, in tokens."""

    p50: float
    p90: float
    p99: float
    mean: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceStatistics:
    """A trace in figures."""

    requests: int
    rate_rps: float
    """Requests by the time of the last arrival."""
    gap_cv: float
    """Standard deviation of the gaps between arrivals by their mean: 1 for Poisson arrivals."""
    isl_tokens: Shape
    osl_tokens: Shape
    reuse_ratio: float
    """Share of the prompts' blocks that an earlier prompt had; 0 where no block has an id."""


def describe(requests: Sequence[TraceRequest]) -> TraceStatistics:
    """The statistics of a trace of at least two requests, in order of arrival."""
    arrivals_s = np.array([one.arrival_s for one in requests])
    gaps_s = np.diff(arrivals_s)
    return TraceStatistics(
        requests=len(requests),
        rate_rps=float(len(requests) / arrivals_s[-1]),
        gap_cv=float(np.std(gaps_s) / np.mean(gaps_s)),
        isl_tokens=_shape([one.input_tokens for one in requests]),
        osl_tokens=_shape([one.output_tokens for one in requests]),
        reuse_ratio=_reuse_ratio(requests),
    )


def _shape(lengths: Sequence[int]) -> Shape:
    p50, p90, p99 = np.percentile(lengths, (50, 90, 99)).tolist()
    return Shape(p50=p50, p90=p90, p99=p99, mean=float(np.mean(lengths)))


def _reuse_ratio(requests: Sequence[TraceRequest]) -> float:
    seen: set[int] = set()
    hits = blocks = 0
    for one in requests:
        # Ids are chained: those that were seen come first, so their number can be searched for.
        known = bisect_left(one.hash_ids, True, key=lambda block: block not in seen)
        hits += known
        blocks += len(one.hash_ids)
        seen.update(one.hash_ids[known:])
    return hits / blocks if blocks else 0.0
