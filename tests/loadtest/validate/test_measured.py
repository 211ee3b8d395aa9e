import os
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from loadtest.validate import measured
from loadtest.validate.measured import Comparison, MeasuredRun, comparison_table
from loadtest.validate.measured_plot import plot_runs
from loadtest.validate.measured_times import measured_times
from tests.loadtest.validate.measured_lab import small_run

REPOSITORY = Path(__file__).parents[3]
COSTS = Path(os.environ.get("TIDEGATE_SHARED", REPOSITORY.parent / "shared")) / "data" / "costs"


def comparison(predicted_s: float, *, is_bounded: bool = True) -> Comparison:
    return Comparison(metric="TTFT", percentile=50, predicted_s=predicted_s, measured_s=10.0, is_bounded=is_bounded)


def compared(*comparisons: Comparison) -> MeasuredRun:
    times = measured_times(small_run())
    return MeasuredRun(
        name="GPU/model", measured=times, predicted=times, preemptions=3, comparisons=comparisons, residuals=()
    )


@pytest.mark.parametrize(("predicted_s", "holds"), [(8.0, True), (12.0, True), (7.9, False), (12.1, False)])
def test_a_prediction_holds_within_a_fifth_of_the_measurement(predicted_s: float, holds: bool) -> None:
    assert comparison(predicted_s).holds is holds


def test_a_run_holds_where_all_that_is_bounded_does() -> None:
    assert compared(comparison(11.0), comparison(20.0, is_bounded=False)).holds
    assert not compared(comparison(11.0), comparison(20.0)).holds


def command(monkeypatch: pytest.MonkeyPatch, *runs: MeasuredRun) -> typer.Typer:
    monkeypatch.setattr(measured, "run", lambda data: runs)
    app = typer.Typer()
    app.command()(measured.main)
    return app


def test_the_command_prints_every_percentile_and_what_its_bound_says(monkeypatch: pytest.MonkeyPatch) -> None:
    app = command(monkeypatch, compared(comparison(11.0), comparison(20.0, is_bounded=False)))
    result = CliRunner().invoke(app, ["--data", "."])
    assert result.exit_code == 0
    assert "GPU/model: 2 requests, 3 preemptions" in result.output
    assert "+10.0%" in result.output
    assert "holds" in result.output
    assert "(beside)" in result.output


def test_the_command_fails_where_a_bound_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    result = CliRunner().invoke(command(monkeypatch, compared(comparison(20.0))), ["--data", "."])
    assert result.exit_code == 1
    assert "missed" in result.output


def test_the_table_has_a_row_a_comparison() -> None:
    assert comparison_table(compared(comparison(11.0), comparison(9.0))).row_count == 2


def test_the_plot_is_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "runs.png"
    plot_runs([compared(), compared()], path)
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.shared_data
@pytest.mark.skipif(not COSTS.is_dir(), reason="needs the public measurements in shared/data/costs")
def test_medians_and_tails_lie_within_a_fifth_of_what_vllm_did() -> None:
    runs = {one.name: one for one in measured.run(COSTS)}
    for name in ("RTX4090/Llama-3.1-8B", "RTXPRO6000/Llama-3.1-8B"):
        bounded = [comparison for comparison in runs[name].comparisons if comparison.is_bounded]
        assert len(bounded) == 6
        assert {comparison.metric: comparison.error for comparison in bounded if not comparison.holds} == {}
    assert runs["RTX4090/Llama-3.1-8B"].preemptions > 0
    assert not any(comparison.is_bounded for comparison in runs["RTXPRO6000/Qwen3-32B"].comparisons)
    assert all(np.all(one.predicted.queueing_s >= 0) for one in runs.values())
