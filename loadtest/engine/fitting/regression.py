"""The numeric tools of the fit: errors are always relative to the measurement."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from policy_store.costs.file import Knots, Residual

Array = npt.NDArray[np.float64]

DIGITS = 5
"""Significant digits that a cost file keeps: more than any measurement has, fewer than a linear solver's noise."""


def rounded(value: float) -> float:
    """The value with as many digits as a cost file keeps."""
    return float(f"{value:.{DIGITS - 1}e}")


def relative_least_squares(features: Array, target: Array) -> Array:
    """Coefficients, one per column and none negative, that minimise the sum of squared relative errors."""
    return non_negative_least_squares(features / target[:, None], np.ones_like(target))


def non_negative_least_squares(matrix: Array, target: Array) -> Array:
    """The x >= 0 that minimises |matrix x - target| (Lawson and Hanson, 1974, algorithm NNLS)."""
    columns = matrix.shape[1]
    # Columns of one length: their units differ by many orders of magnitude.
    lengths = np.linalg.norm(matrix, axis=0)
    scaled = matrix / np.where(lengths > 0, lengths, 1.0)
    tolerance = 1e-10 * float(np.linalg.norm(target))
    free = np.zeros(columns, dtype=np.bool_)
    solution = np.zeros(columns)
    for _ in range(3 * columns):
        gradient = np.where(free, -np.inf, scaled.T @ (target - scaled @ solution))
        best = int(np.argmax(gradient))
        if gradient[best] <= tolerance:
            break
        free[best] = True
        solution = _descend(scaled, target, solution, free)
    return solution / np.where(lengths > 0, lengths, 1.0)


def _descend(matrix: Array, target: Array, solution: Array, free: npt.NDArray[np.bool_]) -> Array:
    """The best solution in the free columns; those that would go below zero are fixed there on the way."""
    while free.any():
        trial = np.zeros_like(solution)
        trial[free], *_ = np.linalg.lstsq(matrix[:, free], target, rcond=None)
        falling = free & (trial <= 0)
        if not falling.any():
            return trial
        way = float(np.min(solution[falling] / (solution[falling] - trial[falling])))
        solution = solution + way * (trial - solution)
        free &= ~(falling & (solution <= 1e-12 * max(1.0, float(np.max(solution)))))
        solution = np.where(free, solution, 0.0)
    return np.zeros_like(solution)


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
