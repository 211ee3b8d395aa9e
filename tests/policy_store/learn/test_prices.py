import math
from collections.abc import Sequence
from dataclasses import asdict, replace

import numpy as np
import pytest

from gateway.core.path.price import PriceWeights
from policy_store.learn.prices import LATE_S, RANGES, ROUNDS, Goal, Score, Tails, learn_weights, scored

REFERENCE = Score(attained_ratio=0.7, ttft_p90_s=4.0, tpot_p90_s=0.05)
GOAL = Goal(reference=REFERENCE)
BEST = {name: math.sqrt(low * high) * 2.5 for name, (low, high) in RANGES.items()}


def bowl(asked: Sequence[PriceWeights]) -> Sequence[Score]:
    """Attains most at `BEST`, less the further off the logarithms are."""
    scores = []
    for weights in asked:
        off = sum(math.log(asdict(weights)[name] / best) ** 2 for name, best in BEST.items())
        scores.append(Score(attained_ratio=math.exp(-off / 10), ttft_p90_s=3.0, tpot_p90_s=0.03))
    return scores


def test_a_search_comes_close_to_the_best_weights() -> None:
    first, *_ = learn_weights(bowl, GOAL, budget=80, seed=1)
    (start,) = bowl([PriceWeights()])
    assert first.score.attained_ratio > 0.7
    assert first.score.attained_ratio > start.attained_ratio + 0.2


def test_all_tries_are_told_the_best_first_and_the_start_is_one_of_them() -> None:
    start = PriceWeights(hysteresis=0.3)
    tried = learn_weights(bowl, GOAL, budget=13, seed=2, start=start)
    assert len(tried) == 13
    assert start in [one.weights for one in tried]
    values = [one.value for one in tried]
    assert values == sorted(values, reverse=True)
    assert {one.weights.hysteresis for one in tried} == {0.3}


def test_the_same_seed_searches_the_same_way_and_another_does_not() -> None:
    one, again, other = (learn_weights(bowl, GOAL, budget=8, seed=seed) for seed in (3, 3, 4))
    assert one == again
    assert one != other


def test_every_weight_stays_within_its_range() -> None:
    for one in learn_weights(bowl, GOAL, budget=40, seed=5)[1:]:
        weights = asdict(one.weights)
        assert all(low * 0.99 <= weights[name] <= high * 1.01 for name, (low, high) in RANGES.items())


def test_too_small_a_budget_is_refused() -> None:
    with pytest.raises(ValueError, match=f"at least {ROUNDS}"):
        learn_weights(bowl, GOAL, budget=ROUNDS - 1, seed=0)


def test_a_tail_above_what_is_wanted_costs_more_than_the_attainment_that_it_buys() -> None:
    wanted = Score(attained_ratio=0.8, ttft_p90_s=3.4, tpot_p90_s=0.0375)
    late = Score(attained_ratio=0.83, ttft_p90_s=4.4, tpot_p90_s=0.0375)
    assert GOAL.value(wanted) > GOAL.value(late)


def test_a_tail_below_what_is_wanted_gains_something_and_of_ttft_little() -> None:
    wanted = Score(attained_ratio=0.8, ttft_p90_s=3.4, tpot_p90_s=0.0375)
    sooner, smoother = replace(wanted, ttft_p90_s=3.06), replace(wanted, tpot_p90_s=0.9 * 0.0375)
    assert GOAL.value(sooner) - GOAL.value(wanted) == pytest.approx(0.05 * math.log(1 / 0.9))
    assert GOAL.value(smoother) - GOAL.value(wanted) == pytest.approx(0.5 * math.log(1 / 0.9))


def test_tails_are_compared_part_by_part() -> None:
    reference = scored(np.repeat([1.0, 1.0, 1.0, 1.0, 9.0], 20), np.full(100, 0.04), np.arange(100) < 70)
    assert reference.ttft_p90_s == 9.0
    goal = Goal(reference=reference)
    ttft_s = np.tile([1.0, 1.0, 1.0, 1.0, 2.0], 20)
    worse_but_once = scored(ttft_s, np.full(100, 0.03), np.arange(100) < 75)
    assert goal.value(worse_but_once) < goal.value(reference)
    assert goal.value(replace(worse_but_once, parts=())) > goal.value(reference)


def test_a_score_counts_failures_as_late_and_leaves_out_answers_of_one_token() -> None:
    ttft_s, tpot_s = np.full(100, 1.0), np.full(100, math.nan)
    ttft_s[80:], tpot_s[80:] = math.inf, math.inf
    found = scored(ttft_s, tpot_s, ttft_s < 2)
    assert (found.attained_ratio, found.ttft_p90_s, found.tpot_p90_s) == (0.8, LATE_S, LATE_S)
    assert found.ttft_p50_s == 1.0
    assert found.parts[0] == Tails(ttft_p90_s=1.0, tpot_p90_s=0.0, ttft_p50_s=1.0)
    late = dict.fromkeys(("ttft_p90_s", "tpot_p90_s", "ttft_p50_s", "tpot_p50_s"), LATE_S)
    assert found.parts[4] == Tails(**late)


def test_a_median_above_the_references_costs_and_one_below_gains_nothing() -> None:
    def goal_of(ttft_p50_s: float) -> float:
        return Goal(reference=replace(REFERENCE, ttft_p50_s=1.0)).value(replace(REFERENCE, ttft_p50_s=ttft_p50_s))

    assert goal_of(0.5) == goal_of(1.0)
    assert goal_of(1.1) == pytest.approx(goal_of(1.0) - 0.1)


def test_a_reference_without_latencies_is_no_division_by_zero() -> None:
    goal = Goal(reference=Score(attained_ratio=0.0, ttft_p90_s=0.0, tpot_p90_s=0.0))
    assert goal.value(Score(attained_ratio=0.5, ttft_p90_s=1.0, tpot_p90_s=1.0)) == 0.5


def test_what_gets_better_does_not_pay_for_a_tail_that_gets_worse() -> None:
    faster_but_rougher = Score(attained_ratio=0.78, ttft_p90_s=1.0, tpot_p90_s=0.055)
    assert GOAL.value(faster_but_rougher) < GOAL.value(REFERENCE)
    no_rougher = Score(attained_ratio=0.78, ttft_p90_s=1.0, tpot_p90_s=0.05)
    assert GOAL.value(no_rougher) > GOAL.value(REFERENCE) + 0.08
