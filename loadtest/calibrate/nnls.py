"""Non-negative least squares that outliers do not bend."""

import numpy as np

from loadtest.engine.fitting.regression import Array, non_negative_least_squares

_HUBER = 1.5
_MAD_TO_SIGMA = 1.4826
_LEAST_ERROR = 0.002
"""Errors of this size are never outliers: the table itself keeps no more digits that matter."""
_REWEIGHTINGS = 10


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
