import math
from dataclasses import dataclass, replace
from typing import Any

import pytest

from gateway.core.path.base import PolicyError
from gateway.core.path.price import Load, PriceWeights, price
from gateway.core.types import Outlook, SloTarget

SLO = SloTarget(name="chat", ttft_s=2.0, tpot_s=0.04)
CALM = Outlook(ttft_s=0.2, tpot_s=0.01, prefill_s=0.1, stall_s=0.1, crowd_s=0.001)
LOAD = Load(batch=10, resident=10, osl_tokens=100.0, mean_osl_tokens=100.0, kv_after_ratio=0.5)


@dataclass(frozen=True)
class Asked:
    """A route that is priced: local, and nobody waits."""

    outlook: Outlook = CALM
    load: Load = LOAD
    is_local: bool = True
    waiting: int = 0
    is_first: bool = False


LOCAL = Asked()
FREE = PriceWeights(
    ttft_pull=0.0,
    tpot_pull=0.0,
    stall_price=0.0,
    crowd_price=0.0,
    prefill_price=0.0,
    queue_price=0.0,
    full_price=0.0,
)


def cost(asked: Asked = LOCAL, slo: SloTarget = SLO, **weights: float) -> float:
    priced = replace(FREE, **weights)
    return price(
        asked.outlook,
        asked.load,
        slo,
        priced,
        is_local=asked.is_local,
        waiting=asked.waiting,
        is_first=asked.is_first,
    )


def expected(**changes: float) -> Asked:
    return Asked(outlook=replace(CALM, **changes))


def loaded(**changes: Any) -> Asked:
    return Asked(load=replace(LOAD, **changes))


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


def test_a_stall_is_shared_by_the_tokens_of_those_that_are_held_up_not_by_its_own() -> None:
    stall = cost(stall_price=2.0) - cost()
    assert cost(loaded(osl_tokens=1.0), stall_price=2.0) - cost() == pytest.approx(stall)
    assert cost(loaded(mean_osl_tokens=400.0), stall_price=2.0) - cost() == pytest.approx(stall / 4)


def test_those_whose_prefill_is_under_way_elsewhere_are_not_held_up_by_a_stall() -> None:
    stall = cost(stall_price=2.0) - cost()
    assert cost(loaded(resident=4), stall_price=2.0) - cost() == pytest.approx(0.4 * stall)
    assert cost(loaded(resident=4), crowd_price=1.0) == cost(crowd_price=1.0)


def test_a_longer_answer_crowds_others_for_longer() -> None:
    crowd = cost(crowd_price=1.0) - cost()
    assert cost(loaded(osl_tokens=300.0), crowd_price=1.0) - cost() == pytest.approx(3 * crowd)
    assert cost(loaded(mean_osl_tokens=400.0), crowd_price=1.0) - cost() == pytest.approx(crowd / 4)


def test_a_larger_batch_pays_for_everybody_in_it_and_an_empty_one_for_nobody() -> None:
    assert cost(crowd_price=1.0) - cost() == pytest.approx(10 * 0.001 / 0.04)
    assert cost(loaded(batch=0), crowd_price=1.0, stall_price=1.0) == cost()


def test_a_remote_prefill_pays_for_its_time() -> None:
    assert cost(replace(LOCAL, is_local=False), prefill_price=1.0) - cost() == pytest.approx(0.05)
    assert cost(prefill_price=1.0) == cost()


def test_a_prefill_pays_for_those_that_will_wait_for_it_as_much_as_the_wait_would_cost_itself() -> None:
    unbound = SloTarget(name="none", ttft_s=None, tpot_s=None)
    queued = replace(LOCAL, waiting=10)
    # 0.1 s is 0.05 of what a TTFT is measured by, of 10 requests.
    paid = cost(queued, unbound, ttft_pull=1.0, queue_price=2.0) - cost(slo=unbound, ttft_pull=1.0, queue_price=2.0)
    assert paid == pytest.approx(2.0 * 0.5)
    assert cost(replace(queued, is_local=False), queue_price=1.0) == cost(queued, queue_price=1.0)


def test_a_wait_costs_others_most_where_it_makes_them_late() -> None:
    def for_others(ttft_s: float) -> float:
        route = expected(ttft_s=ttft_s)
        return cost(replace(route, waiting=10), queue_price=1.0) - cost(route, queue_price=1.0)

    assert for_others(0.2) < 0.1 < for_others(1.9)
    assert for_others(20.0) == pytest.approx(0.0, abs=1e-6)


def test_a_cache_that_would_be_over_full_costs_and_an_unknown_one_does_not() -> None:
    assert cost(loaded(kv_after_ratio=1.5), full_price=4.0) - cost() == pytest.approx(2.0)
    assert cost(loaded(kv_after_ratio=None), full_price=4.0) == cost()


@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf])
def test_a_weight_that_is_no_price_is_refused(value: float) -> None:
    with pytest.raises(PolicyError, match="stall_price"):
        PriceWeights(stall_price=value)


def test_a_width_of_nothing_is_refused() -> None:
    with pytest.raises(PolicyError, match="widths"):
        PriceWeights(ttft_width=0.0)


def test_energy_costs_by_the_kilojoule_and_nothing_where_nobody_asks_for_it() -> None:
    assert cost(expected(prefill_j=500.0), energy_price=4.0) - cost() == pytest.approx(2.0)
    assert cost(expected(prefill_j=500.0)) == cost()


def test_a_first_turn_pays_more_for_its_ttft_and_for_nothing_else() -> None:
    first = replace(expected(ttft_s=0.5), is_first=True)
    assert cost(first, first_turn_pull=8.0) - cost(first) == pytest.approx(2.0)
    assert cost(expected(ttft_s=0.5), first_turn_pull=8.0) == cost(first)
    slow = replace(first, outlook=replace(first.outlook, tpot_s=0.02))
    assert cost(slow, first_turn_pull=8.0) - cost(slow) == pytest.approx(2.0)
