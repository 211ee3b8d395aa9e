"""Tables that are wrong by a factor, against logs of the true engine."""

from dataclasses import replace

import pytest

from gateway.core.step_cost import StepWork
from loadtest.calibrate.logged import log_observations
from loadtest.calibrate.observation import Observation
from loadtest.calibrate.plan import Kind
from loadtest.calibrate.refine import refine, scaled
from loadtest.engine.engine_file import EngineFile
from loadtest.engine.presets import load_engine
from policy_store.costs.file import read_shipped, to_table
from tests.loadtest.calibrate.log_lab import simulated_log

NAME = "h100-llama8b"
SPEC, TABLE = load_engine(NAME)
COSTS = read_shipped(NAME)
DECODES = [StepWork(decode_sequences=n, decode_context_tokens=900 * n) for n in (1, 8, 32, 64)]
PREFILLS = [StepWork(prefill=((tokens, 0),)) for tokens in (512, 1000, 4096, 8192)]


def observations(*, requests: int = 200) -> list[Observation]:
    log = simulated_log(SPEC, TABLE, requests=requests, rate_rps=0.5)
    return log_observations(log, budget_tokens=SPEC.max_batched_tokens)


def base(*, decode: float, prefill: float) -> EngineFile:
    """A file that says so many times what is true."""
    return EngineFile(limits=SPEC, max_model_len=None, costs=scaled(COSTS, decode=decode, prefill=prefill))


@pytest.mark.parametrize(("decode", "prefill"), [(1.25, 0.9), (0.7, 1.3), (1.2, 1.2)])
def test_scaling_scales_whole_steps_of_its_phase(decode: float, prefill: float) -> None:
    table = to_table(scaled(COSTS, decode=decode, prefill=prefill))
    for work in DECODES:
        assert table.step_seconds(work) == pytest.approx(decode * TABLE.step_seconds(work), rel=0.005)
    for work in PREFILLS:
        assert table.step_seconds(work) == pytest.approx(prefill * TABLE.step_seconds(work), rel=0.02)


@pytest.mark.parametrize(("decode", "prefill"), [(1.25, 0.8), (0.7, 1.3)])
def test_factors_are_found_and_written_down(decode: float, prefill: float) -> None:
    wrong = base(decode=decode, prefill=prefill)
    refined = refine(wrong, observations(), log_name="log.jsonl")
    assert refined.changed
    assert refined.phases[Kind.DECODE].factor == pytest.approx(1 / decode, rel=0.03)
    assert refined.phases[Kind.PREFILL].factor == pytest.approx(1 / prefill, rel=0.05)
    table = to_table(refined.file.costs)
    for work in DECODES + PREFILLS:
        assert table.step_seconds(work) == pytest.approx(TABLE.step_seconds(work), rel=0.06)
    notes = refined.file.costs.provenance.notes
    assert sum("log.jsonl" in note for note in notes) == 2
    assert refined.file.limits == wrong.limits


def test_a_true_table_gets_factors_of_about_one() -> None:
    refined = refine(base(decode=1.0, prefill=1.0), observations(), log_name="x")
    assert all(phase.factor == pytest.approx(1.0, rel=0.03) for phase in refined.phases.values())


def test_a_factor_that_does_not_help_held_out_requests_is_dropped() -> None:
    """Every third decode, which is held out, is as the table says; the others are slower."""
    seen = [one for one in observations() if one.kind is Kind.DECODE]
    lied = [one if place % 3 == 0 else replace(one, seconds=2 * one.seconds) for place, one in enumerate(seen, start=1)]
    wrong = base(decode=1.0, prefill=1.0)
    refined = refine(wrong, lied, log_name="x")
    assert not refined.changed
    assert refined.file is wrong
    assert refined.phases[Kind.DECODE].error_after > refined.phases[Kind.DECODE].error_before


def test_too_few_requests_change_nothing() -> None:
    wrong = base(decode=1.5, prefill=0.7)
    refined = refine(wrong, observations(requests=15), log_name="x")
    assert refined.file is wrong
    assert refined.phases == {}
