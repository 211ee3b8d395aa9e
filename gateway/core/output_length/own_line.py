"""A language model's own line on top of what all models share [D].

The trees are taught by all models together, so a model with few rows, or one that is used for another kind of work than
the others, is answered as they are. Its own line adds where the conversation stands: the longer the prompt and the more
answers it has had, the nearer it is to its last, long one with some models and not with others.

The rule of this module: what is missing adds nothing, and a model without a line keeps the shared answer.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.core.output_length.features import FEATURES

POSITION = ("log_prompt_tokens", "previous_outputs", "after_tool")
"""Where a conversation stands; of the count of answers log1p."""
_PROMPT, _ANSWERS, _TOOL = map(FEATURES.index, POSITION)

Position = tuple[float, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnLine:
    """What one model makes of a shared margin."""

    intercept: float
    slope: float
    """Of the margin; above zero, so that the shared answer is never turned round."""
    weights: Position
    centers: Position
    """What adds nothing, by `position`."""

    def at(self, margin: float, features: Sequence[float]) -> float:
        """The model's margin for a shared one and a vector of `FEATURES`."""
        total = self.intercept + self.slope * margin
        for weight, center, value in zip(self.weights, self.centers, position(features), strict=True):
            if not math.isnan(value):
                total += weight * (value - center)
        return total


SHARED = OwnLine(intercept=0.0, slope=1.0, weights=(0.0, 0.0, 0.0), centers=(0.0, 0.0, 0.0))
"""Changes nothing."""


def position(features: Sequence[float]) -> Position:
    """Where a conversation stands, from a vector of `FEATURES`; NaN where that is not known."""
    return features[_PROMPT], math.log1p(features[_ANSWERS]), features[_TOOL]
