"""What a decision log tells of its workers' prices."""

import numpy as np
import pytest

from gateway.core.types import Path
from loadtest.calibrate.logged import log_observations
from loadtest.calibrate.observation import predicted_seconds
from loadtest.calibrate.plan import Kind
from loadtest.engine.presets import load_engine
from tests.loadtest.calibrate.log_lab import failed, simulated_log

SPEC, TABLE = load_engine("h100-llama8b")
BUDGET = SPEC.max_batched_tokens


@pytest.mark.parametrize("rate_rps", [0.3, 2.0])
def test_requests_that_hardly_queued_are_predicted_by_the_true_table(rate_rps: float) -> None:
    log = simulated_log(SPEC, TABLE, rate_rps=rate_rps)
    assert {record.decision.path for record in log if record.decision is not None} == set(Path)
    ratios: dict[Kind, list[float]] = {Kind.PREFILL: [], Kind.DECODE: []}
    for one in log_observations(log, budget_tokens=BUDGET):
        ratios[one.kind].append(one.seconds / predicted_seconds(SPEC, TABLE, one))
    for kind, found in ratios.items():
        low, middle, high = np.quantile(found, [0.25, 0.5, 0.75])
        assert len(found) > 40, kind
        assert middle == pytest.approx(1.0, abs=0.02), kind
        assert high - low < 0.1, kind


def test_the_log_of_a_faster_emulated_fleet_is_told_in_engine_time() -> None:
    real = log_observations(simulated_log(SPEC, TABLE), budget_tokens=BUDGET)
    fast = log_observations(simulated_log(SPEC, TABLE, speed=8.0), budget_tokens=BUDGET, speed=8.0)
    assert [one.seconds for one in fast] == pytest.approx([one.seconds for one in real], rel=1e-5)
    told = [[predicted_seconds(SPEC, TABLE, one) for one in seen] for seen in (fast, real)]
    assert told[0] == pytest.approx(told[1], rel=0.01)


def test_prompts_that_shared_their_worker_with_others_are_left_out() -> None:
    at_once = simulated_log(SPEC, TABLE, requests=50, rate_rps=1e6)
    assert [one for one in log_observations(at_once, budget_tokens=BUDGET) if one.kind is Kind.PREFILL] == []


def test_failed_requests_are_not_observed_but_known_to_have_been_there() -> None:
    log = simulated_log(SPEC, TABLE, rate_rps=0.3)
    broken = [failed(record) if place % 2 else record for place, record in enumerate(log)]
    seen = log_observations(broken, budget_tokens=BUDGET)
    assert 0 < len([one for one in seen if one.kind is Kind.PREFILL]) <= len(log) / 2
    assert log_observations([failed(record) for record in log], budget_tokens=BUDGET) == []


def test_an_empty_log_observed_nothing() -> None:
    assert log_observations([], budget_tokens=BUDGET) == []
