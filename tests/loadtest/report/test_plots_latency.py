from pathlib import Path

import pytest
from matplotlib.image import imread

from gateway.core.types import SloTarget
from loadtest.client.records import Record
from loadtest.report.plots_latency import plot_latencies


def request(ttft_s: float, *, ok: bool = True) -> Record:
    error = None if ok else "timeout"
    return Record(request_id="r", index=0, scheduled_s=0.0, ok=ok, error=error, ttft_s=ttft_s, tpot_s=0.03, e2e_s=9.0)


@pytest.mark.parametrize(
    "slo", [SloTarget(name="s", ttft_s=2.0, tpot_s=0.04), SloTarget(name="s", ttft_s=None, tpot_s=None)]
)
def test_each_load_is_a_row(tmp_path: Path, slo: SloTarget) -> None:
    runs = {"a": [request(0.1 * n) for n in range(1, 30)], "b": [request(0.3 * n, ok=n % 3 > 0) for n in range(1, 30)]}
    heights = []
    for loads in (1, 3):
        path = tmp_path / f"{loads}.png"
        plot_latencies({f"{load}/s": runs for load in range(loads)}, slo, path, title="two policies")
        heights.append(imread(path).shape[0])
    assert heights[1] - heights[0] == 2 * 390


def test_runs_without_an_answer_have_no_curve_but_a_picture(tmp_path: Path) -> None:
    path = tmp_path / "none.png"
    runs = {"lost": [request(1.0, ok=False)], "none": []}
    plot_latencies({"1/s": runs}, SloTarget(name="s", ttft_s=None, tpot_s=0.04), path, title="")
    assert path.stat().st_size > 0
