import os
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from loadtest.engine.fitting.systems import H200
from loadtest.validate import silicon
from loadtest.validate.silicon_rows import Benchmark, SiliconRow, read_benchmarks
from loadtest.validate.silicon_summary import TPOT_BOUND, TTFT_BOUND, summarise
from tests.loadtest.validate.silicon_lab import row

REPOSITORY = Path(__file__).parents[3]
COSTS = Path(os.environ.get("TIDEGATE_SHARED", REPOSITORY.parent / "shared")) / "data" / "costs"
NEEDS_DATA = pytest.mark.skipif(not COSTS.is_dir(), reason="needs the public measurements in shared/data/costs")


def command(monkeypatch: pytest.MonkeyPatch, *rows: SiliconRow) -> typer.Typer:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(silicon, "run", lambda _: rows)
    app = typer.Typer()
    app.command()(silicon.main)
    return app


def test_the_command_tells_what_holds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    result = CliRunner().invoke(command(monkeypatch, row(0.1, 0.1)), ["--data", str(tmp_path)])
    assert result.exit_code == 0
    assert "TTFT holds, TPOT holds" in result.output
    assert "h200 llama70b tp4 fp8" in result.output


def test_the_command_fails_where_a_bound_is_missed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    result = CliRunner().invoke(command(monkeypatch, row(0.1, 0.2)), ["--data", str(tmp_path), "--every-row"])
    assert result.exit_code == 1
    assert "TTFT holds, TPOT missed" in result.output
    assert "All rows" in result.output


def test_the_command_shows_other_readings_where_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    other = {"another budget": summarise([row(0.4, 0.1)]).models}
    monkeypatch.setattr(silicon, "run_alternatives", lambda _: other)
    result = CliRunner().invoke(command(monkeypatch, row(0.1, 0.1)), ["--data", str(tmp_path), "--alternatives"])
    assert result.exit_code == 0
    assert "llama70b: another budget" in result.output


@pytest.mark.shared_data
@NEEDS_DATA
def test_the_file_has_the_rows_that_the_bounds_speak_of() -> None:
    models = [point.model.name for point in read_benchmarks(COSTS)]
    assert {name: models.count(name) for name in set(models)} == {"llama70b": 105, "qwen32b": 93, "llama8b": 21}


@pytest.mark.shared_data
@NEEDS_DATA
def test_predictions_of_one_split_lie_within_the_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_wanted(point: Benchmark) -> bool:
        return point.system is H200 and point.gpus == 4 and (point.isl_tokens, point.osl_tokens) == (1024, 1024)

    points = [point for point in read_benchmarks(COSTS) if is_wanted(point)]
    monkeypatch.setattr(silicon, "read_benchmarks", lambda _: points)
    rows = silicon.run(COSTS)
    assert [row.measured.concurrency for row in rows] == [point.concurrency for point in points]
    (model,) = summarise(rows).models
    assert model.rows == 5
    assert model.ttft_median < TTFT_BOUND
    assert model.tpot_median < TPOT_BOUND
