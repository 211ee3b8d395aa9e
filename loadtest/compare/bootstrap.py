"""Intervals of figures and of their differences, by resampling requests and seeds.

The rule of this module: all arms are resampled alike, so differences are paired request by request. A draw takes seeds
with replacement, and blocks of consecutive requests with replacement, the same blocks of every seed. Seeds of a
recorded trace differ in when requests come, not in which: seeds alone would say nothing of the luck of the traffic.
And requests that wait in one queue share their fate, so single ones are no independent samples. Intervals are
percentiles.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadtest.compare.serving import Floats, Served

CONFIDENCE = 0.95
BLOCKS = 30
"""Of each half: some twenty to thirty seconds each at a few requests per second."""
LATENCIES = {
    "ttft_p50_s": ("ttft_s", 0.5),
    "ttft_p90_s": ("ttft_s", 0.9),
    "tpot_p50_s": ("tpot_s", 0.5),
    "tpot_p90_s": ("tpot_s", 0.9),
}
SHARES = {"attained_ratio": "met", "local_ratio": "local"}
METRICS = ("attained_ratio", *LATENCIES, "local_ratio")
"""Of every arm, in the order of reports."""
JUDGED = METRICS[:-1]
"""Those that are better or worse."""


class Interval(msgspec.Struct, frozen=True):
    """A figure of all seeds together and its 95 % interval."""

    value: float
    low: float
    high: float

    def shifted(self, factor: float) -> "Interval":
        """In another unit."""
        return Interval(self.value * factor, self.low * factor, self.high * factor)


@dataclass(frozen=True, slots=True)
class Resampled:
    """An arm's figures: as they are, and by draw."""

    values: Mapping[str, float]
    draws: Mapping[str, Floats]

    def interval(self, metric: str) -> Interval:
        """Of one figure."""
        return interval_of(self.values[metric], self.draws[metric])

    def beside(self, other: "Resampled", metric: str) -> Interval:
        """Less the other's: a share in points (0.01 is one), a latency as a share of the other's."""
        if metric in SHARES:
            value, drawn = self.values[metric] - other.values[metric], self.draws[metric] - other.draws[metric]
        else:
            value = relative(self.values[metric], other.values[metric])
            drawn = np.array([relative(*pair) for pair in zip(self.draws[metric], other.draws[metric], strict=True)])
        return interval_of(value, drawn)


def resampled(arms: Mapping[str, Sequence[Served]], *, draws: int, seed: int = 0) -> dict[str, Resampled]:
    """All arms' figures, drawn alike; each arm has one run per seed, of equal requests.

    Raises:
        ValueError: runs have different numbers of requests, or arms of seeds.
    """
    shapes = {(len(runs), tuple(len(run.met) for run in runs)) for runs in arms.values()}
    if len(shapes) != 1 or len({*next(iter(shapes))[1]}) != 1:
        raise ValueError("arms are compared on the same requests and seeds")
    seeds, (requests, *_) = next(iter(shapes))
    rng = np.random.default_rng(seed)
    weights = [np.ones(seeds * requests), *(_weights(rng, seeds, requests) for _ in range(draws))]
    found = {}
    for name, runs in arms.items():
        figures = _figures(runs, weights)
        found[name] = Resampled(
            {metric: float(row[0]) for metric, row in figures.items()},
            {metric: row[1:] for metric, row in figures.items()},
        )
    return found


def _weights(rng: np.random.Generator, seeds: int, requests: int) -> Floats:
    """How often each request of each seed is drawn, flat."""
    blocks = min(BLOCKS, requests)
    of_seed = rng.multinomial(seeds, np.full(seeds, 1.0 / seeds))
    of_block = rng.multinomial(blocks, np.full(blocks, 1.0 / blocks))
    of_request = of_block[np.arange(requests) * blocks // requests]
    return np.outer(of_seed, of_request).ravel().astype(float)


def _figures(runs: Sequence[Served], weights: Sequence[Floats]) -> dict[str, Floats]:
    """Every metric by draw."""
    figures: dict[str, Floats] = {}
    for metric, column in SHARES.items():
        flags = np.concatenate([getattr(run, column) for run in runs])
        figures[metric] = np.array([float(each @ flags / each.sum()) for each in weights])
    for column in dict.fromkeys(column for column, _ in LATENCIES.values()):
        values = np.concatenate([getattr(run, column) for run in runs])
        order = np.flatnonzero(~np.isnan(values))
        order = order[np.argsort(values[order], kind="stable")]
        ranked = values[order]
        shares = {metric: share for metric, (of, share) in LATENCIES.items() if of == column}
        rows = np.array([quantiles_of(ranked, each[order], [*shares.values()]) for each in weights])
        figures |= {metric: rows[:, place] for place, metric in enumerate(shares)}
    return figures


def quantiles_of(ranked: Floats, weights: Floats, shares: Sequence[float]) -> Floats:
    """Weighted quantiles of rising values: the first value up to which a share of the weight lies; NaN without any."""
    reached = np.cumsum(weights)
    if not reached.size or reached[-1] == 0:
        return np.full(len(shares), np.nan)
    # A hair less: the sum that should be reached exactly may come out a rounding error above.
    places: NDArray[np.int_] = np.searchsorted(reached, np.array(shares) * reached[-1] * (1.0 - 1e-12))
    return ranked[np.minimum(places, len(ranked) - 1)]


def relative(own: float, other: float) -> float:
    """As a share of the other, less 1."""
    if own == other:
        return 0.0
    return own / other - 1.0 if other else float("inf")


def interval_of(value: float, drawn: Floats) -> Interval:
    """A value, and between what its draws lie."""
    known = drawn[~np.isnan(drawn)]
    if not known.size:
        return Interval(value, value, value)
    tail = (1.0 - CONFIDENCE) / 2.0
    low, high = np.quantile(known, (tail, 1.0 - tail), method="inverted_cdf")
    return Interval(value, float(low), float(high))
