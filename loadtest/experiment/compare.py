"""Policies against one another, over seeds.

The rule of this module: a seed is one sample. Intervals are Student's t at 95 % over the seeds' figures, and
differences are taken seed by seed, on the same requests; the figure of a seed may itself be a percentile.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from loadtest.experiment.rows import Row

CONFIDENCE = 0.95
METRICS = ("attained_ratio", "goodput_per_s", "ttft_p50_s", "ttft_p90_s", "tpot_p50_s", "tpot_p90_s")
"""What is compared unless asked otherwise: columns of `Row`."""


class UnpairedError(ValueError):
    """Rows that were to be compared are of different requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean over seeds and its interval, which takes two seeds at least."""

    mean: float
    low: float | None
    high: float | None
    seeds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One figure of one policy at one point, and how far it is from the baseline's."""

    experiment: str
    source: str
    workload: str
    fleet: str
    load: float
    slo: str
    metric: str
    policy: str
    baseline: str
    estimate: Estimate | None
    """None where no seed has the figure."""
    difference: Estimate | None
    """Policy less baseline, over the seeds where both have it; None for the baseline itself."""


def estimate(values: Iterable[float | None]) -> Estimate | None:
    """Mean and t interval of the values that are known; None without any."""
    known = np.array([value for value in values if value is not None], dtype=float)
    if not known.size:
        return None
    mean, seeds = float(known.mean()), int(known.size)
    if seeds < 2:
        return Estimate(mean=mean, low=None, high=None, seeds=seeds)
    spread = float(known.std(ddof=1)) / math.sqrt(seeds)
    half = float(stats.t.ppf((1.0 + CONFIDENCE) / 2.0, seeds - 1)) * spread
    return Estimate(mean=mean, low=mean - half, high=mean + half, seeds=seeds)


def compare(rows: Sequence[Row], baseline: str, *, metrics: Sequence[str] = METRICS) -> list[Comparison]:
    """Every policy at every point, in the order of the rows.

    Raises:
        UnpairedError: two rows of one point and seed have different requests.
    """
    return [
        _compared(policies, policy, baseline, metric)
        for policies in _points(rows).values()
        for metric in metrics
        for policy in policies
    ]


BySeed = dict[int, Row]
Point = tuple[str, str, str, str, float, str]


def _points(rows: Sequence[Row]) -> dict[Point, dict[str, BySeed]]:
    """Rows by point, policy and seed."""
    points: dict[Point, dict[str, BySeed]] = {}
    hashes: dict[tuple[Point, int], str] = {}
    for row in rows:
        point = (row.experiment, row.source, row.workload, row.fleet, row.load, row.slo)
        if hashes.setdefault((point, row.seed), row.trace_hash) != row.trace_hash:
            raise UnpairedError(f"{row.policy} had other requests than the rest of {point[2:]} with seed {row.seed}")
        points.setdefault(point, {}).setdefault(row.policy, {})[row.seed] = row
    return points


def _compared(policies: dict[str, BySeed], policy: str, baseline: str, metric: str) -> Comparison:
    own, other = policies[policy], policies.get(baseline, {})
    first = next(iter(own.values()))
    return Comparison(
        experiment=first.experiment,
        source=first.source,
        workload=first.workload,
        fleet=first.fleet,
        load=first.load,
        slo=first.slo,
        metric=metric,
        policy=policy,
        baseline=baseline,
        estimate=estimate(getattr(row, metric) for row in own.values()),
        difference=None if policy == baseline else _difference(own, other, metric),
    )


def _difference(own: BySeed, other: BySeed, metric: str) -> Estimate | None:
    pairs = [(getattr(own[seed], metric), getattr(other[seed], metric)) for seed in own if seed in other]
    return estimate(mine - theirs for mine, theirs in pairs if mine is not None and theirs is not None)
