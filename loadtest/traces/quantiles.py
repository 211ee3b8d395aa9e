"""Distributions given as quantile knots.

The rule of this module: a distribution is its inverse CDF at a few probabilities, and between two of them the
logarithm of the value is linear in the probability.
"""

import math
from bisect import bisect_right
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Knots = tuple[tuple[float, float], ...]
"""A distribution as (probability, value) pairs that rise from probability 0 to 1: its inverse CDF."""

Floats = NDArray[np.float64]


@lru_cache(maxsize=1_024)
def _table(knots: Knots) -> tuple[list[float], list[float]]:
    return [probability for probability, _ in knots], [math.log(value) for _, value in knots]


def value(knots: Knots, probability: float) -> float:
    """The value at one probability; values must be above 0."""
    probabilities, logs = _table(knots)
    above = min(max(1, bisect_right(probabilities, probability)), len(logs) - 1)
    low, high = probabilities[above - 1], probabilities[above]
    share = (probability - low) / (high - low)
    return math.exp(logs[above - 1] + share * (logs[above] - logs[above - 1]))


def values(knots: Knots, probabilities: Floats) -> Floats:
    """The values at many probabilities, as an array of the same shape."""
    return np.exp(np.interp(probabilities, *_table(knots)))


def lengths(knots: Knots, probabilities: Floats) -> list[int]:
    """The values as whole numbers of at least 1."""
    return np.maximum(1, np.rint(values(knots, probabilities))).astype(int).tolist()  # type: ignore[no-any-return]


def evenly_spaced(knot_values: list[float]) -> Knots:
    """Knots at evenly spaced probabilities from 0 to 1; values below 1 count as 1."""
    probabilities = np.linspace(0.0, 1.0, len(knot_values)).tolist()
    return tuple(zip(probabilities, np.maximum(1.0, knot_values).tolist(), strict=True))
