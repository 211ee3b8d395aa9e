"""Non-negative least squares, and a robust version of it."""

import numpy as np
import numpy.typing as npt

from loadtest.engine.fitting.regression import Array

_HUBER = 1.5
_MAD_TO_SIGMA = 1.4826
_LEAST_ERROR = 0.002
"""Errors of this size are never outliers: the table itself keeps no more digits that matter."""
_REWEIGHTINGS = 10


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


def robust_non_negative(matrix: Array, target: Array, *, scale: Array) -> Array:
    """The x >= 0 whose errors relative to `scale` (all positive) are small; large ones count linearly (Huber)."""
    relative, wanted = matrix / scale[:, None], target / scale
    weights = np.ones_like(target)
    solution = np.zeros(matrix.shape[1])
    for _ in range(_REWEIGHTINGS):
        root = np.sqrt(weights)
        solution = non_negative_least_squares(relative * root[:, None], wanted * root)
        errors = np.abs(relative @ solution - wanted)
        usual = max(_LEAST_ERROR, _MAD_TO_SIGMA * float(np.median(errors)))
        weights = np.minimum(1.0, _HUBER * usual / np.maximum(errors, 1e-12))
    return solution
