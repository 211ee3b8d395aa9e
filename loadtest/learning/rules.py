"""The rule to beat: Dynamo's, with the parameters that serve the learning traffic best.

The rule of this module: a rule is tuned on the requests that a policy learns from, and judged where that is judged.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import joblib

from gateway.core.path.rules import DynamoMode, DynamoRule
from loadtest.learning.prices import Trial
from policy_store.learn.prices import Score

EFF_ISL_TOKENS = (512, 2048, 8192)
BUSY = (0.5, 1.0, 2.0, 4.0)
RATIOS = (0.7, 1.0)
"""Shares of uncached tokens; at 1 any cached token will do."""


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
            f"{self.rule.mode}, local below {self.rule.eff_isl_threshold} uncached tokens and"
            f" {self.rule.eff_isl_ratio_threshold:g} of the prompt{load}"
        )


def grid() -> list[DynamoRule]:
    """What is tried, Dynamo's defaults among it."""
    by_isl = [
        DynamoRule(eff_isl_threshold=tokens, eff_isl_ratio_threshold=ratio)
        for tokens, ratio in product(EFF_ISL_TOKENS, RATIOS)
    ]
    by_load = [
        DynamoRule(
            mode=DynamoMode.ISL_OR_LOAD,
            eff_isl_threshold=tokens,
            eff_isl_ratio_threshold=ratio,
            prefill_busy_threshold=busy,
        )
        for tokens, ratio, busy in product(EFF_ISL_TOKENS, RATIOS, BUSY)
    ]
    return by_isl + by_load


def tune(trial: Trial, *, jobs: int = 1, rules: Sequence[DynamoRule] | None = None) -> TunedRule:
    """The rule with the highest attainment; of equal ones the first."""
    tried = grid() if rules is None else rules
    scores: list[Score] = joblib.Parallel(n_jobs=jobs)(joblib.delayed(trial.score)(rule) for rule in tried)
    best = max(range(len(tried)), key=lambda place: scores[place].attained_ratio)
    return TunedRule(rule=tried[best], score=scores[best])
