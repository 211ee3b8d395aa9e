"""Predictions for rows that were not trained on: repeated grouped cross-validation, and one data set for another.

The rule of this module: predictions are the core's own, one row at a time, as the gateway makes them.
"""

from dataclasses import dataclass

import numpy as np

from gateway.core.output_length.predictor import OutputLengthModel
from policy_store.learn.output_length.options import TrainOptions
from policy_store.learn.output_length.rows import Floats, Indexes, LengthRows, fold_of_each
from policy_store.learn.output_length.train import train, vectors_of

FOLDS = 5


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Unseen:
    """Predictions, by repeat and row."""

    expected: Floats
    """Tokens: repeats x n."""
    shares: Floats
    """Of the classes: repeats x n x 3."""
    folds: Indexes
    """Repeats x n."""


def predictions(model: OutputLengthModel, rows: LengthRows) -> tuple[Floats, Floats]:
    """Expected lengths (n) and class probabilities (n x 3)."""
    made = [model.predict(features) for features in vectors_of(model, rows)]
    return np.array([each.expected_tokens for each in made]), np.array([each.probabilities for each in made])


def cross_validated(rows: LengthRows, options: TrainOptions, repeats: int) -> Unseen:
    """Every row predicted once per repeat, by a model of the other folds."""
    expected = np.zeros((repeats, len(rows)))
    shares = np.zeros((repeats, len(rows), 3))
    folds = np.zeros((repeats, len(rows)), dtype=np.intp)
    for repeat in range(repeats):
        folds[repeat] = fold_of_each(rows.groups, FOLDS, np.random.default_rng((1, repeat)))
        for number in range(FOLDS):
            held = folds[repeat] == number
            model = train(rows.take(~held), options).model
            expected[repeat, held], shares[repeat, held] = predictions(model, rows.take(held))
    return Unseen(expected=expected, shares=shares, folds=folds)


def crossed(model: OutputLengthModel, rows: LengthRows) -> Unseen:
    """Rows of one data set predicted by a model of another; a single fold."""
    expected, shares = predictions(model, rows)
    return Unseen(expected=expected[None], shares=shares[None], folds=np.zeros((1, len(rows)), dtype=np.intp))
