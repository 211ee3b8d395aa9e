"""The rule to beat: Dynamo's, with the parameters that serve the learning traffic best.

The rule of this module: a rule is tuned on the requests that a policy learns from, and judged where that is judged.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import joblib

from gateway.core.path.rules import DynamoRule
from loadtest.learning.dynamo_grid import COARSE, looked_around
from loadtest.learning.prices import Trial
from policy_store.learn.prices import Score


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedRule:
    """A rule and how it served."""

    rule: DynamoRule
    score: Score

    @property
    def words(self) -> str:
        """Its parameters in short."""
        busy = self.rule.prefill_busy_threshold
        load = "" if busy is None else f", busy above {busy:g} budgets"
        return (
            f"{self.rule.mode}, local below {self.rule.eff_isl_threshold:,} uncached tokens and"
            f" {self.rule.eff_isl_ratio_threshold:.0%} of the prompt{load}"
        )


def tune(trial: Trial, *, jobs: int = 1, rules: Sequence[DynamoRule] | None = None) -> TunedRule:
    """The rule with the highest attainment, of equal ones the first.

    Tried are the coarse grid and neighbours of the best of it, or only the rules that are given.
    """
    if rules is not None:
        return _best(trial, rules, jobs)
    return looked_around(
        _best(trial, COARSE.rules(), jobs),
        lambda best: best.rule,
        lambda best, others: max(best, _best(trial, others, jobs), key=lambda one: one.score.attained_ratio),
    )


def _best(trial: Trial, rules: Sequence[DynamoRule], jobs: int) -> TunedRule:
    scores: list[Score] = joblib.Parallel(n_jobs=jobs)(joblib.delayed(trial.score)(rule) for rule in rules)
    best = max(range(len(rules)), key=lambda place: scores[place].attained_ratio)
    return TunedRule(rule=rules[best], score=scores[best])
