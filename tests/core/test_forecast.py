"""What is expected of workers, on an engine with round prices: see `factories.ENGINE`."""

from collections import deque
from dataclasses import replace

import pytest

from gateway.core.calibration import Calibration
from gateway.core.engine_costs import EnginePower
from gateway.core.forecast import LOCAL_MEMORY_S, FleetCosts, Forecast
from gateway.core.types import Decision, Outlook, Role, WorkerId
from tests.core.factories import COSTS, decision, view

DECODE = view("d0", role=Role.DECODE)
PREFILL = view("p0", role=Role.PREFILL)


def forecast() -> Forecast:
    return Forecast(COSTS, Calibration())


def local(of: Forecast, decode: object = DECODE, *, isl: int = 1000, now_s: float = 0.0) -> Outlook:
    return of.local(of.decode(decode, isl, 100.0), isl, now_s)  # type: ignore[arg-type]


def remote(of: Forecast, *, isl: int = 1000, now_s: float = 0.0) -> Outlook:
    return of.remote(of.decode(DECODE, isl, 100.0), of.prefill_leg(PREFILL, isl, now_s), isl, 100.0, now_s)


def promised(of: Forecast, name: str, *, prefill: str | None) -> Decision:
    outlook = remote(of) if prefill else local(of)
    return replace(decision(name, prefill=prefill), outlook=outlook)


def test_on_idle_workers_a_local_prefill_takes_its_steps() -> None:
    outlook = local(forecast())
    assert outlook.ttft_s == pytest.approx(0.11)
    assert outlook.tpot_s == pytest.approx(0.01 + 0.0001 + 1050 * 1e-7)
    assert outlook.crowd_s == 0.0


def test_a_remote_prefill_takes_a_transfer_and_a_step_more() -> None:
    outlook = remote(forecast())
    assert outlook.ttft_s == pytest.approx(0.11 + 0.02 + outlook.tpot_s)
    assert outlook.stall_s == 0.0


def test_cached_tokens_are_not_computed_and_not_moved() -> None:
    cached = local(forecast(), view("d0", role=Role.DECODE, hit_tokens=900))
    assert cached.prefill_s == pytest.approx(0.01 + 0.01 + 900 * 1e-7)


def test_a_local_prefill_holds_up_those_that_decode_by_what_it_adds_to_a_step() -> None:
    busy = view("d0", role=Role.DECODE, inflight_requests=10, kv_tokens=10_000)
    of = forecast()
    outlook = local(of, busy)
    assert outlook.stall_s == pytest.approx(outlook.prefill_s - of.decode(busy, 1000, 100.0).before_s)
    assert outlook.crowd_s == pytest.approx(0.0001 + 1050 * 1e-7)


def test_a_second_request_waits_for_the_first_prefill() -> None:
    of = forecast()
    before_s = remote(of).ttft_s
    of.sent(promised(of, "one", prefill="p0"), 0.0)
    assert remote(of).ttft_s == pytest.approx(before_s + 0.11)
    assert local(of).ttft_s == pytest.approx(0.11)


def test_an_ended_prefill_is_waited_for_no_more() -> None:
    of = forecast()
    one = promised(of, "one", prefill="p0")
    of.sent(one, 0.0)
    of.prefilled(one, 0.11)
    assert of.of(WorkerId("p0")).backlog.seconds(0.11) == 0.0
    of.ended(one, 1.0, tpot_s=one.outlook.tpot_s if one.outlook else None)
    assert of.of(WorkerId("p0")).backlog.correction == pytest.approx(1.0)
    assert of.of(WorkerId("d0")).decode_correction == pytest.approx(1.0)


def test_a_request_that_failed_leaves_no_backlog_and_teaches_nothing() -> None:
    of = forecast()
    one = promised(of, "one", prefill=None)
    of.sent(one, 0.0)
    of.ended(one, 0.05, tpot_s=None)
    worker = of.of(WorkerId("d0"))
    assert (len(worker.backlog), worker.backlog.correction, worker.decode_correction) == (0, 1.0, 1.0)


def test_local_prefills_of_late_lengthen_the_expected_tpot_until_they_are_forgotten() -> None:
    of = forecast()
    busy = view("d0", role=Role.DECODE, inflight_requests=1, kv_tokens=1000)
    calm_s = local(of, busy).tpot_s
    for number in range(20):
        of.sent(replace(decision(str(number)), outlook=local(of, busy)), 0.0)
    assert local(of, busy, now_s=0.0).tpot_s > 1.2 * calm_s
    assert local(of, busy, now_s=LOCAL_MEMORY_S).tpot_s == pytest.approx(calm_s)


def test_answers_that_come_slower_than_expected_raise_what_is_expected() -> None:
    of = forecast()
    for number in range(400):
        one = replace(decision(str(number)), outlook=local(of, now_s=float(number)))
        of.sent(one, float(number))
        of.ended(one, number + 0.5, tpot_s=0.02)
    assert local(of, now_s=400.0).tpot_s == pytest.approx(0.02, rel=0.02)


def test_errors_that_are_told_late_do_not_make_the_correction_swing() -> None:
    """Every answer is told 300 answers after it was predicted, and takes 1.5 times what it is priced at."""
    of = forecast()
    under_way: deque[Decision] = deque()
    seen = []
    for number in range(2000):
        one = promised(of, str(number), prefill="p0")
        of.sent(one, float(number))
        under_way.append(one)
        if len(under_way) > 300:
            late = under_way.popleft()
            priced_s = of.decode(DECODE, 1000, 100.0).after_s / of.of(WorkerId("d0")).decode_correction
            of.ended(late, number + 0.5, tpot_s=1.5 * priced_s)
        seen.append(of.of(WorkerId("d0")).decode_correction)
    assert seen[-1] == pytest.approx(1.5, rel=0.05)
    assert max(seen) < 1.6


def test_a_worker_that_left_is_forgotten() -> None:
    of = forecast()
    of.sent(promised(of, "one", prefill="p0"), 0.0)
    of.forget(WorkerId("p0"))
    assert remote(of).ttft_s == pytest.approx(remote(forecast()).ttft_s)


def test_energy_is_that_of_the_price_and_not_of_the_time_that_was_seen() -> None:
    power = EnginePower(idle_w=100.0, decode_w=400.0, prefill_w=700.0)
    powered = FleetCosts(prefill=replace(COSTS.prefill, power=power), decode=replace(COSTS.decode, power=power))
    of = Forecast(powered, Calibration())
    beside = view("d0", role=Role.DECODE, inflight_requests=10, kv_tokens=10_000)
    assert remote(of).prefill_j == pytest.approx(powered.prefill.prefill_j(remote(of).prefill_s, 0.0))
    assert 0.0 < local(of, beside).prefill_j == pytest.approx(local(of, beside).stall_s * 600.0)
    assert remote(forecast()).prefill_j == 0.0
