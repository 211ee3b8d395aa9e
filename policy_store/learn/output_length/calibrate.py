"""Calibrations of two parameters, which cannot change an order.

The rule of this module: what is calibrated was predicted for rows that the model had not seen, and a slope is never
below `MIN_SLOPE`.
"""

import numpy as np

from gateway.core.output_length.predictor import Line
from policy_store.learn.output_length.rows import Floats

MIN_SLOPE = 0.05
_STEPS = 50
_MAX_STEP = 1.0
_RIDGE = 1.0
"""Evidence for a slope of 1, in rows; and half a row on each side of the odds."""


def fit_odds(margins: Floats, happened: Floats) -> Line:
    """Platt's logistic calibration of a margin: maximum likelihood with a weak prior, by Newton's steps."""
    center = float(margins.mean())
    inputs = np.column_stack((np.ones_like(margins), margins - center))
    share = (happened.sum() + 0.5) / (len(happened) + 1.0)
    at = np.array([np.log(share / (1.0 - share)), 1.0])
    for _ in range(_STEPS):
        chance = 1.0 / (1.0 + np.exp(-np.clip(inputs @ at, -30.0, 30.0)))
        gradient = inputs.T @ (happened - chance) + np.array([_RIDGE * (0.5 - _chance(at[0])), _RIDGE * (1.0 - at[1])])
        curvature = (inputs.T * (chance * (1.0 - chance))) @ inputs + _RIDGE * np.eye(2)
        at = at + np.clip(np.linalg.solve(curvature, gradient), -_MAX_STEP, _MAX_STEP)
    slope = max(MIN_SLOPE, float(at[1]))
    return Line(intercept=float(at[0]) - slope * center, slope=slope)


def _chance(logit: float) -> float:
    return float(1.0 / (1.0 + np.exp(-logit)))


def fit_mean(log_tokens: Floats, tokens: Floats) -> Line:
    """exp(line) estimates the mean: quasi-Poisson regression, whose predictions add up to what was seen."""
    center = float(np.average(log_tokens))
    inputs = np.column_stack((np.ones_like(log_tokens), log_tokens - center))
    scale = float(tokens.mean())
    at = np.array([np.log(max(1.0, scale)), 1.0])
    for _ in range(_STEPS):
        mean = np.exp(np.clip(inputs @ at, -10.0, 14.0)) / scale
        gradient = inputs.T @ (tokens / scale - mean) - np.array([0.0, _RIDGE * (at[1] - 1.0)])
        curvature = (inputs.T * mean) @ inputs + np.diag([0.0, _RIDGE])
        step = np.linalg.solve(curvature, gradient)
        at = at + np.clip(step, -_MAX_STEP, _MAX_STEP)
    slope = max(MIN_SLOPE, float(at[1]))
    # Whatever the slope, predictions add up.
    intercept = float(np.log(tokens.sum() / np.exp(slope * (log_tokens - center)).sum()))
    return Line(intercept=intercept - slope * center, slope=slope)
