import math
from dataclasses import replace

import pytest

from gateway.core.path.base import PolicyError
from gateway.core.path.price import PriceWeights, Use, price
from gateway.core.types import Outlook, SloTarget

SLO = SloTarget(name="chat", ttft_s=2.0, tpot_s=0.04)
CALM = Outlook(ttft_s=0.2, tpot_s=0.01, prefill_s=0.1, stall_s=0.1, crowd_s=0.001)
LOCAL = Use(outlook=CALM, batch=10, osl_tokens=100.0, kv_after_ratio=0.5, is_local=True)
FREE = PriceWeights(ttft_pull=0.0, tpot_pull=0.0, stall_price=0.0, crowd_price=0.0, prefill_price=0.0, full_price=0.0)


def cost(use: Use = LOCAL, slo: SloTarget = SLO, **weights: float) -> float:
    return price(use, slo, replace(FREE, **weights))


def expected(**changes: float) -> Use:
    return replace(LOCAL, outlook=replace(CALM, **changes))


def test_a_route_far_within_its_bounds_costs_next_to_nothing() -> None:
    assert cost() < 0.05


def test_at_its_bound_a_latency_misses_it_half_the_time_and_far_beyond_always() -> None:
    assert cost(expected(ttft_s=2.0)) - cost() == pytest.approx(0.5, abs=0.05)
    assert cost(expected(ttft_s=200.0, tpot_s=4.0)) == 2.0


def test_an_slo_without_bounds_is_never_missed_but_latency_pulls_all_the_same() -> None:
    unbound = SloTarget(name="none", ttft_s=None, tpot_s=None)
    assert cost(expected(ttft_s=200.0), unbound) == 0.0
    assert cost(expected(ttft_s=200.0), unbound, ttft_pull=0.1) == pytest.approx(10.0)


def test_a_local_prefill_pays_for_everybody_that_it_holds_up() -> None:
    # 0.1 s over 100 tokens is 1 ms per token of 10 sequences: a quarter of a TPOT bound in all.
    assert cost(stall_price=2.0) - cost() == pytest.approx(0.5)
    assert cost(replace(LOCAL, is_local=False), stall_price=2.0) == cost()


def test_a_larger_batch_pays_for_everybody_in_it_and_an_empty_one_for_nobody() -> None:
    assert cost(crowd_price=1.0) - cost() == pytest.approx(10 * 0.001 / 0.04)
    assert cost(replace(LOCAL, batch=0), crowd_price=1.0, stall_price=1.0) == cost()


def test_a_remote_prefill_pays_for_its_time() -> None:
    assert cost(replace(LOCAL, is_local=False), prefill_price=1.0) - cost() == pytest.approx(0.05)
    assert cost(prefill_price=1.0) == cost()


def test_a_cache_that_would_be_over_full_costs_and_an_unknown_one_does_not() -> None:
    assert cost(replace(LOCAL, kv_after_ratio=1.5), full_price=4.0) - cost() == pytest.approx(2.0)
    assert cost(replace(LOCAL, kv_after_ratio=None), full_price=4.0) == cost()


@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf])
def test_a_weight_that_is_no_price_is_refused(value: float) -> None:
    with pytest.raises(PolicyError, match="stall_price"):
        PriceWeights(stall_price=value)


def test_a_width_of_nothing_is_refused() -> None:
    with pytest.raises(PolicyError, match="widths"):
        PriceWeights(ttft_width=0.0)
