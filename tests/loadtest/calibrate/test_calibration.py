"""Probes and fit together, against engines whose prices are known."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from loadtest.calibrate.limits import CalibrationError
from loadtest.calibrate.outcome import doubts
from loadtest.calibrate.plan import make_plan
from loadtest.calibrate.prober import Prober, Texts
from loadtest.calibrate.target import Ask, AskError, Heard
from tests.loadtest.calibrate.calibration_lab import (
    DECODES,
    OVER_PREFIXES,
    PREFILLS,
    calibrated,
    limits_of,
    true_engine,
)
from tests.loadtest.calibrate.engine_target import EngineTarget

ENGINES = ("h100-llama8b", "h100-llama70b-tp4")


@pytest.mark.parametrize("engine", ENGINES)
def test_without_noise_the_steps_of_the_grid_are_recovered(engine: str) -> None:
    found = calibrated(engine, budget=400)
    assert found.worst_error(PREFILLS) < 0.002
    assert found.worst_error(OVER_PREFIXES) < 0.002
    assert found.worst_error(DECODES) < 0.002
    spec, true_spec = found.file.limits, found.worker.spec
    assert spec.intake_s + 8192 * spec.intake_token_s < 1e-4
    assert spec.transfer_bytes_per_s == pytest.approx(true_spec.transfer_bytes_per_s, rel=0.01)
    assert spec.transfer_latency_s == pytest.approx(true_spec.transfer_latency_s, rel=0.1)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("engine", "noise_s"), [("h100-llama8b", 0.0003), ("h100-llama70b-tp4", 0.001)])
def test_clients_that_hear_late_and_unevenly_recover_the_steps_within_5_percent(
    engine: str, noise_s: float, seed: int
) -> None:
    found = calibrated(engine, late_s=noise_s, noise_s=noise_s, seed=seed)
    assert found.worst_error(PREFILLS) < 0.05
    assert found.worst_error(OVER_PREFIXES) < 0.05
    assert found.worst_error(DECODES) < 0.05


def test_the_way_there_and_back_is_intake_not_work() -> None:
    near, far = calibrated("h100-llama8b", budget=400), calibrated("h100-llama8b", budget=400, late_s=0.02)
    assert far.file.limits.intake_s - near.file.limits.intake_s == pytest.approx(0.02, rel=0.01)
    assert far.worst_error(PREFILLS) < 0.002


def test_no_more_requests_are_sent_than_planned_and_the_plan_keeps_the_budget() -> None:
    for budget in (120, 400, 1000):
        found = calibrated("h100-llama8b", budget=budget)
        assert found.measured.requests == found.plan.requests <= budget


def test_residuals_are_told_by_kind_of_probe() -> None:
    residuals = calibrated("h100-llama8b", budget=120).file.costs.provenance.residuals
    assert {found.term for found in residuals} == {"prefill", "prefill over a prefix", "decode", "transfer"}
    assert all(found.p90 < 0.01 for found in residuals)


def test_measurements_that_contradict_each_other_are_told() -> None:
    quiet = calibrated("h100-llama8b", budget=120)
    noisy = calibrated("h100-llama8b", budget=120, noise_s=0.05)
    assert doubts(quiet.file.costs.provenance.residuals) == []
    (doubt,) = doubts(noisy.file.costs.provenance.residuals)
    assert "contradict each other" in doubt
    assert doubt in noisy.file.costs.provenance.notes


class Failing(EngineTarget):
    """A worker that refuses streams of some batch size."""

    refused_batch: int = 0

    async def stream(self, asks: Sequence[Ask]) -> list[Heard]:
        if len(asks) == self.refused_batch:
            raise AskError("refused")
        return await super().stream(asks)


def prober(refused_batch: int, budget: int) -> tuple[Prober, Failing]:
    spec, costs = true_engine("h100-llama8b")
    worker = Failing(spec, costs)
    worker.refused_batch = refused_batch
    return Prober(worker, limits_of(spec), Texts(0)), worker


def test_a_probe_that_fails_is_left_out_and_told() -> None:
    spec, _ = true_engine("h100-llama8b")
    plan = make_plan(limits_of(spec), budget=300, transfers=False)
    measured = asyncio.run(prober(refused_batch=64, budget=300)[0].run(plan))
    assert measured.failures
    assert all("64" in failure and "refused" in failure for failure in measured.failures)
    assert all(seen.steps[0].decode_sequences != 64 for seen in measured.observations)


def test_a_worker_that_answers_nothing_cannot_be_calibrated() -> None:
    spec, _ = true_engine("h100-llama8b")
    plan = make_plan(limits_of(spec), budget=300, transfers=False)
    with pytest.raises(CalibrationError, match=r"warm-up failed.*refused"):
        asyncio.run(prober(refused_batch=1, budget=300)[0].run(plan))


def test_batches_larger_than_the_worker_runs_are_left_out() -> None:
    spec, costs = true_engine("h100-llama8b")
    limits = limits_of(spec)
    worker = EngineTarget(replace(spec, max_running=16), costs)
    measured = asyncio.run(Prober(worker, limits, Texts(0)).run(make_plan(limits, budget=400, transfers=False)))
    assert any("did not decode together" in failure for failure in measured.failures)
    assert max(work.decode_sequences for seen in measured.observations for work in seen.steps) == 16
