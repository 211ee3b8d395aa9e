"""The numeric tools of the fit: errors are always relative to the measurement."""

from collections.abc import Iterable
from itertools import chain, combinations

import numpy as np
import numpy.typing as npt

from loadtest.engine.cost_file import Knots, Residual

Array = npt.NDArray[np.float64]

DIGITS = 5
"""Significant digits that a cost file keeps: more than any measurement has, fewer than a linear solver's noise."""


def rounded(value: float) -> float:
    """The value with as many digits as a cost file keeps."""
    return float(f"{value:.{DIGITS - 1}e}")


def relative_least_squares(features: Array, target: Array) -> Array:
    """Coefficients, one per column and none negative, that minimise the sum of squared relative errors.

    With few columns the best can be had by trying: of the solutions that set some coefficients to zero and are best
    in the others, it is the best one that is not negative.
    """
    weighted = features / target[:, None]
    columns = range(features.shape[1])
    subsets = chain.from_iterable(combinations(columns, size) for size in range(len(columns), 0, -1))
    best, least_error = np.zeros(len(columns)), float(len(target))
    for subset in map(list, subsets):
        solution, *_ = np.linalg.lstsq(weighted[:, subset], np.ones_like(target), rcond=None)
        error = float(np.sum((weighted[:, subset] @ solution - 1) ** 2))
        if error < least_error and np.all(solution >= 0):
            best, least_error = np.zeros(len(columns)), error
            best[subset] = solution
            if len(subset) == len(columns):
                break
    return best


def isotonic(values: Iterable[float]) -> tuple[float, ...]:
    """The closest never falling sequence, by pooling adjacent violators."""
    pools: list[tuple[float, int]] = []
    for value in values:
        mean, size = value, 1
        while pools and pools[-1][0] > mean:
            left, count = pools.pop()
            mean, size = (left * count + mean * size) / (count + size), count + size
        pools.append((mean, size))
    return tuple(mean for mean, size in pools for _ in range(size))


def residual(term: str, against: str, measured: dict[int, float], knots: Knots) -> Residual:
    """How far the line through `knots` lies from the measured points."""
    predicted = np.interp(list(measured), knots.at, knots.seconds)
    return residual_of(term, against, np.array(list(measured.values())), predicted)


def residual_of(term: str, against: str, measured: Array, predicted: Array) -> Residual:
    """How far each prediction lies from its measurement."""
    errors = np.abs(predicted - measured) / measured
    return Residual(
        term=term,
        against=against,
        points=len(errors),
        median=round(float(np.median(errors)), 4),
        p90=round(float(np.quantile(errors, 0.9)), 4),
    )
