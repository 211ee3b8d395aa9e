from typing import Any

import pytest

from gateway.core.fleet_state import FleetState
from gateway.core.ledger import Ledger, Reservation, Stage
from gateway.core.types import DecisionId, WorkerId, WorkerView
from tests.core.factories import decision, facts, sample, worker

D0, P0 = WorkerId("d0"), WorkerId("p0")
MAX_AGE_S = 10.0


class Bench:
    """A fleet of one decode worker of 100 blocks and one prefill worker, with its ledger."""

    def __init__(self, **spec: Any) -> None:
        self.ledger = Ledger()
        self.fleet = FleetState(self.ledger, MAX_AGE_S)
        self.fleet.put(worker("d0", **{"kv_total_blocks": 100, **spec}))
        self.fleet.put(worker("p0", kv_total_blocks=100))
        self._made = 0

    def start(self, count: int = 1, *, prefill: str | None = None, isl: int = 100, osl: int = 60) -> list[DecisionId]:
        """Reserve requests of `isl` + `osl` tokens on d0."""
        ids = []
        for _ in range(count):
            self._made += 1
            of = decision(f"d-{self._made}", prefill=prefill, isl=isl)
            self.ledger.reserve(
                Reservation(
                    decision=of,
                    facts=facts(),
                    at_s=0.0,
                    kv_tokens=isl + osl,
                    prefill_worker=of.prefill_worker or of.decode_worker,
                    prefill_tokens=isl,
                )
            )
            ids.append(of.decision_id)
        return ids

    def sampled(self, at_s: float = 0.0, *, of: WorkerId = D0, **signals: Any) -> None:
        self.fleet.sampled(of, sample(at_s, **signals))

    def view(self, now_s: float = 0.0, *, of: WorkerId = D0) -> WorkerView:
        (seen,) = self.fleet.views([of], now_s)
        return seen


class TestRequests:
    def test_without_a_sample_the_ledger_stands(self) -> None:
        bench = Bench()
        bench.start(3)
        assert bench.view().inflight_requests == 3
        assert bench.view().queue_depth is None

    def test_a_sample_that_knows_more_stands(self) -> None:
        bench = Bench()
        bench.start(3)
        bench.sampled(running=8, waiting=2)
        assert (bench.view().inflight_requests, bench.view().queue_depth) == (10, 2)

    def test_a_sample_that_knows_less_does_not(self) -> None:
        bench = Bench()
        bench.start(3)
        bench.sampled(running=0, waiting=0)
        assert bench.view().inflight_requests == 3

    def test_what_started_since_the_sample_is_added_to_it(self) -> None:
        bench = Bench()
        bench.start(3)
        bench.sampled(running=8, waiting=2)
        bench.start(200)
        assert bench.view().inflight_requests == 210

    def test_what_ended_since_the_sample_is_taken_off_it(self) -> None:
        bench = Bench()
        old = bench.start(3)
        bench.sampled(running=8, waiting=2)
        for decision_id in (*old, *bench.start(50)):
            bench.ledger.release(decision_id)
        assert bench.view().inflight_requests == 7

    def test_a_burst_of_short_requests_leaves_no_phantoms(self) -> None:
        bench = Bench()
        bench.sampled(running=0, waiting=0, kv_used_ratio=0.0)
        for _ in range(500):
            (decision_id,) = bench.start()
            bench.ledger.release(decision_id)
        assert (bench.view().inflight_requests, bench.view().kv_tokens) == (0, 0)

    def test_a_new_sample_starts_the_count_anew(self) -> None:
        bench = Bench()
        bench.sampled(running=0)
        bench.start(5)
        bench.sampled(1.0, running=6)
        assert bench.view(1.0).inflight_requests == 6

    def test_a_sample_without_running_requests_is_no_zero(self) -> None:
        bench = Bench()
        bench.start(3)
        bench.sampled(waiting=5)
        assert (bench.view().inflight_requests, bench.view().queue_depth) == (3, 5)

    def test_a_sample_without_waiting_requests_still_counts_the_running(self) -> None:
        bench = Bench()
        bench.sampled(running=4)
        assert (bench.view().inflight_requests, bench.view().queue_depth) == (4, None)

    def test_a_prefill_worker_is_busy_until_its_leg_ends(self) -> None:
        bench = Bench()
        (decision_id,) = bench.start(prefill="p0", isl=800)
        seen = bench.view(of=P0)
        assert (seen.inflight_requests, seen.prefill_tokens, seen.kv_tokens) == (1, 800, 800)
        bench.ledger.advance(decision_id, Stage.PREFILLED)
        seen = bench.view(of=P0)
        assert (seen.inflight_requests, seen.prefill_tokens, seen.kv_tokens) == (0, 0, 0)


class TestAwaited:
    """Requests whose prefill another worker has yet to end: d0 has reserved for them, and holds nothing of them."""

    def test_they_are_in_flight_and_not_resident(self) -> None:
        bench = Bench()
        bench.start(2)
        (awaited,) = bench.start(prefill="p0")
        seen = bench.view()
        assert (seen.inflight_requests, seen.resident_requests) == (3, 2)
        assert (seen.kv_used_ratio, seen.kv_resident_ratio) == (0.3, 0.2)
        bench.ledger.advance(awaited, Stage.PREFILLED)
        seen = bench.view()
        assert (seen.resident_requests, seen.kv_resident_ratio) == (3, 0.3)

    def test_a_lost_prefill_brings_them_here_and_an_end_takes_them_away(self) -> None:
        bench = Bench()
        lost, ended = bench.start(2, prefill="p0")
        assert bench.view().resident_requests == 0
        bench.ledger.prefill_lost(lost)
        assert (bench.view().resident_requests, bench.view().kv_resident_ratio) == (1, 0.1)
        bench.ledger.release(ended)
        assert (bench.view().inflight_requests, bench.view().resident_requests) == (1, 1)

    def test_a_sample_is_of_what_is_resident(self) -> None:
        bench = Bench()
        bench.start(2)
        awaited = bench.start(3, prefill="p0")
        bench.sampled(running=4, waiting=1, kv_used_ratio=0.4)
        assert (bench.view().resident_requests, bench.view().kv_resident_ratio) == (5, 0.4)
        for decision_id in awaited:
            bench.ledger.advance(decision_id, Stage.PREFILLED)
        bench.start(1)
        seen = bench.view()
        assert (seen.resident_requests, seen.kv_resident_ratio) == (9, 0.8)

    def test_a_worker_without_a_capacity_is_as_full_as_it_says(self) -> None:
        bench = Bench(kv_total_blocks=None)
        bench.start(prefill="p0")
        assert bench.view().kv_resident_ratio is None
        bench.sampled(kv_used_ratio=0.25)
        assert bench.view().kv_resident_ratio == 0.25


class TestKv:
    """d0 holds 100 blocks of 16 tokens."""

    def test_without_a_sample_the_ledger_gives_the_share(self) -> None:
        bench = Bench()
        bench.start(2)
        seen = bench.view()
        assert (seen.kv_tokens, seen.kv_capacity_tokens, seen.kv_used_ratio) == (320, 1600, 0.2)

    def test_the_larger_of_sample_and_ledger_stands(self) -> None:
        bench = Bench()
        bench.start(2)
        bench.sampled(kv_used_ratio=0.5)
        assert bench.view().kv_used_ratio == 0.5
        bench.sampled(kv_used_ratio=0.1)
        assert bench.view().kv_used_ratio == 0.2

    def test_what_changed_since_the_sample_is_added_to_it(self) -> None:
        bench = Bench()
        (old,) = bench.start()
        bench.sampled(kv_used_ratio=0.5)
        bench.start()
        assert bench.view().kv_tokens == 960
        bench.ledger.release(old)
        assert bench.view().kv_tokens == 800

    def test_without_a_capacity_the_sampled_share_stands(self) -> None:
        bench = Bench(kv_total_blocks=None)
        bench.start()
        assert bench.view().kv_used_ratio is None
        bench.sampled(kv_used_ratio=0.25)
        seen = bench.view()
        assert (seen.kv_used_ratio, seen.kv_capacity_tokens, seen.kv_tokens) == (0.25, None, 160)

    def test_a_sample_without_kv_use_is_no_zero(self) -> None:
        bench = Bench()
        bench.start(2)
        bench.sampled(running=1)
        assert bench.view().kv_used_ratio == 0.2

    def test_more_reserved_than_there_is_shows_as_more_than_full(self) -> None:
        bench = Bench()
        bench.start(20)
        assert bench.view().kv_used_ratio == 2.0

    def test_the_scraped_geometry_fills_in_for_the_configured_one(self) -> None:
        bench = Bench(kv_block_tokens=None, kv_total_blocks=None)
        assert (bench.view().kv_block_tokens, bench.view().kv_capacity_tokens) == (None, None)
        bench.sampled(kv_block_tokens=32, kv_total_blocks=10)
        assert (bench.view().kv_block_tokens, bench.view().kv_capacity_tokens) == (32, 320)

    def test_the_configured_geometry_wins_over_the_scraped_one(self) -> None:
        bench = Bench(kv_block_tokens=16, kv_total_blocks=100)
        bench.sampled(kv_block_tokens=32, kv_total_blocks=10)
        assert (bench.view().kv_block_tokens, bench.view().kv_capacity_tokens) == (16, 1600)


@pytest.mark.parametrize(("age_s", "is_used"), [(0.0, True), (10.0, True), (10.01, False)])
def test_a_stale_sample_is_not_used(age_s: float, is_used: bool) -> None:
    bench = Bench()
    bench.start()
    bench.sampled(100.0, running=8, waiting=2, kv_used_ratio=0.5)
    seen = bench.view(100.0 + age_s)
    assert seen.queue_depth == (2 if is_used else None)
    assert seen.inflight_requests == (10 if is_used else 1)
    assert seen.kv_used_ratio == (0.5 if is_used else 0.1)


def test_a_stale_sample_still_tells_the_size_of_the_cache() -> None:
    bench = Bench(kv_block_tokens=None, kv_total_blocks=None)
    bench.sampled(0.0, kv_block_tokens=32, kv_total_blocks=10)
    assert bench.view(1_000.0).kv_capacity_tokens == 320


def test_a_view_stands_until_something_of_its_worker_changes() -> None:
    bench = Bench()
    bench.sampled(0.0, running=3)
    seen = bench.view(1.0)
    assert bench.view(2.0) is seen
    assert bench.view(MAX_AGE_S + 1.0).inflight_requests == 0
    (request,) = bench.start()
    assert bench.view(2.0).inflight_requests == 4
    bench.ledger.release(request)
    assert bench.view(2.0) == seen


def test_a_change_of_the_fleet_is_told_by_its_version() -> None:
    bench = Bench()
    before = bench.fleet.version
    bench.fleet.put(worker("d1"))
    bench.fleet.remove(D0)
    assert bench.fleet.version == before + 2


def test_a_changed_spec_keeps_the_sample() -> None:
    bench = Bench()
    bench.sampled(running=8)
    bench.fleet.put(worker("d0", kv_total_blocks=200))
    assert (bench.view().inflight_requests, bench.view().kv_capacity_tokens) == (8, 3200)
    assert len(bench.fleet) == 2


def test_a_worker_that_left_is_unknown() -> None:
    bench = Bench()
    bench.fleet.remove(D0)
    bench.fleet.remove(D0)
    bench.sampled(running=1)
    assert D0 not in bench.fleet
    assert [state.spec.worker_id for state in bench.fleet] == ["p0"]


def test_a_model_is_served_while_any_worker_has_it() -> None:
    bench = Bench(models=("llama", "adapter"))
    assert bench.fleet.serves("adapter")
    bench.fleet.remove(D0)
    assert not bench.fleet.serves("adapter")
    assert bench.fleet.serves("llama")
