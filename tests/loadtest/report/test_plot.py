import subprocess
import sys
from pathlib import Path

import pytest
from matplotlib.image import imread

from gateway.core.types import SloTarget
from loadtest.client.records import Record
from loadtest.report.plot import cumulative_shares, plot_runs

SLO = SloTarget(name="run", ttft_s=2.0, tpot_s=0.04)


def request(ttft_s: float, *, ok: bool = True, error: str | None = None) -> Record:
    return Record(
        request_id="r", index=0, scheduled_s=0.0, ok=ok, error=error, ttft_s=ttft_s, tpot_s=ttft_s / 50, e2e_s=9.0
    )


def ttft(record: Record) -> float | None:
    return record.ttft_s


def test_a_curve_rises_to_the_share_that_ended_well() -> None:
    run = [request(3.0), request(1.0), request(2.0), request(0.1, ok=False, error="timeout")]
    assert cumulative_shares(run, ttft) == ([1.0, 2.0, 3.0], [0.25, 0.5, 0.75])


def test_cancelled_requests_are_no_part_of_a_curve() -> None:
    assert cumulative_shares([request(1.0), request(0.1, ok=False, error="cancelled")], ttft) == ([1.0], [1.0])


def test_a_run_that_failed_wholly_has_an_empty_curve() -> None:
    assert cumulative_shares([request(1.0, ok=False, error="timeout")], ttft) == ([], [])


@pytest.mark.parametrize("slo", [SLO, SloTarget(name="run", ttft_s=2.0, tpot_s=None)])
def test_runs_are_drawn_to_a_png(tmp_path: Path, slo: SloTarget) -> None:
    runs = {
        "one": [request(0.1 * n) for n in range(1, 40)],
        "two": [request(0.2 * n) for n in range(1, 40)],
        "lost": [request(1.0, ok=False, error="timeout")],
        "instant": [request(0.0)],
    }
    path = tmp_path / "runs.png"
    plot_runs(runs, slo, path, title="four runs")
    height, width, _ = imread(path).shape
    assert width > 2 * height > 1000


def test_an_empty_run_can_be_drawn(tmp_path: Path) -> None:
    plot_runs({"none": []}, SloTarget(name="run", ttft_s=None, tpot_s=None), tmp_path / "empty.png")
    assert (tmp_path / "empty.png").stat().st_size > 0


def test_matplotlib_is_not_loaded_before_it_is_asked_for() -> None:
    code = "import sys, loadtest.report.plot, loadtest.client.cli; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
