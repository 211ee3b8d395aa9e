"""Figures of arms with their intervals, and how they compare.

The rule of this module: all arms are resampled alike: seeds with replacement, and blocks of consecutive conversations
with replacement, the same blocks of every seed. Energy is known of whole runs and resampled by seed alone. Intervals
are percentiles.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadtest.compare.bootstrap import Interval, interval_of, quantiles_of, relative
from loadtest.conserve.serving import Served

Floats = NDArray[np.float64]

BLOCKS = 20
QUANTILES = {
    "ttfet_p50_s": ("ttfet_s", 0.5),
    "ttfet_p95_s": ("ttfet_s", 0.95),
    "last_tbt_p50_s": ("last_tbt_s", 0.5),
    "last_tbt_p95_s": ("last_tbt_s", 0.95),
}
METRICS = (*QUANTILES, "attained_ratio", "energy_j", "transfers_mean")
POINTS = ("attained_ratio", "transfers_mean")
"""Compared by difference; all others as a share of the other's."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """An arm's figures: as they are first, then by draw."""

    rows: Mapping[str, Floats]

    def interval(self, metric: str) -> Interval:
        """Of one figure."""
        row = self.rows[metric]
        return interval_of(float(row[0]), row[1:])

    def beside(self, other: "Drawn", metric: str) -> Interval:
        """Less the other's, or as a share of it less 1; see `POINTS`."""
        own, its = self.rows[metric], other.rows[metric]
        if metric in POINTS:
            row = own - its
        else:
            row = np.array([relative(*pair) for pair in zip(own.tolist(), its.tolist(), strict=True)])
        return interval_of(float(row[0]), row[1:])


def drawn(arms: Mapping[str, Sequence[Served]], *, draws: int, seed: int = 0) -> dict[str, Drawn]:
    """All arms' figures, drawn alike; each arm has one run per seed, of equal conversations.

    Raises:
        ValueError: runs have different numbers of conversations.
    """
    shapes = {tuple(len(run.turns) for run in runs) for runs in arms.values()}
    if len(shapes) != 1:
        raise ValueError("arms are compared on the same conversations and seeds")
    counts = next(iter(shapes))
    rng = np.random.default_rng(seed)
    weights = [(np.ones(len(counts)), np.ones(sum(counts)))]
    weights += [_weights(rng, counts) for _ in range(draws)]
    return {name: Drawn(_rows(runs, weights)) for name, runs in arms.items()}


def _weights(rng: np.random.Generator, counts: Sequence[int]) -> tuple[Floats, Floats]:
    """How often each seed is drawn, and each conversation of all seeds."""
    of_seed = rng.multinomial(len(counts), np.full(len(counts), 1.0 / len(counts))).astype(float)
    of_block = rng.multinomial(BLOCKS, np.full(BLOCKS, 1.0 / BLOCKS))
    each = [times * of_block[np.arange(count) * BLOCKS // count] for times, count in zip(of_seed, counts, strict=True)]
    return of_seed, np.concatenate(each)


def _rows(runs: Sequence[Served], weights: Sequence[tuple[Floats, Floats]]) -> dict[str, Floats]:
    """Every metric by draw."""
    rows: dict[str, Floats] = {}
    for metric, (column, share) in QUANTILES.items():
        values = np.concatenate([np.array(getattr(run, column), dtype=float) for run in runs])
        order = np.flatnonzero(~np.isnan(values))
        order = order[np.argsort(values[order], kind="stable")]
        rows[metric] = np.array([quantiles_of(values[order], each[order], [share])[0] for _, each in weights])
    met, turns, transfers = (
        np.concatenate([np.array(getattr(run, name), dtype=float) for run in runs])
        for name in ("met", "turns", "transfers")
    )
    rows["attained_ratio"] = np.array([each @ met / (each @ turns) for _, each in weights])
    rows["transfers_mean"] = np.array([each @ transfers / each.sum() for _, each in weights])
    energy_j = np.array([run.energy_j for run in runs])
    conversations = np.array([len(run.turns) for run in runs], dtype=float)
    rows["energy_j"] = np.array([each @ energy_j / (each @ conversations) for each, _ in weights])
    return rows
