import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from matplotlib.image import imread

from loadtest.report.plots_timeline import plot_workers


@dataclass(frozen=True)
class Gauges:
    at_s: list[float] = field(default_factory=list)
    running: list[int] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    kv_used_ratio: list[float] = field(default_factory=list)


def test_workers_are_drawn_over_time(tmp_path: Path) -> None:
    gauges = Gauges([1.0, 2.0, 3.0], [1, 5, 2], [0, 9, 0], [0.1, 0.8, 0.2])
    path = tmp_path / "run.png"
    plot_workers({f"worker-{n}": gauges for n in range(12)}, path, title="a run")
    height, width, _ = imread(path).shape
    assert width > height > 900


def test_a_run_without_samples_can_be_drawn(tmp_path: Path) -> None:
    path = tmp_path / "run.png"
    plot_workers({"worker-0": Gauges()}, path, title="")
    assert path.stat().st_size > 0


def test_matplotlib_is_not_loaded_before_it_is_asked_for() -> None:
    names = ", ".join(f"loadtest.report.plots_{name}" for name in ("style", "load", "latency", "timeline"))
    code = f"import sys, {names}; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
