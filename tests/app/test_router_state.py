"""What a scrape sees of the router."""

import pytest

from gateway.core.events import WorkerDraining, WorkerProbed
from gateway.core.health import HealthState
from gateway.core.types import Role, WorkerId
from gateway.telemetry.router_state import RouterState
from tests.core.factories import facts, finished, routed, router, scrape, worker

SECONDS_LATER = 7.0


def test_a_worker_is_shown_as_the_router_holds_it() -> None:
    made = router(worker("d0", kv_total_blocks=100))
    decision = routed(made.submit(facts(tokens=160, max_output_tokens=40), 0.0))
    scrape(made, "d0", 2.0, running=1, waiting=4, kv_used_ratio=0.5)
    (shown,) = RouterState(made, lambda: SECONDS_LATER).workers()
    assert (shown.worker_id, shown.role, shown.state) == (WorkerId("d0"), Role.DECODE, HealthState.CLOSED)
    assert (shown.inflight_requests, shown.inflight_tokens) == (1, 200)
    assert shown.queue_depth == 4
    assert shown.kv_used_ratio == 0.5
    assert shown.sample_age_s == 5.0
    made.observe(finished(decision))
    (shown,) = RouterState(made, lambda: SECONDS_LATER).workers()
    assert (shown.inflight_requests, shown.inflight_tokens) == (0, 0)


def test_what_a_worker_never_said_is_not_shown() -> None:
    (shown,) = RouterState(router(worker("d0")), lambda: SECONDS_LATER).workers()
    assert (shown.queue_depth, shown.kv_used_ratio, shown.sample_age_s) == (None, None, None)


def test_an_old_sample_gives_its_age_and_nothing_else() -> None:
    made = router(worker("d0"))
    scrape(made, "d0", 0.0, waiting=4, kv_used_ratio=0.5)
    (shown,) = RouterState(made, lambda: 1000.0).workers()
    assert (shown.queue_depth, shown.kv_used_ratio, shown.sample_age_s) == (None, None, 1000.0)


def test_health_and_draining_are_shown() -> None:
    made = router(worker("d0"), worker("d1"))
    for _ in range(3):
        made.observe(WorkerProbed(at_s=0.0, worker_id=WorkerId("d0"), healthy=False))
    made.observe(WorkerDraining(at_s=0.0, worker_id=WorkerId("d1")))
    shown = RouterState(made, lambda: 0.0).workers()
    assert [worker.shown_state for worker in shown] == ["down", "draining"]


def test_the_cores_own_figures_are_shown() -> None:
    made = router(worker("d0"))
    state = RouterState(made, lambda: SECONDS_LATER)
    assert state.prefix_blocks() == 0
    assert state.bytes_per_token() == {}
    assert state.burn_rates() == {}
    assert state.policy() == ("dynamo", "built-in")
    decision = routed(made.submit(facts(prompt_bytes=8000, chain=(1, 2, 3)), 0.0))
    made.prefix.store(WorkerId("d0"), (1, 2, 3))
    made.observe(finished(decision, at_s=6.0, input_tokens=2000, attained=False))
    assert state.prefix_blocks() == 3
    assert state.bytes_per_token() == {"llama": 4.0}
    assert state.burn_rates() == pytest.approx({("default", "5m"): 100.0, ("default", "1h"): 100.0})


def test_a_window_without_requests_has_no_burn_rate() -> None:
    made = router(worker("d0"))
    decision = routed(made.submit(facts(), 0.0))
    made.observe(finished(decision, at_s=0.0, attained=True))
    assert RouterState(made, lambda: 1000.0).burn_rates() == {("default", "1h"): 0.0}
