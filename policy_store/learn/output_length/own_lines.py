"""Fits each language model's own line: a regression of few parameters, drawn towards what all models share.

The rule of this module: how far a line is drawn, and whether there is one at all, inner folds of the training rows
decide, for each model by itself; a line is judged by rows that it was not fitted on.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gateway.core.output_length.own_line import OwnLine
from policy_store.learn.output_length.rows import Floats, Indexes

MIN_SLOPE = 0.05
_STEPS = 25
_MAX_STEP = 1.0
_CLOSE = 1e-6
_MAX_LOGIT = 30.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shared:
    """What all models' rows are told together, for rows that it was not learned from."""

    margins: Floats
    answers: Floats
    """Zero or one where `odds`, else logarithms."""
    positions: Floats
    """n x 3, of `own_line.position`; NaN where one is not known."""
    fold: Indexes
    groups: Indexes
    """Numbers; rows of one are no independent witnesses."""
    odds: bool

    def take(self, chosen: Indexes) -> "Shared":
        """The rows of positions, in that order."""
        return Shared(
            margins=self.margins[chosen],
            answers=self.answers[chosen],
            positions=self.positions[chosen],
            fold=self.fold[chosen],
            groups=self.groups[chosen],
            odds=self.odds,
        )


def own_line(rows: Shared, priors: Sequence[float]) -> tuple[OwnLine | None, Floats]:
    """One model's line, and its margins for rows that each such line did not see.

    A prior is in rows: so many speak for the shared margin. There is no line, and the margins are as they were, where
    the best one's gain on unseen rows is within one standard error of none.
    """
    without = _losses(rows, rows.margins)
    best, unseen, least = None, rows.margins, without
    for prior in priors:
        found = _unseen(rows, prior)
        losses = _losses(rows, found)
        if losses.sum() < least.sum():
            best, unseen, least = prior, found, losses
    if best is None or not _is_gain(without - least, rows.groups):
        return None, rows.margins
    return _fitted(rows, best), unseen


def _is_gain(gains: Floats, groups: Indexes) -> bool:
    """Whether gains add up to more than a standard error of their sum."""
    _, group = np.unique(groups, return_inverse=True)
    by_group = np.bincount(group, weights=gains)
    return float(by_group.sum()) > float(by_group.std()) * float(np.sqrt(len(by_group)))


def _unseen(rows: Shared, prior: float) -> Floats:
    found = rows.margins.copy()
    for number in np.unique(rows.fold):
        held = rows.fold == number
        if not held.all():
            line = _fitted(rows.take(np.flatnonzero(~held)), prior)
            found[held] = _at(line, rows.margins[held], rows.positions[held])
    return found


def _losses(rows: Shared, margins: Floats) -> Floats:
    losses: Floats = (rows.answers - margins) ** 2
    if rows.odds:
        losses = np.logaddexp(0.0, np.where(rows.answers > 0.0, -margins, margins))
    return losses


def _at(line: OwnLine, margins: Floats, positions: Floats) -> Floats:
    """`OwnLine.at` of many rows."""
    stands = np.nan_to_num(positions - np.array(line.centers)) @ np.array(line.weights)
    at: Floats = line.intercept + line.slope * margins + stands
    return at


def _fitted(rows: Shared, prior: float) -> OwnLine:
    known = ~np.isnan(rows.positions)
    counts = np.maximum(1, known.sum(axis=0))
    centers = np.nan_to_num(rows.positions).sum(axis=0) / counts
    offsets = np.nan_to_num(rows.positions - centers)
    scale = np.sqrt((offsets**2).sum(axis=0) / counts)
    mean, spread = float(rows.margins.mean()), float(rows.margins.std())
    inputs = np.column_stack(
        (np.ones_like(rows.margins), _scaled(rows.margins - mean, spread), _scaled(offsets, scale))
    )
    found = _solved(inputs, rows.margins, rows, prior)
    slope = 1.0 + float(found[1]) / spread if spread > 0.0 else 1.0
    if slope < MIN_SLOPE:
        slope = MIN_SLOPE
        inputs[:, 1] = 0.0
        found = _solved(inputs, mean + slope * (rows.margins - mean), rows, prior)
    weights = _scaled(found[2:], scale)
    return OwnLine(
        intercept=float(found[0]) + (1.0 - slope) * mean,
        slope=slope,
        weights=(float(weights[0]), float(weights[1]), float(weights[2])),
        centers=(float(centers[0]), float(centers[1]), float(centers[2])),
    )


def _scaled(values: Floats, scale: Floats | float) -> Floats:
    """Values over their spread; none where nothing varies."""
    scaled: Floats = np.where(np.asarray(scale) > 0.0, values / np.maximum(scale, 1e-9), 0.0)
    return scaled


def _solved(inputs: Floats, offsets: Floats, rows: Shared, prior: float) -> Floats:
    """Parameters on top of offsets, each drawn towards zero: logistic or linear regression, by Newton's steps."""
    penalty = prior * np.eye(inputs.shape[1])
    # The prior counts rows of ordinary error, whatever the unit of the answers.
    noise = 1.0 if rows.odds else max(1e-9, float(np.var(rows.answers - rows.margins)))
    at = np.zeros(inputs.shape[1])
    for _ in range(_STEPS):
        said = offsets + inputs @ at
        curvature = np.full(len(said), 1.0 / noise)
        if rows.odds:
            said = 1.0 / (1.0 + np.exp(-np.clip(said, -_MAX_LOGIT, _MAX_LOGIT)))
            curvature = said * (1.0 - said)
        gradient = inputs.T @ ((rows.answers - said) / noise) - penalty @ at
        step = np.linalg.solve((inputs.T * curvature) @ inputs + penalty, gradient)
        at = at + np.clip(step, -_MAX_STEP, _MAX_STEP)
        if np.abs(step).max() < _CLOSE:
            break
    return at
