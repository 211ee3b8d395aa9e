"""What a load of 100 % is: the rate at which the tuned Dynamo rule keeps the SLO for 70 % of the requests.

The rule of this module: it only searches; who serves is the caller's business. Equal answers give an equal rate.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

ATTAINED = 0.70
FIRST_SCALE = 4.0
WIDEST = 8
"""Doublings from the first scale, up or down, after which the search gives up."""
PRECISION = 0.03
"""Relative, of the rate."""
ROUNDS = 2
"""The rule is tuned again at the rate that was found with it, so often."""

Rule = TypeVar("Rule")


class NoSaturationError(Exception):
    """However few requests come, or however many, the share is never crossed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saturation(Generic[Rule]):
    """The rate that was found."""

    scale: float
    rule: Rule
    attained_ratio: float
    """Of the rule, at that scale."""


def saturate(
    tune: Callable[[float], Rule],
    attained: Callable[[Rule, float], float],
    *,
    share: float = ATTAINED,
    first: float = FIRST_SCALE,
) -> Saturation[Rule]:
    """Tune a rule where the search is, find its saturating scale, and tune it again there.

    Args:
        tune: the rule that is best at a scale.
        attained: the share of requests that a rule serves well at a scale; it falls as the scale rises, but for noise.
        share: where it is to be crossed.
        first: the scale to begin at.

    Raises:
        NoSaturationError: it is not crossed within reach.
    """
    scale = first
    rule = tune(scale)
    for _ in range(ROUNDS):
        scale = crossing(lambda at, by=rule: attained(by, at), share=share, first=scale)  # type: ignore[misc]
        better = tune(scale)
        if better == rule:
            break
        rule = better
    return Saturation(scale=scale, rule=rule, attained_ratio=attained(rule, scale))


def crossing(attained: Callable[[float], float], *, share: float, first: float) -> float:
    """The highest scale seen at which the share is still kept, within `PRECISION`; bisection in the logarithm.

    Raises:
        NoSaturationError: no such scale within `WIDEST` doublings.
    """
    low, high = _bracket(attained, share, first)
    while high / low > 1.0 + PRECISION:
        middle = _rounded(math.sqrt(low * high))
        if not low < middle < high:
            break
        if attained(middle) >= share:
            low = middle
        else:
            high = middle
    return low


def _bracket(attained: Callable[[float], float], share: float, first: float) -> tuple[float, float]:
    """Two scales of which only the lower keeps the share."""
    scale = _rounded(first)
    keeps = attained(scale) >= share
    for _ in range(WIDEST):
        other = _rounded(scale * 2.0 if keeps else scale / 2.0)
        if (attained(other) >= share) is not keeps:
            return (scale, other) if keeps else (other, scale)
        scale = other
    raise NoSaturationError(f"at a scale of {scale:g} the SLO is still {'kept' if keeps else 'missed'}")


def _rounded(scale: float) -> float:
    """Four digits: what is written in a report is what was run."""
    return float(f"{scale:.4g}")
