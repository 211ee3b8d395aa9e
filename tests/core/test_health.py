import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.health import HealthPolicy, HealthState, HealthTable
from gateway.core.path.base import PolicyError
from gateway.core.types import DecisionId, Role, WorkerId

CLOSED, HALF_OPEN, OPEN, DOWN = HealthState.CLOSED, HealthState.HALF_OPEN, HealthState.OPEN, HealthState.DOWN
W = WorkerId("w0")


def table(workers: int = 4, *, role: Role = Role.DECODE, **policy: Any) -> HealthTable:
    """Workers w0, w1 ... of one role, all well."""
    made = HealthTable(HealthPolicy(**policy))
    for i in range(workers):
        made.add(WorkerId(f"w{i}"), role)
    return made


def fail(of: HealthTable, times: int = 5, *, worker: WorkerId = W, now_s: float = 0.0) -> None:
    for _ in range(times):
        of.failed(worker, now_s)


def in_state(state: HealthState, **policy: Any) -> HealthTable:
    """A table whose w0 is in `state`; it was ejected at 0 s where that is on the way."""
    of = table(**policy)
    if state in (OPEN, HALF_OPEN):
        fail(of)
    if state is HALF_OPEN:
        of.tick(10.0)
    if state is DOWN:
        probe(of, *[False] * 3)
    assert of.get(W).state is state
    return of


def probe(of: HealthTable, *answers: bool) -> None:
    for healthy in answers:
        of.probed(W, healthy)


def routable(of: HealthTable, *, may_panic: bool = False) -> set[str]:
    return set(of.routable(of._workers, may_panic=may_panic))


class TestTransitions:
    """The table of the module, one row each: state, what happens, state afterwards."""

    @pytest.mark.parametrize(("times", "after"), [(4, CLOSED), (5, OPEN)])
    def test_closed_opens_at_the_last_of_so_many_failures_in_a_row(self, times: int, after: HealthState) -> None:
        of = table()
        fail(of, times)
        assert of.get(W).state is after

    def test_a_success_in_between_starts_the_row_anew(self) -> None:
        of = table()
        fail(of, 4)
        of.succeeded(W)
        fail(of, 4)
        assert of.get(W).state is CLOSED

    @pytest.mark.parametrize(("now_s", "after"), [(9.99, OPEN), (10.0, HALF_OPEN), (1e9, HALF_OPEN)])
    def test_open_ends_with_time(self, now_s: float, after: HealthState) -> None:
        of = in_state(OPEN)
        of.tick(now_s)
        assert of.get(W).state is after

    def test_open_is_not_ended_by_a_request_that_was_under_way(self) -> None:
        of = in_state(OPEN)
        of.succeeded(W)
        fail(of)
        assert (of.get(W).state, of.get(W).open_until_s) == (OPEN, 10.0)

    def test_half_open_closes_after_enough_successes(self) -> None:
        of = in_state(HALF_OPEN)
        of.succeeded(W)
        assert of.get(W).state is HALF_OPEN
        of.succeeded(W)
        assert of.get(W).state is CLOSED

    def test_half_open_opens_at_the_first_failure(self) -> None:
        of = in_state(HALF_OPEN)
        of.succeeded(W)
        fail(of, 1, now_s=20.0)
        assert (of.get(W).state, of.get(W).open_until_s) == (OPEN, 40.0)

    def test_a_new_trial_counts_its_successes_anew(self) -> None:
        of = in_state(HALF_OPEN)
        of.succeeded(W)
        fail(of, 1, now_s=20.0)
        of.tick(40.0)
        of.succeeded(W)
        assert of.get(W).state is HALF_OPEN

    @pytest.mark.parametrize("state", [CLOSED, HALF_OPEN, OPEN])
    def test_failing_probes_take_any_worker_down(self, state: HealthState) -> None:
        of = in_state(state)
        probe(of, False, False)
        assert of.get(W).state is state
        probe(of, False)
        assert of.get(W).state is DOWN

    def test_only_probes_in_a_row_count(self) -> None:
        of = table()
        probe(of, False, False, True, False, False)
        assert of.get(W).state is CLOSED

    def test_down_comes_back_on_trial_after_enough_good_probes(self) -> None:
        of = in_state(DOWN)
        probe(of, True, False, True)
        assert of.get(W).state is DOWN
        probe(of, True)
        assert of.get(W).state is HALF_OPEN

    def test_requests_and_time_do_not_bring_a_down_worker_back(self) -> None:
        of = in_state(DOWN)
        fail(of, 10)
        of.succeeded(W)
        of.tick(1e9)
        assert of.get(W).state is DOWN

    @pytest.mark.parametrize("state", [CLOSED, HALF_OPEN, OPEN])
    def test_good_probes_alone_change_no_other_state(self, state: HealthState) -> None:
        of = in_state(state)
        probe(of, *[True] * 10)
        assert of.get(W).state is state


class TestLateProbes:
    """A probe that runs out of time weighs less than one that is refused."""

    @staticmethod
    def _late(of: HealthTable, times: int) -> None:
        for _ in range(times):
            of.probed(W, healthy=False, timed_out=True)

    @pytest.mark.parametrize(("times", "after"), [(5, CLOSED), (6, DOWN)])
    def test_so_many_in_a_row_take_a_worker_down(self, times: int, after: HealthState) -> None:
        of = table()
        self._late(of, times)
        assert of.get(W).state is after

    def test_a_good_probe_between_starts_the_row_anew(self) -> None:
        of = table()
        self._late(of, 5)
        probe(of, True)
        self._late(of, 5)
        assert of.get(W).state is CLOSED

    def test_whatever_else_comes_from_the_worker_starts_the_row_anew(self) -> None:
        of = table()
        self._late(of, 5)
        of.heard(W)
        self._late(of, 5)
        of.succeeded(W)
        self._late(of, 5)
        assert of.get(W).state is CLOSED

    def test_refused_probes_take_a_worker_down_whatever_else_comes(self) -> None:
        of = table()
        for _ in range(3):
            probe(of, False)
            of.heard(W)
        assert of.get(W).state is DOWN

    def test_late_probes_neither_count_as_refused_nor_forgive_those(self) -> None:
        of = table()
        probe(of, False, False)
        self._late(of, 3)
        assert of.get(W).state is CLOSED
        probe(of, False)
        assert of.get(W).state is DOWN

    def test_refused_and_late_probes_count_together_as_silence(self) -> None:
        of = table(probe_failures=3, probe_timeouts=4)
        probe(of, False, False)
        self._late(of, 2)
        assert of.get(W).state is DOWN

    def test_a_late_probe_keeps_a_down_worker_down(self) -> None:
        of = in_state(DOWN)
        probe(of, True)
        self._late(of, 1)
        probe(of, True)
        assert of.get(W).state is DOWN


class TestEjection:
    def test_each_failed_trial_doubles_the_pause_up_to_the_cap(self) -> None:
        of, pauses, now_s = in_state(OPEN), [10.0], 0.0
        for _ in range(5):
            now_s = of.get(W).open_until_s
            of.tick(now_s)
            fail(of, 1, now_s=now_s)
            pauses.append(of.get(W).open_until_s - now_s)
        assert pauses == [10.0, 20.0, 40.0, 80.0, 120.0, 120.0]

    def test_a_worker_that_never_recovers_is_tried_for_ever(self) -> None:
        of = in_state(OPEN)
        for _ in range(2_000):
            of.tick(of.get(W).open_until_s)
            fail(of, 1, now_s=of.get(W).open_until_s)
        assert of.get(W).state is OPEN

    def test_a_recovered_worker_begins_with_the_short_pause_again(self) -> None:
        of = in_state(HALF_OPEN)
        of.succeeded(W)
        of.succeeded(W)
        fail(of, now_s=100.0)
        assert of.get(W).open_until_s == 110.0

    @pytest.mark.parametrize(("workers", "ejected"), [(1, 1), (2, 1), (3, 1), (4, 2), (5, 2), (8, 4)])
    def test_no_more_than_the_set_share_of_a_pool_is_ejected(self, workers: int, ejected: int) -> None:
        of = table(workers)
        for i in range(workers):
            fail(of, 20, worker=WorkerId(f"w{i}"))
        assert len(of._workers) - len(routable(of)) == ejected

    def test_a_share_of_zero_still_ejects_one(self) -> None:
        of = table(4, max_ejected_ratio=0.0)
        fail(of)
        fail(of, worker=WorkerId("w1"))
        assert routable(of) == {"w1", "w2", "w3"}

    def test_the_cap_is_per_role(self) -> None:
        of = table(2)
        of.add(WorkerId("p0"), Role.PREFILL)
        of.add(WorkerId("p1"), Role.PREFILL)
        fail(of)
        fail(of, worker=WorkerId("p0"))
        assert routable(of) == {"w1", "p1"}

    def test_a_worker_spared_by_the_cap_goes_once_there_is_room(self) -> None:
        of = table(2)
        fail(of)
        fail(of, worker=WorkerId("w1"))
        of.tick(10.0)
        fail(of, 1, worker=WorkerId("w1"), now_s=10.0)
        assert of.get(WorkerId("w1")).state is OPEN


class TestOutlier:
    """A worker that fails often, though never five times in a row."""

    @staticmethod
    def _mixed(of: HealthTable, requests: int, *, worker: WorkerId = W) -> None:
        # Two of three fail.
        for i in range(requests):
            if i % 3 == 2:
                of.succeeded(worker)
            else:
                of.failed(worker, 0.0)

    def test_it_is_ejected_while_the_rest_is_well(self) -> None:
        of = table()
        for _ in range(30):
            of.succeeded(WorkerId("w1"))
        self._mixed(of, 60)
        assert of.get(W).state is OPEN

    def test_it_stays_where_the_rest_fails_as_often(self) -> None:
        of = table()
        for name in ("w1", "w2", "w3"):
            self._mixed(of, 60, worker=WorkerId(name))
            assert of.get(WorkerId(name)).state is CLOSED
        self._mixed(of, 60)
        assert of.get(W).state is CLOSED

    def test_it_stays_where_nobody_else_has_been_asked(self) -> None:
        of = table()
        self._mixed(of, 60)
        assert of.get(W).state is CLOSED

    def test_another_role_is_no_comparison(self) -> None:
        of = table(1)
        of.add(WorkerId("p0"), Role.PREFILL)
        for _ in range(30):
            of.succeeded(WorkerId("p0"))
        self._mixed(of, 60)
        assert of.get(W).state is CLOSED

    def test_it_goes_where_the_rest_fails_now_and_then(self) -> None:
        of = table()
        for i in range(50):
            if i % 5 == 0:
                of.failed(WorkerId("w1"), 0.0)
            else:
                of.succeeded(WorkerId("w1"))
        self._mixed(of, 60)
        assert of.get(W).state is OPEN

    def test_both_bounds_are_strict(self) -> None:
        # A memory of two requests: a success and then a failure are a ratio of 1 / 1.5.
        bound: dict[str, Any] = {
            "outlier_failure_ratio": 1.0 / 1.5, "outlier_min_requests": 1, "memory_requests": 2.0,
        }  # fmt: skip
        at_the_bound = table(2, **bound)
        at_the_bound.succeeded(WorkerId("w1"))
        at_the_bound.succeeded(W)
        fail(at_the_bound, 1)
        assert at_the_bound.get(W).state is CLOSED
        rest_at_the_bound = table(2, **bound)
        rest_at_the_bound.succeeded(WorkerId("w1"))
        fail(rest_at_the_bound, 1, worker=WorkerId("w1"))
        fail(rest_at_the_bound, 2)
        assert rest_at_the_bound.get(W).state is CLOSED

    def test_a_recovered_worker_begins_with_a_clean_record(self) -> None:
        of = table()
        for _ in range(30):
            of.succeeded(WorkerId("w1"))
        self._mixed(of, 60)
        of.tick(10.0)
        of.succeeded(W)
        of.succeeded(W)
        fail(of, 1)
        assert of.get(W).state is CLOSED

    def test_a_new_worker_has_not_failed(self) -> None:
        assert table().get(W).failure_ratio == 0.0

    def test_few_requests_prove_nothing(self) -> None:
        of = table()
        for _ in range(30):
            of.succeeded(WorkerId("w1"))
        self._mixed(of, 18)
        assert of.get(W).state is CLOSED

    @pytest.mark.parametrize("ratio", [0.6, 0.7])
    def test_only_a_worker_above_the_ratio_goes(self, ratio: float) -> None:
        of = table(outlier_failure_ratio=ratio)
        for _ in range(30):
            of.succeeded(WorkerId("w1"))
        self._mixed(of, 60)
        assert of.get(W).state is (OPEN if ratio < 2 / 3 else CLOSED)

    def test_old_requests_fade(self) -> None:
        of = table()
        for _ in range(10_000):
            of.succeeded(W)
        health = of.get(W)
        assert health.requests == pytest.approx(50.0)
        fail(of, 3)
        assert health.failure_ratio == pytest.approx(0.06, abs=0.01)


class TestRoutable:
    def test_only_well_workers_take_requests(self) -> None:
        for state in (OPEN, DOWN):
            assert routable(in_state(state)) == {"w1", "w2", "w3"}

    def test_a_worker_on_trial_takes_one_request_at_a_time(self) -> None:
        of = in_state(HALF_OPEN)
        for number in range(3):
            decision_id = DecisionId(f"trial-{number}")
            assert W in routable(of)
            of.sent(W, decision_id)
            assert W not in routable(of)
            of.ended(W, DecisionId("another"))
            assert W not in routable(of)
            of.ended(W, decision_id)

    def test_requests_from_before_the_trial_do_not_hold_it_up(self) -> None:
        of = table()
        of.sent(W, DecisionId("a long stream"))
        fail(of)
        of.tick(10.0)
        assert W in routable(of)

    def test_a_trial_that_failed_does_not_hold_up_the_next(self) -> None:
        of = in_state(HALF_OPEN)
        of.sent(W, DecisionId("hangs"))
        fail(of, 1, now_s=20.0)
        of.tick(40.0)
        assert W in routable(of)
        of.sent(W, DecisionId("trial"))
        of.ended(W, DecisionId("hangs"))
        assert W not in routable(of)

    def test_panic_gives_workers_that_are_not_well(self) -> None:
        of = table(2)
        fail(of)
        assert (of.is_well(W), of.is_well(WorkerId("w1"))) == (False, True)
        of.tick(10.0)
        assert of.is_well(W)
        of.sent(W, DecisionId("trial"))
        assert not of.is_well(W)

    def test_a_draining_worker_takes_nothing_even_in_panic(self) -> None:
        of = table(1)
        of.drain(W)
        assert routable(of, may_panic=True) == set()

    def test_a_drained_worker_that_joins_again_takes_requests(self) -> None:
        of = table(1)
        of.drain(W)
        of.add(W, Role.DECODE)
        assert routable(of) == {W}

    def test_a_pool_below_the_panic_share_gives_its_ejected_workers_too(self) -> None:
        of = table(3, max_ejected_ratio=1.0)
        fail(of)
        fail(of, worker=WorkerId("w1"))
        assert routable(of, may_panic=True) == {"w0", "w1", "w2"}
        assert routable(of, may_panic=False) == {"w2"}

    def test_a_pool_at_the_panic_share_does_not_panic(self) -> None:
        of = table(4, max_ejected_ratio=1.0, panic_ratio=0.25)
        for name in ("w0", "w1", "w2"):
            fail(of, worker=WorkerId(name))
        assert routable(of, may_panic=True) == {"w3"}

    def test_panic_never_gives_a_worker_whose_probe_fails(self) -> None:
        of = table(3, max_ejected_ratio=1.0)
        probe(of, False, False, False)
        fail(of, worker=WorkerId("w1"))
        fail(of, worker=WorkerId("w2"))
        assert routable(of, may_panic=True) == {"w1", "w2"}

    def test_the_only_worker_serves_on_in_panic(self) -> None:
        of = table(1)
        fail(of)
        assert routable(of, may_panic=True) == {W}

    def test_draining_workers_do_not_count_as_missing(self) -> None:
        of = table(4)
        for name in ("w1", "w2", "w3"):
            of.drain(WorkerId(name))
        fail(of)
        of.tick(10.0)
        # One worker, on trial and idle: that is all of the pool.
        assert routable(of, may_panic=True) == {W}

    def test_the_order_of_the_pool_is_kept(self) -> None:
        of = table(3)
        pool = [WorkerId("w2"), WorkerId("w0"), WorkerId("w1")]
        assert of.routable(pool, may_panic=True) == pool

    def test_an_empty_pool_gives_nobody(self) -> None:
        assert table(0).routable([], may_panic=True) == []


def test_a_known_worker_that_changes_its_role_stays_as_it_was() -> None:
    of = in_state(OPEN)
    of.add(W, Role.BOTH)
    assert (of.get(W).role, of.get(W).state) == (Role.BOTH, OPEN)


def test_a_worker_that_left_comes_back_well() -> None:
    of = in_state(DOWN)
    of.remove(W)
    of.add(W, Role.DECODE)
    assert of.get(W).state is CLOSED


def test_unknown_workers_are_ignored() -> None:
    of = table(1)
    gone = WorkerId("gone")
    of.failed(gone, 0.0)
    of.succeeded(gone)
    of.probed(gone, healthy=False)
    of.drain(gone)
    of.heard(gone)
    of.sent(gone, DecisionId("d"))
    of.ended(gone, DecisionId("d"))
    of.remove(gone)
    assert of.is_down(gone)
    assert set(of._workers) == {W}
    with pytest.raises(KeyError):
        of.get(gone)


@pytest.mark.parametrize(
    "keys",
    [
        {"consecutive_failures": 0},
        {"outlier_min_requests": 0},
        {"memory_requests": 0.0},
        {"memory_requests": math.nan},
        {"trial_successes": 0},
        {"probe_failures": 0},
        {"probe_timeouts": 0},
        {"probe_successes": 0},
        {"open_s": 0.0},
        {"max_open_s": -1.0},
        {"outlier_failure_ratio": 1.1},
        {"max_ejected_ratio": -0.1},
        {"panic_ratio": math.nan},
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(keys: dict[str, Any]) -> None:
    with pytest.raises(PolicyError, match=next(iter(keys))):
        HealthPolicy(**keys)


def test_the_smallest_policy_is_legal() -> None:
    policy = HealthPolicy(
        consecutive_failures=1,
        outlier_min_requests=1,
        memory_requests=1.0,
        trial_successes=1,
        probe_failures=1,
        probe_timeouts=1,
        probe_successes=1,
        open_s=0.1,
        max_open_s=0.1,
        outlier_failure_ratio=0.0,
        max_ejected_ratio=1.0,
        panic_ratio=0.0,
    )
    of = HealthTable(policy)
    of.add(W, Role.DECODE)
    fail(of, 1)
    assert of.get(W).state is OPEN
    of.tick(0.1)
    of.succeeded(W)
    assert of.get(W).state is CLOSED


@pytest.mark.parametrize("state", [CLOSED, HALF_OPEN, OPEN, DOWN])
def test_only_a_worker_whose_probe_fails_is_down(state: HealthState) -> None:
    assert in_state(state).is_down(W) is (state is DOWN)


signals = st.lists(
    st.tuples(st.sampled_from(["fail", "succeed", "good probe", "bad probe", "tick"]), st.integers(0, 3)), max_size=120
)


@given(signals, st.integers(1, 4))
def test_whatever_happens_requests_alone_never_eject_more_than_the_cap(
    happened: list[tuple[str, int]], workers: int
) -> None:
    of = table(workers)
    for now_s, (what, i) in enumerate(happened):
        worker = WorkerId(f"w{i % workers}")
        before = sum(health.state is OPEN for health in of._workers.values())
        was_on_trial = of.get(worker).state is HALF_OPEN
        match what:
            case "fail":
                of.failed(worker, float(now_s))
            case "succeed":
                of.succeeded(worker)
            case "tick":
                of.tick(float(now_s))
            case _:
                of.probed(worker, healthy=what == "good probe")
        opened = sum(health.state is OPEN for health in of._workers.values())
        # A failed trial goes back to where it came from; only a new ejection is capped.
        assert opened <= max(before, 1, workers * 0.5) or was_on_trial
