from collections.abc import Mapping
from types import SimpleNamespace
from typing import cast

import pytest

from gateway.core.path.rules import AlwaysLocal, AlwaysRemote, DynamoRule
from loadtest.compare.arms import Arm
from loadtest.compare.baselines import Tuned
from loadtest.compare.learned import Learnt, Lesson, best_of
from policy_store.learn.prices import Score

RULE = Arm(name="dynamo-tuned", path=DynamoRule())
QUICK_ARM, SMOOTH_ARM = Arm(name="quick", path=AlwaysLocal()), Arm(name="smooth", path=AlwaysRemote())
RULE_SCORE = Score(attained_ratio=0.9, ttft_p90_s=1.0, tpot_p90_s=0.02)


def lesson(scores: Mapping[str, Score]) -> Lesson:
    """One whose arms did as they are said to have done."""
    by_name = {RULE.name: RULE_SCORE, **scores}
    rule = Tuned(arm=RULE, score=RULE_SCORE, tried=1)
    return cast("Lesson", SimpleNamespace(rule=rule, score=lambda arm: by_name[arm.name]))


@pytest.mark.parametrize(
    ("quick", "smooth", "best"),
    [
        (Score(attained_ratio=0.92, ttft_p90_s=0.5, tpot_p90_s=0.026), None, RULE),
        (Score(attained_ratio=0.92, ttft_p90_s=0.5, tpot_p90_s=0.018), None, QUICK_ARM),
        (
            Score(attained_ratio=0.92, ttft_p90_s=0.5, tpot_p90_s=0.026),
            Score(attained_ratio=0.93, ttft_p90_s=0.9, tpot_p90_s=0.015),
            SMOOTH_ARM,
        ),
    ],
)
def test_the_tuned_rule_is_kept_where_what_was_learned_loses_something(
    quick: Score, smooth: Score | None, best: Arm
) -> None:
    scores = {"quick": quick} | ({} if smooth is None else {"smooth": smooth})
    learnt = [Learnt(arm=arm, requests=1) for arm in (QUICK_ARM, SMOOTH_ARM) if arm.name in scores]
    assert best_of(lesson(scores), learnt) == best
