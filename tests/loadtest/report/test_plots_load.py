from pathlib import Path

from matplotlib.image import imread

from loadtest.report.plots_load import LoadPoint, plot_loads


def line(*means: float) -> list[LoadPoint]:
    return [LoadPoint(load=n, mean=mean, low=mean - 0.1, high=mean + 0.1) for n, mean in enumerate(means, start=1)]


def test_lines_are_drawn_to_a_png(tmp_path: Path) -> None:
    lines = {f"policy {n}": line(0.9, 0.5, n / 10) for n in range(9)}
    path = tmp_path / "made" / "loads.png"
    plot_loads(lines, lines, path, load_words="Arrivals per second", title="nine policies", note="2 seeds")
    height, width, _ = imread(path).shape
    assert width > 2 * height > 1000


def test_a_policy_without_a_point_is_no_hindrance(tmp_path: Path) -> None:
    path = tmp_path / "loads.png"
    plot_loads({"a": line(0.5), "b": []}, {"a": [], "b": []}, path, load_words="Load", title="", note="")
    assert path.stat().st_size > 0
