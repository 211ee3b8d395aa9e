"""Pictures of predictions beside what they are held against.

The rule of this module: a point on the diagonal is a prediction that came true. matplotlib is loaded when a picture is
asked for, not before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from loadtest.report.plot import COLOURS, GREY
from loadtest.validate.replay import Comparison
from loadtest.validate.silicon_rows import SiliconRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Points = Mapping[str, Sequence[tuple[float, float]]]
"""(measured, predicted) by group."""


def plot_silicon(rows: Sequence[SiliconRow], path: Path) -> None:
    """Every benchmark row, TTFT and TPOT, by model."""
    ttft = _grouped(rows, lambda row: (row.measured.ttft_s, row.ttft_s))
    tpot = _grouped(rows, lambda row: (row.measured.tpot_s * 1e3, row.tpot_s * 1e3))
    panels = {"Mean time to first token (s)": (ttft, 0.25), "Mean time per output token (ms)": (tpot, 0.15)}
    _plot(panels, path, title="vLLM on H100 and H200, closed loop: predicted against measured")


def plot_replay(comparisons: Sequence[Comparison], path: Path) -> None:
    """Every percentile of every fleet, by metric and placement."""
    groups: dict[str, list[tuple[float, float]]] = {}
    for each in comparisons:
        name = f"{each.metric.upper()}, {each.setup.router}"
        pair = (sum(each.dynamo_ms) / len(each.dynamo_ms), sum(each.ours_ms) / len(each.ours_ms))
        groups.setdefault(name, []).append(pair)
    title = "Dynamo's offline replay, Mooncake trace:\nP50, P90 and P99 of three fleets"
    _plot({"milliseconds": (groups, 0.0)}, path, title=title)


def _grouped(rows: Sequence[SiliconRow], pair: Callable[[SiliconRow], tuple[float, float]]) -> Points:
    groups: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        groups.setdefault(f"{row.measured.model.name} {row.measured.system.name}", []).append(pair(row))
    return groups


def _plot(panels: Mapping[str, tuple[Points, float]], path: Path, *, title: str) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(6.2 * len(panels), 5.4), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (label, (points, band)) in zip(
        figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True
    ):
        _draw(axes, points, band)
        axes.set_xlabel(f"{label}, theirs" if band == 0.0 else f"{label}, measured")
        axes.set_ylabel("ours" if band == 0.0 else "predicted")
    figure.suptitle(title, fontsize=12)
    figure.savefig(path)


def _draw(axes: Axes, points: Points, band: float) -> None:
    everything = [value for pairs in points.values() for pair in pairs for value in pair]
    ends = (0.8 * min(everything), 1.25 * max(everything))
    axes.plot(ends, ends, color=GREY, linewidth=1.2)
    if band:
        low, high = [(1 - band) * end for end in ends], [(1 + band) * end for end in ends]
        axes.fill_between(ends, low, high, color=GREY, alpha=0.12, linewidth=0, label=f"within {band:.0%}")
    for (name, pairs), colour in zip(points.items(), COLOURS, strict=False):
        measured, predicted = zip(*pairs, strict=True)
        axes.scatter(measured, predicted, s=22, color=colour, alpha=0.75, linewidths=0, label=name)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(*ends)
    axes.set_ylim(*ends)
    axes.set_aspect("equal")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda tick, _: f"{tick:g}")
    axes.grid(visible=True, color="#DDDDDD", linewidth=0.7)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper left", fontsize=8.5)
