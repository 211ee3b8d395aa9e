import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.path.base import PolicyError
from gateway.core.placement import SCORERS, Placement, Pool
from gateway.core.policy import DEFAULT_DECODE_PLACEMENT, DEFAULT_PREFILL_PLACEMENT
from gateway.core.types import Candidate, WorkerId, WorkerView
from tests.core.factories import view


def by(*scorers: str, **weights: float) -> Placement:
    """A placement with these scorers at weight 1 and these at their own."""
    return Placement(weights=(*((name, 1.0) for name in scorers), *weights.items()))


def rank(placement: Placement, views: Sequence[WorkerView], *, isl: int = 1000, key: str = "r0") -> list[Candidate]:
    return placement.rank(Pool.of(views, isl), key)


def best(placement: Placement, views: Sequence[WorkerView], *, isl: int = 1000) -> str:
    return rank(placement, views, isl=isl)[0].worker_id


def score(name: str, of: WorkerView, *others: WorkerView, isl: int = 1000) -> float | None:
    return SCORERS[name](Pool.of([of, *others], isl))[0]


class TestScorers:
    @pytest.mark.parametrize(("hit", "expected"), [(0, 0.0), (250, 0.25), (1000, 1.0)])
    def test_prefix_hit_is_the_cached_share_of_the_prompt(self, hit: int, expected: float) -> None:
        assert score("prefix_hit", view(hit_tokens=hit)) == expected

    def test_an_empty_prompt_has_no_prefix_hit(self) -> None:
        assert score("prefix_hit", view(), isl=0) is None

    def test_prefill_work_compares_queue_and_uncached_prompt(self) -> None:
        queued, cached = view("a", prefill_tokens=500), view("b", prefill_tokens=499, hit_tokens=1000)
        assert score("prefill_work", cached, queued) == 1.0
        assert score("prefill_work", queued, cached) == pytest.approx((499 + 1024) / (1500 + 1024))

    def test_near_idle_workers_count_as_nearly_even(self) -> None:
        idle, busier = view("a", prefill_tokens=0), view("b", prefill_tokens=64)
        assert score("prefill_work", busier, idle) > 0.9
        assert score("few_requests", view("a", inflight_requests=1), view("b", inflight_requests=0)) == 0.8

    def test_few_requests_compares_with_the_least_busy(self) -> None:
        one, three = view("a", inflight_requests=1), view("b", inflight_requests=3)
        assert score("few_requests", one, three) == 1.0
        assert score("few_requests", three, one) == pytest.approx((1 + 4) / (3 + 4))

    @pytest.mark.parametrize(("ratio", "expected"), [(None, None), (0.0, 1.0), (0.25, 0.75), (1.0, 0.0), (1.5, 0.0)])
    def test_kv_free_is_the_free_share(self, ratio: float | None, expected: float | None) -> None:
        assert score("kv_free", view(kv_used_ratio=ratio)) == expected

    @pytest.mark.parametrize(("depth", "expected"), [(None, None), (0, 1.0), (1, 0.5), (9, 0.1)])
    def test_queue_free_falls_with_each_waiting_request(self, depth: int | None, expected: float | None) -> None:
        assert score("queue_free", view(queue_depth=depth)) == expected

    def test_dynamos_prefill_cost_is_the_queue_and_the_uncached_prompt_in_blocks(self) -> None:
        queued, cached = view("a", prefill_tokens=600), view("b", prefill_tokens=640, hit_tokens=400)
        assert score("dynamo_prefill_cost", cached, queued) == 1.0
        assert score("dynamo_prefill_cost", queued, cached) == pytest.approx((1 + 1240 / 16) / (1 + 1600 / 16))

    def test_dynamos_prefill_cost_is_never_below_nothing(self) -> None:
        assert score("dynamo_prefill_cost", view(hit_tokens=1200), view("b", hit_tokens=1000)) == 1.0

    def test_dynamos_decode_cost_is_active_and_incoming_blocks_whatever_is_cached(self) -> None:
        cached, emptier = view("a", kv_tokens=3201, hit_tokens=1000), view("b", kv_tokens=1600)
        assert score("dynamo_decode_cost", emptier, cached) == 1.0
        assert score("dynamo_decode_cost", cached, emptier) == pytest.approx((1 + 100 + 63) / (1 + 201 + 63))

    @pytest.mark.parametrize("name", ["dynamo_prefill_cost", "dynamo_decode_cost"])
    def test_dynamos_costs_order_workers_as_its_router_does(self, name: str) -> None:
        views = [view(str(n), prefill_tokens=n * 777 % 5000, kv_tokens=n * 991 % 9000) for n in range(9)]
        costs = {
            each.worker_id: each.prefill_tokens if "prefill" in name else -(-each.kv_tokens // 16) for each in views
        }
        ranked = [candidate.worker_id for candidate in rank(by(name), views)]
        assert ranked == sorted(costs, key=costs.__getitem__)

    def test_dynamos_costs_count_in_its_blocks_where_a_worker_is_silent(self) -> None:
        silent, other = view("a", kv_tokens=160, kv_block_tokens=None), view("b", kv_tokens=160)
        assert score("dynamo_decode_cost", silent, other) == 1.0


class TestRanking:
    def test_the_best_weighted_mean_comes_first(self) -> None:
        views = [view("full", kv_used_ratio=0.9), view("half", kv_used_ratio=0.5), view("free", kv_used_ratio=0.1)]
        ranked = rank(by("kv_free"), views)
        assert [candidate.worker_id for candidate in ranked] == ["free", "half", "full"]
        assert [candidate.total for candidate in ranked] == pytest.approx([0.9, 0.5, 0.1])

    def test_weights_decide_between_signals(self) -> None:
        cached_but_full = view("a", hit_tokens=1000, kv_used_ratio=0.8)
        empty = view("b", hit_tokens=0, kv_used_ratio=0.0)
        assert best(by(prefix_hit=1.0, kv_free=1.0), [cached_but_full, empty]) == "a"
        assert best(by(prefix_hit=1.0, kv_free=2.0), [cached_but_full, empty]) == "b"

    def test_scores_are_listed_in_the_order_of_the_policy(self) -> None:
        ranked = rank(by("queue_free", "prefix_hit", "kv_free"), [view(queue_depth=1, kv_used_ratio=0.5)])
        assert ranked[0].scores == (("queue_free", 0.5), ("prefix_hit", 0.0), ("kv_free", 0.5))
        assert ranked[0].total == pytest.approx(1 / 3)

    def test_a_missing_signal_is_left_out_of_the_mean_and_is_not_zero(self) -> None:
        placement = by("few_requests", "kv_free")
        silent, full = view("silent", kv_used_ratio=None), view("full", kv_used_ratio=0.6)
        ranked = rank(placement, [silent, full])
        assert ranked[0].worker_id == "silent"
        assert ranked[0].scores == (("few_requests", 1.0),)
        assert ranked[0].total == 1.0

    def test_a_weight_of_zero_is_shown_and_does_not_count(self) -> None:
        views = [view("a", kv_used_ratio=0.9, inflight_requests=0), view("b", kv_used_ratio=0.0, inflight_requests=1)]
        ranked = rank(by("few_requests", kv_free=0.0), views)
        assert ranked[0].worker_id == "a"
        assert dict(ranked[0].scores) == {"few_requests": 1.0, "kv_free": pytest.approx(0.1)}

    @pytest.mark.parametrize("placement", [by(), by(kv_free=0.0, few_requests=0.0), by("kv_free")])
    def test_without_any_weight_or_signal_all_are_equal(self, placement: Placement) -> None:
        views = [view(f"w{i}", inflight_requests=i) for i in range(4)]
        ranked = rank(placement, views)
        assert {candidate.total for candidate in ranked} == {0.0}
        assert len(ranked) == 4

    def test_an_empty_pool_has_no_ranking(self) -> None:
        assert rank(by("kv_free"), []) == []

    def test_prefill_defaults_prefer_the_shortest_queue(self) -> None:
        views = [view("busy", prefill_tokens=8_000), view("idle"), view("light", prefill_tokens=500)]
        ranked = [candidate.worker_id for candidate in rank(DEFAULT_PREFILL_PLACEMENT, views)]
        assert ranked == ["idle", "light", "busy"]

    def test_decode_defaults_prefer_the_worker_with_the_prefix(self) -> None:
        views = [view(f"w{i}", kv_used_ratio=0.3, hit_tokens=900 * (i == 2)) for i in range(4)]
        assert best(DEFAULT_DECODE_PLACEMENT, views) == "w2"

    def test_decode_defaults_leave_a_worker_with_the_prefix_once_it_is_overloaded(self) -> None:
        loaded = view("cached", kv_used_ratio=0.95, hit_tokens=1000, inflight_requests=60, prefill_tokens=20_000)
        views = [loaded, view("other", kv_used_ratio=0.2)]
        assert best(DEFAULT_DECODE_PLACEMENT, views) == "other"


class TestTies:
    VIEWS = tuple(view(f"w{i}") for i in range(4))

    def test_a_request_breaks_them_the_same_way_each_time(self) -> None:
        first = rank(by("few_requests"), self.VIEWS, key="r7")
        assert rank(by("few_requests"), self.VIEWS, key="r7") == first
        assert rank(by("few_requests"), self.VIEWS[::-1], key="r7") == first

    def test_requests_spread_evenly_over_the_tied(self) -> None:
        homes = Counter(rank(by("few_requests"), self.VIEWS, key=f"r{i}")[0].worker_id for i in range(2_000))
        # 500 each; the deviation of a fair spread is about 20.
        assert len(homes) == 4
        assert max(abs(count - 500) for count in homes.values()) < 100

    def test_only_the_tied_are_shuffled(self) -> None:
        views = [*self.VIEWS, view("busy", inflight_requests=3)]
        assert all(rank(by("few_requests"), views, key=f"r{i}")[-1].worker_id == "busy" for i in range(50))


@pytest.mark.parametrize("weight", [-0.1, math.nan, math.inf])
def test_a_weight_must_be_a_finite_number_of_at_least_zero(weight: float) -> None:
    with pytest.raises(PolicyError, match="kv_free"):
        by(kv_free=weight)


def test_an_unknown_scorer_is_refused_with_the_known_ones() -> None:
    with pytest.raises(PolicyError, match=r"'cheapest'.*prefix_hit, prefill_work, few_requests, kv_free, queue_free"):
        by("cheapest")


views = st.builds(
    view,
    inflight_requests=st.integers(0, 50),
    prefill_tokens=st.integers(0, 50_000),
    kv_used_ratio=st.none() | st.floats(0, 1.5),
    queue_depth=st.none() | st.integers(0, 50),
    hit_tokens=st.integers(0, 1000),
)
weights = st.dictionaries(st.sampled_from(sorted(SCORERS)), st.floats(0, 100))


@given(st.lists(views, min_size=1, max_size=6), weights)
def test_a_ranking_is_a_permutation_with_falling_totals(pool: list[WorkerView], weighted: dict[str, float]) -> None:
    named = [replace(each, worker_id=WorkerId(f"w{i}")) for i, each in enumerate(pool)]
    ranked = rank(by(**weighted), named)
    assert {candidate.worker_id for candidate in ranked} == {each.worker_id for each in named}
    totals = [candidate.total for candidate in ranked]
    assert totals == sorted(totals, reverse=True)
    assert all(0.0 <= total <= 1.0 for total in totals)
