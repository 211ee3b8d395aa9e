"""Clairvoyant's prediction: classes in order and an expected length.

The paper's classes are Short (under 200 tokens), Medium and Long (800 and more) [F]. The model here is not the paper's
three-class one but two questions in order, at least 200 and at least 800 tokens, and a regression on the logarithm of
the length. Each starts from a linear guess, the model's level and the text's score, adds trees and the model's own
line, and is calibrated [D].

The rule of this module: a prediction never exceeds the request's own limit, and what is not known is said so: without a
model the rolling mean stands, and there are no probabilities.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from gateway.core.output_length.features import (
    FEATURES,
    MODEL_LOG_TOKENS,
    MODEL_NUMBER,
    MODEL_SPREAD,
    TEXT_SCORE,
    FeatureSpec,
)
from gateway.core.output_length.own_line import OwnLine
from gateway.core.output_length.trees import Ensemble, Margin, compile_trees

MEDIUM_TOKENS = 200
LONG_TOKENS = 800
MAX_LOG_TOKENS = math.log(2**20)
"""No expectation is larger, however far a model extrapolates."""
_MAX_LOGIT = 60.0


class LengthClass(StrEnum):
    """The paper's classes of output length."""

    SHORT = "short"
    MEDIUM = "medium"
    LONG = "long"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputLength:
    """What is expected of one answer."""

    expected_tokens: float
    probabilities: tuple[float, float, float] | None
    """Of Short, Medium and Long, adding up to 1; None where only a rolling mean is known."""

    @property
    def length_class(self) -> LengthClass:
        """The likeliest class; without probabilities Medium, as in the paper's error case."""
        if self.probabilities is None:
            return LengthClass.MEDIUM
        return tuple(LengthClass)[max(range(3), key=self.probabilities.__getitem__)]

    @property
    def order_key(self) -> float:
        """P(Long) + P(Medium) / 2: 0 goes first, 1 last; without probabilities in the middle."""
        if self.probabilities is None:
            return 0.5
        return self.probabilities[2] + 0.5 * self.probabilities[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A calibration: intercept + slope x, slope above zero so that no order changes."""

    intercept: float
    slope: float

    def at(self, x: float) -> float:
        """The calibrated value."""
        return self.intercept + self.slope * x


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Head:
    """One question to a model; its trees are compiled when it is made.

    Raises:
        TreeError: a tree is malformed.
    """

    start: Line
    """From the linear guess of log tokens to where the trees start."""
    trees: Ensemble
    end: Line
    """From the sum to a calibrated answer."""
    own: Mapping[float, OwnLine] = field(default_factory=dict)
    """Lines between the sum and its calibration, by `Level.number`."""
    _margin: Margin = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_margin", compile_trees(self.trees))

    def at(self, guess: float, features: tuple[float, ...]) -> float:
        """The calibrated answer for a linear guess and a vector of `FEATURES`."""
        margin = self.start.at(guess) + self._margin(features)
        own = self.own.get(features[MODEL_NUMBER])
        return self.end.at(margin if own is None else own.at(margin, features))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OutputLengthModel:
    """A learned predictor."""

    spec: FeatureSpec
    at_least_medium: Head
    """Log odds of `MEDIUM_TOKENS` or more."""
    at_least_long: Head
    """Log odds of `LONG_TOKENS` or more."""
    log_length: Head
    """Logarithm of the mean length."""
    version: str = ""
    """Tells models apart; features that were made for another version are not looked at."""

    def predict(self, features: tuple[float, ...], max_output_tokens: int | None = None) -> OutputLength:
        """Predict from `FEATURES` (see `extract`), in tokens; `max_output_tokens` is the request's own limit.

        Raises:
            ValueError: not as many features as there should be.
        """
        if len(features) != len(FEATURES):
            raise ValueError(f"{len(features)} features instead of {len(FEATURES)}")
        guess = linear_guess(features)
        medium = _probability(self.at_least_medium.at(guess, features))
        longer = min(medium, _probability(self.at_least_long.at(guess, features)))
        expected = math.exp(min(MAX_LOG_TOKENS, self.log_length.at(guess, features)))
        return _limited(expected, (1.0 - medium, medium - longer, longer), max_output_tokens)


def linear_guess(features: Sequence[float]) -> float:
    """Log tokens by the model's level and the text's score alone; without a score, the level."""
    score = features[TEXT_SCORE]
    level = features[MODEL_LOG_TOKENS]
    return level if math.isnan(score) else level + features[MODEL_SPREAD] * score


def predicted_or_mean(
    model: OutputLengthModel | None,
    features: tuple[float, ...] | None,
    mean_tokens: float,
    max_output_tokens: int | None,
) -> OutputLength:
    """The model's prediction, or the rolling mean where there is no model or the request was not read for one."""
    if model is not None and features is not None:
        return model.predict(features, max_output_tokens)
    expected = mean_tokens if max_output_tokens is None else min(mean_tokens, float(max_output_tokens))
    return OutputLength(expected_tokens=expected, probabilities=None)


def _limited(expected: float, shares: tuple[float, float, float], limit: int | None) -> OutputLength:
    """What the limit leaves: a class that it makes impossible gives its share to the next shorter one."""
    if limit is None:
        return OutputLength(expected_tokens=expected, probabilities=shares)
    short, medium, longer = shares
    if limit < LONG_TOKENS:
        medium, longer = medium + longer, 0.0
    if limit < MEDIUM_TOKENS:
        short, medium = 1.0, 0.0
    return OutputLength(expected_tokens=min(expected, float(limit)), probabilities=(short, medium, longer))


def _probability(logit: float) -> float:
    return 1.0 / (1.0 + math.exp(-max(-_MAX_LOGIT, min(_MAX_LOGIT, logit))))
