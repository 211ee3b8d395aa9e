"""Grids of Dynamo's rule: what is tried where the rule to beat is tuned.

The rule of this module: a grid holds Dynamo's defaults and no rule twice; which one is the best is the tuner's to say,
who then looks at its neighbours.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TypeVar

from gateway.core.path.rules import DynamoMode, DynamoRule

Tuned = TypeVar("Tuned")

RATIOS = (0.7, 1.0)
"""Shares of uncached tokens. Dynamo takes none above 1: a prompt without any hit is never local for its length."""

CLOSER = (0.75, 1.5)
"""What a threshold is multiplied by, to look between those of a grid."""
LOOKS = 2
"""So often neighbours are tried, of the best rule that is known then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamoGrid:
    """Thresholds, each tried with each of the others where they mean something together."""

    eff_isl_tokens: Sequence[int]
    """Uncached tokens below which a prompt is local."""
    ratios: Sequence[float] = RATIOS
    busy: Sequence[float]
    """Waiting prefill tokens over a worker's step budget, above which prefill workers are busy."""
    has_load_alone: bool
    """Also the mode that looks at the load and not at the prompt."""

    def rules(self) -> list[DynamoRule]:
        """Every rule of it, those of equal lengths together."""
        found: list[DynamoRule] = []
        for tokens, ratio in product(self.eff_isl_tokens, self.ratios):
            rule = DynamoRule(eff_isl_threshold=tokens, eff_isl_ratio_threshold=ratio)
            found.append(rule)
            found += [replace(rule, mode=DynamoMode.ISL_OR_LOAD, prefill_busy_threshold=busy) for busy in self.busy]
        if self.has_load_alone:
            found += [DynamoRule(mode=DynamoMode.PREFILL_LOAD, prefill_busy_threshold=busy) for busy in self.busy]
        return found


def neighbours(rule: DynamoRule) -> list[DynamoRule]:
    """Rules with thresholds between those of a grid and this rule's own: up to eight, none of them itself."""
    lengths = [rule.eff_isl_threshold]
    if rule.mode is not DynamoMode.PREFILL_LOAD:
        lengths += [round(rule.eff_isl_threshold * factor) for factor in CLOSER]
    busy = rule.prefill_busy_threshold
    loads = [busy] if busy is None else [busy, *(round(busy * factor, 3) for factor in CLOSER)]
    found = [
        replace(rule, eff_isl_threshold=tokens, prefill_busy_threshold=load) for tokens, load in product(lengths, loads)
    ]
    return [other for other in dict.fromkeys(found) if other != rule]


def looked_around(
    best: Tuned, rule_of: Callable[[Tuned], DynamoRule], better: Callable[[Tuned, Sequence[DynamoRule]], Tuned]
) -> Tuned:
    """The best of a tuned rule and its neighbours, then of the new one's, until none of them is better.

    Args:
        best: what was found so far, in whatever form.
        rule_of: its rule.
        better: the better one of what was found and of some rules.
    """
    for _ in range(LOOKS):
        before = rule_of(best)
        others = neighbours(before)
        best = better(best, others) if others else best
        if rule_of(best) == before:
            break
    return best


COARSE = DynamoGrid(eff_isl_tokens=(512, 2048, 8192, 16_384), busy=(0.5, 1.0, 2.0, 4.0), has_load_alone=False)
"""For learning on one's own traffic, where a minute counts."""
FINE = DynamoGrid(
    eff_isl_tokens=(512, 2048, 8192, 16_384), busy=(0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0), has_load_alone=True
)
"""For comparisons that claim something."""
