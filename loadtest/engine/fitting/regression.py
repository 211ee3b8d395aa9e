"""The numeric tools of the fit: errors are always relative to the measurement."""

from collections.abc import Iterable
from typing import cast

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
    """Coefficients, one per column, that minimise the sum of squared relative errors.

    Raises:
        ValueError: a coefficient is negative, so the terms do not describe these measurements.
    """
    weights = 1 / target
    solution, *_ = np.linalg.lstsq(features * weights[:, None], np.ones_like(target), rcond=None)
    if np.any(solution < 0):
        raise ValueError(f"negative cost in {solution}")
    return cast("Array", solution)


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
