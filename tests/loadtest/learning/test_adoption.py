from dataclasses import replace

import pytest

from gateway.core.path.price import PriceWeights
from loadtest.learning.adoption import LATENCIES, adopted, spares
from policy_store.learn.prices import Score, Tried

RULE = Score(attained_ratio=0.8, ttft_p90_s=2.0, tpot_p90_s=0.04, ttft_p50_s=0.5, tpot_p50_s=0.02)


def tried(score: Score, stall_price: float) -> Tried:
    return Tried(weights=PriceWeights(stall_price=stall_price), score=score, value=0.0)


def test_what_is_as_good_as_the_rule_spares_it() -> None:
    assert spares(RULE, RULE)
    assert spares(replace(RULE, attained_ratio=0.791, ttft_p90_s=2.019), RULE)


@pytest.mark.parametrize("name", LATENCIES)
def test_no_gain_makes_up_for_a_latency_that_got_worse(name: str) -> None:
    better = replace(RULE, attained_ratio=0.95, **{each: 0.5 * getattr(RULE, each) for each in LATENCIES})
    assert spares(better, RULE)
    assert not spares(replace(better, **{name: 1.02 * getattr(RULE, name)}), RULE)


def test_nor_for_fewer_that_met_the_slo() -> None:
    assert not spares(replace(RULE, attained_ratio=0.785, ttft_p90_s=1.0), RULE)


def test_what_is_not_known_of_the_rule_is_not_compared() -> None:
    assert spares(RULE, replace(RULE, ttft_p50_s=0.0))


def test_the_best_that_spares_every_figure_is_adopted() -> None:
    worse, fine = replace(RULE, ttft_p50_s=0.6), replace(RULE, ttft_p90_s=1.0)
    assert adopted([tried(worse, 1.0), tried(fine, 2.0), tried(fine, 3.0)], RULE).weights.stall_price == 2.0
    assert adopted([tried(worse, 1.0), tried(worse, 2.0)], RULE).weights.stall_price == 1.0
