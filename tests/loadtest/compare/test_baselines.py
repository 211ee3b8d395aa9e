import pickle

import numpy as np
import pytest

from gateway.core.path.rules import DynamoRule
from loadtest.compare.arms import DYNAMO_PLACING, OUR_PLACING, PLACINGS, Arm
from loadtest.compare.baselines import FIXED, fixed_arms, llmd_grid, named, scouts, tune, tune_dynamo, tuned_arms
from loadtest.compare.effort import FULL
from loadtest.compare.serving import Served

RULES = [DynamoRule(eff_isl_threshold=tokens) for tokens in (100, 200, 300, 400)]


def result(ratio: float, ttft_s: float = 1.0) -> Served:
    met = np.arange(100) < 100 * ratio
    return Served(ttft_s=np.full(100, ttft_s), tpot_s=np.full(100, 0.02), met=met, local=met)


def tokens(arm: Arm) -> int:
    assert isinstance(arm.path, DynamoRule)
    return arm.path.eff_isl_threshold


def test_the_scouts_are_of_the_grid_and_llmds_grid_begins_with_its_default() -> None:
    assert set(scouts()) <= set(FULL.rules)
    assert llmd_grid()[0].non_cached_tokens == 0


def test_the_rule_that_attains_most_is_taken() -> None:
    ratios = {100: 0.5, 200: 0.7, 300: 0.6, 400: 0.1}
    best = tune("x", RULES, OUR_PLACING, lambda arm, _: result(ratios[tokens(arm)]), screens=())
    assert tokens(best.arm) == 200
    assert best.score.attained_ratio == pytest.approx(0.7)
    assert best.tried == 4


def test_the_shorter_tail_decides_between_equals() -> None:
    best = tune("x", RULES, OUR_PLACING, lambda arm, _: result(0.5, ttft_s=tokens(arm) / 100), screens=())
    assert tokens(best.arm) == 100


def test_only_the_best_of_a_first_look_are_tried_on_everything() -> None:
    asked: list[tuple[int, int | None]] = []

    def serve(arm: Arm, first: int | None) -> Served:
        asked.append((tokens(arm), first))
        return result(tokens(arm) / 1000)

    assert tokens(tune("x", RULES, OUR_PLACING, serve, screens=(50,)).arm) == 400
    assert asked == [(100, 50), (200, 50), (300, 50), (400, 50), (400, None), (300, None)]


def test_what_lies_between_the_rules_of_a_grid_is_looked_at_too() -> None:
    best = tune_dynamo(RULES, OUR_PLACING, lambda arm, _: result(1 - abs(tokens(arm) - 160) / 1000), screens=())
    assert tokens(best.arm) == 150


def test_a_placement_is_known_by_what_it_is_in_another_process_too() -> None:
    assert named("x", pickle.loads(pickle.dumps(DYNAMO_PLACING))) == "x"
    assert named("x", OUR_PLACING) == "x, our placement"


def test_every_rule_stands_under_both_placements() -> None:
    tuned = tuned_arms(lambda *_: result(0.5), screens=(), rules=RULES, placings=PLACINGS)
    arms = [*(one.arm for one in tuned), *fixed_arms(FIXED, PLACINGS)]
    names = [arm.name for arm in arms]
    assert tuned[0].tried == 4 + 2 + 2  # the rules, two neighbours of the best, two guards
    assert names[:2] == ["dynamo-tuned", "dynamo-tuned, our placement"]
    assert len(set(names)) == len(names) == 10
    assert sum(arm.placing is DYNAMO_PLACING for arm in arms) == sum(arm.placing is OUR_PLACING for arm in arms) == 5
