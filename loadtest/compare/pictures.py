"""The pictures of a comparison.

The rule of this module: figures come from results; what is learned is drawn in colour, what is fixed in grey tones of
its own. matplotlib is loaded when something is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from loadtest.compare.bootstrap import Interval
from loadtest.compare.results import CellResult, Cluster, Course
from loadtest.report.plots_style import new_figure, save, show_shares, styles, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TAILS = {"ttft_p90_s": ("TTFT P90 (s)", 1.0), "tpot_p90_s": ("TPOT P90 (ms)", 1e3)}
LINES = 7
"""Arms of a picture of lines: the tuned rule and the others in their order of merit, as many as can be told apart."""
SHOWN_TO = 2.0
"""Of the tuned rule's bar; a longer one is cut, with its value in it."""
SMALLEST_TOKENS = 1.0
"""Where a logarithmic axis begins."""


def draw(cells: Sequence[CellResult], directory: Path) -> list[Path]:
    """Everything that can be drawn of some cells; raises ImportError without matplotlib."""
    pictures: list[Path] = []
    places: dict[str, list[CellResult]] = {}
    for cell in cells:
        places.setdefault(cell.label.rpartition("/")[0], []).append(cell)
    for place, own in places.items():
        stem = place.replace("/", "-")
        if len(own) > 1:
            pictures.append(_attainment(own, place, directory / f"attainment-{stem}.png"))
        for cell in own:
            name = f"{stem}-{100 * cell.load:.0f}"
            pictures.append(_tails(cell, directory / f"tails-{name}.png"))
            if cell.clusters:
                pictures.append(_clusters(cell, directory / f"clusters-{name}.png"))
            scanned = [one for one in cell.courses if len(one.steps) > 1]
            if scanned:
                pictures.append(_courses(cell, scanned, directory / f"scanning-{name}.png"))
    return pictures


def _attainment(cells: Sequence[CellResult], place: str, picture: Path) -> Path:
    """SLO met against rate, one line per arm; where it was looked at with less effort an arm may be missing."""
    figure = new_figure(8.0, 4.8)
    axes = figure.subplots()
    full = max(cells, key=lambda cell: cell.load)
    merit = sorted(full.arms, key=lambda arm: -arm.figures["attained_ratio"].value)
    names = [arm.name for arm in merit[:LINES]]
    points = sorted(cells, key=lambda cell: cell.requests_per_s)
    for name, (colour, dash) in styles(names).items():
        own = [(cell.requests_per_s, arm) for cell in points for arm in cell.arms if arm.name == name]
        found = [arm.figures["attained_ratio"] for _, arm in own]
        rates = [rate for rate, _ in own]
        axes.plot(rates, [one.value for one in found], dash, color=colour, label=name, marker="o", markersize=3)
        axes.fill_between(rates, [one.low for one in found], [one.high for one in found], color=colour, alpha=0.12)
    show_shares(axes)
    tidy(axes)
    axes.set_xlabel("Requests per second")
    axes.set_ylabel("SLO met")
    axes.legend(fontsize=8)
    save(figure, picture, title=f"{place}: attainment against rate")
    return picture


def _tails(cell: CellResult, picture: Path) -> Path:
    """P90 of TTFT and TPOT by arm, with intervals and the SLO."""
    figure = new_figure(11.0, 0.32 * len(cell.arms) + 1.6)
    panels = figure.subplots(1, 2, sharey=True)
    bounds = (cell.slo_ttft_s, cell.slo_tpot_s)
    for axes, (metric, (label, factor)), bound in zip(panels, TAILS.items(), bounds, strict=True):
        _bars(axes, cell, [arm.figures[metric].shifted(factor) for arm in cell.arms])
        axes.set_xlabel(label)
        if bound is not None:
            axes.axvline(bound * factor, color="#555555", linestyle="--", linewidth=1.0)
    panels[0].set_yticks(range(len(cell.arms)), [arm.name for arm in cell.arms], fontsize=8)
    panels[0].invert_yaxis()
    save(figure, picture, title=f"{cell.label}: tails (dashed: the SLO)")
    return picture


def _bars(axes: Axes, cell: CellResult, found: Sequence[Interval]) -> None:
    colours = ["#0072B2" if arm.is_learned else "#999999" for arm in cell.arms]
    errors = [[max(0.0, one.value - one.low) for one in found], [max(0.0, one.high - one.value) for one in found]]
    axes.barh(range(len(found)), [one.value for one in found], color=colours, xerr=errors, ecolor="#333333")
    end = SHOWN_TO * found[0].value
    axes.set_xlim(0.0, end)
    for place, one in enumerate(found):
        if one.value > end:
            axes.annotate(f"{one.value:.0f}  ", (end, place), ha="right", va="center", color="white", fontsize=8)
    tidy(axes)


def _clusters(cell: CellResult, picture: Path) -> Path:
    """Every table's clusters: prompt against what the decode worker would have to compute, coloured by path."""
    figure = new_figure(5.2 * len(cell.clusters), 4.6)
    panels = figure.subplots(1, len(cell.clusters), squeeze=False)[0]
    for axes, (arm, clusters) in zip(panels, cell.clusters.items(), strict=True):
        _map(axes, clusters)
        axes.set_title(arm, fontsize=10)
    save(figure, picture, title=f"{cell.label}: clusters (blue prefills remotely, orange locally)")
    return picture


def _map(axes: Axes, clusters: Sequence[Cluster]) -> None:
    axes.scatter(
        [max(SMALLEST_TOKENS, one.prompt) for one in clusters],
        [max(SMALLEST_TOKENS, one.decode_uncached) for one in clusters],
        c=[_mixed(one.local) for one in clusters],
        s=[30.0 + one.output / 4.0 for one in clusters],
        edgecolors="#333333",
    )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("Prompt (tokens)")
    axes.set_ylabel("Uncached on the decode worker (tokens)")
    tidy(axes)


def _mixed(local: float) -> tuple[float, float, float]:
    """From blue, remote, to orange, local."""
    remote_rgb, local_rgb = (0.0, 0.447, 0.698), (0.902, 0.624, 0.0)
    return (
        remote_rgb[0] + local * (local_rgb[0] - remote_rgb[0]),
        remote_rgb[1] + local * (local_rgb[1] - remote_rgb[1]),
        remote_rgb[2] + local * (local_rgb[2] - remote_rgb[2]),
    )


def _courses(cell: CellResult, courses: Sequence[Course], picture: Path) -> Path:
    """SLOs missed while learning beyond what the finished table misses, summed up over the requests served."""
    figure = new_figure(8.0, 4.2)
    axes = figure.subplots()
    for course, (colour, _) in zip(courses, styles(one.arm for one in courses).values(), strict=True):
        final = course.run_attained if course.run_attained is not None else course.steps[-1].attained or 0.0
        known = [step for step in course.steps if step.attained is not None]
        served = list(accumulate(step.requests for step in known))
        regret = list(accumulate((final - (step.attained or 0.0)) * step.requests for step in known))
        axes.plot(served, regret, color=colour, label=course.arm)
    tidy(axes)
    axes.set_xlabel("Requests served while learning")
    axes.set_ylabel("SLOs missed beyond the finished table's")
    axes.legend(fontsize=8)
    save(figure, picture, title=f"{cell.label}: regret while scanning")
    return picture
