"""What other replicas have in flight, as a decision sees it."""

import pytest

from gateway.core.calibration import Calibration
from gateway.core.events import LoadsElsewhere, WorkerLoad
from gateway.core.fleet_state import FleetState
from gateway.core.forecast import Forecast
from gateway.core.ledger import Ledger, Reservation, Stage
from gateway.core.loads_elsewhere import OtherLoads, loads_of
from gateway.core.types import Decision, DecisionId, Role, WorkerId, WorkerView
from tests.core.factories import COSTS, decision, facts, router, sample, view, worker

D0, D1, P0 = WorkerId("d0"), WorkerId("d1"), WorkerId("p0")


def told(*loads: WorkerLoad, at_s: float = 0.0, until_s: float = 1.0, is_whole: bool = False) -> LoadsElsewhere:
    return LoadsElsewhere(at_s=at_s, until_s=until_s, loads=loads, is_whole=is_whole)


class Bench:
    """Two decode workers of 100 blocks of 16 tokens and a prefill worker."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.fleet = FleetState(self.ledger, sample_max_age_s=10.0)
        for name in ("d0", "d1", "p0"):
            self.fleet.put(worker(name, kv_total_blocks=100, kv_block_tokens=16))

    def start(self, name: str = "own", *, prefill: str | None = None) -> DecisionId:
        of = decision(name, prefill=prefill, isl=100)
        taker = of.prefill_worker or of.decode_worker
        self.ledger.reserve(
            Reservation(decision=of, facts=facts(), at_s=0.0, kv_tokens=160, prefill_worker=taker, prefill_tokens=100)
        )
        return of.decision_id

    def view(self, now_s: float = 0.0, of: WorkerId = D0) -> WorkerView:
        (seen,) = self.fleet.views([of], now_s)
        return seen


class TestViews:
    def test_own_and_others_add_up(self) -> None:
        bench = Bench()
        bench.start()
        bench.fleet.heard(told(WorkerLoad(D0, 3, 500, 700, 2, 400)))
        seen = bench.view()
        assert (seen.inflight_requests, seen.prefill_tokens, seen.kv_tokens) == (4, 600, 860)
        assert seen.resident_requests == 2
        assert seen.kv_used_ratio == pytest.approx(860 / 1600)
        assert seen.kv_resident_ratio == pytest.approx(460 / 1600)

    def test_a_sample_that_has_the_same_requests_in_it_counts_none_of_them_twice(self) -> None:
        bench = Bench()
        bench.start()
        bench.fleet.sampled(D0, sample(0.0, running=4, waiting=9, kv_used_ratio=0.9))
        bench.fleet.heard(told(WorkerLoad(D0, 3, 500, 700)))
        seen = bench.view()
        assert (seen.inflight_requests, seen.kv_tokens, seen.queue_depth) == (4, 860, 9)

    def test_it_makes_a_view_that_was_made_before_anew(self) -> None:
        bench = Bench()
        bench.fleet.heard(told())
        assert (bench.view().inflight_requests, bench.view(of=D1).inflight_requests) == (0, 0)
        bench.fleet.heard(told(WorkerLoad(D0, 3)))
        assert (bench.view().inflight_requests, bench.view(of=D1).inflight_requests) == (3, 0)
        other = bench.view(of=D1)
        bench.fleet.heard(told(WorkerLoad(D0, 5)))
        assert bench.view().inflight_requests == 5
        assert bench.view(of=D1) is other

    def test_the_own_ledger_is_seen_at_once(self) -> None:
        bench = Bench()
        bench.fleet.heard(told(WorkerLoad(P0, 1, 900)))
        assert bench.view(of=P0).prefill_tokens == 900
        own = bench.start(prefill="p0")
        assert bench.view(of=P0).prefill_tokens == 1000
        bench.ledger.advance(own, Stage.PREFILLED)
        assert bench.view(of=P0).prefill_tokens == 900

    def test_what_is_old_is_not_believed_and_then_the_sample_counts(self) -> None:
        bench = Bench()
        bench.fleet.sampled(D0, sample(0.0, running=7))
        bench.fleet.heard(told(WorkerLoad(D0, 3), until_s=1.0))
        assert bench.view(1.0).inflight_requests == 3
        assert bench.view(1.1).inflight_requests == 7
        # What has changed since is all that is told then.
        bench.fleet.heard(told(WorkerLoad(D1, 1), at_s=2.0, until_s=3.0))
        assert (bench.view(2.0).inflight_requests, bench.view(2.0, D1).inflight_requests) == (3, 1)

    def test_where_all_is_told_those_that_are_not_named_have_nothing(self) -> None:
        bench = Bench()
        bench.fleet.heard(told(WorkerLoad(D0, 3), WorkerLoad(D1, 2)))
        assert bench.view().inflight_requests == 3
        bench.fleet.heard(told(WorkerLoad(D1, 2), is_whole=True))
        assert (bench.view().inflight_requests, bench.view(of=D1).inflight_requests) == (0, 2)

    def test_a_worker_that_leaves_takes_them_with_it(self) -> None:
        bench = Bench()
        bench.fleet.heard(told(WorkerLoad(D0, 3)))
        bench.fleet.remove(D0)
        bench.fleet.heard(told(WorkerLoad(WorkerId("nobody"), 1)))
        bench.fleet.put(worker("d0"))
        assert bench.view().inflight_requests == 0

    def test_the_least_backlog_has_both_in_it(self) -> None:
        bench = Bench()
        bench.start(prefill="p0")
        assert bench.fleet.least_backlog_tokens([P0]) == 100
        bench.fleet.heard(told(WorkerLoad(P0, 1, 900)))
        bench.view()
        assert bench.fleet.least_backlog_tokens([P0]) == 1000
        assert bench.fleet.least_backlog_tokens([]) == 0


def test_a_ledger_is_told_as_its_tallies() -> None:
    bench = Bench()
    own = bench.start(prefill="p0")
    assert {*loads_of(bench.ledger)} == {WorkerLoad(P0, 1, 100, 100), WorkerLoad(D0, 1, 0, 160, 1, 160)}
    bench.ledger.release(own)
    assert [*loads_of(bench.ledger)] == []


class TestForecast:
    def queue_s(self, tokens: int, now_s: float = 0.0) -> float:
        """What others' prompts add to one's own time to the first token."""
        elsewhere = OtherLoads()
        of, alone = Forecast(COSTS, Calibration(), elsewhere), Forecast(COSTS, Calibration())
        elsewhere.told(told(WorkerLoad(P0, 1, tokens)))
        prefill = view("p0", role=Role.PREFILL)
        return of.prefill_leg(prefill, 1000, now_s).done_s - alone.prefill_leg(prefill, 1000, now_s).done_s

    def test_prompts_of_others_are_waited_for(self) -> None:
        costs = COSTS.prefill
        full = costs.max_batched_tokens
        assert self.queue_s(full) == pytest.approx(costs.prefill_s(full, 0))
        assert self.queue_s(3 * full) == pytest.approx(3 * costs.prefill_s(full, 0))
        assert self.queue_s(0) == 0.0

    def test_as_long_as_they_are_believed(self) -> None:
        assert self.queue_s(5000, now_s=1.0) > 0.0
        assert self.queue_s(5000, now_s=1.1) == 0.0

    def test_on_a_decode_worker_too(self) -> None:
        elsewhere = OtherLoads()
        elsewhere.told(told(WorkerLoad(D0, 1, 5000)))
        decode = view("d0", role=Role.DECODE)
        busy, idle = Forecast(COSTS, Calibration(), elsewhere), Forecast(COSTS, Calibration())
        outlooks = [of.local(of.decode(decode, 1000, 100.0), 1000, 0.0) for of in (busy, idle)]
        assert outlooks[0].ttft_s > outlooks[1].ttft_s
        assert outlooks[0].prefill_s == outlooks[1].prefill_s


def test_a_router_sends_a_request_where_the_others_have_not_sent_theirs() -> None:
    of = router(worker("d0"), worker("d1"))
    for busy, idle in ((D0, D1), (D1, D0)):
        of.observe(told(WorkerLoad(busy, 5, 9000, 9000), is_whole=True))
        routed = of.submit(facts(), 0.0)
        assert isinstance(routed, Decision)
        assert routed.decode_worker == idle
        of.abort(routed.decision_id, 0.0)
