"""Draws what becomes of SLOs as the load grows.

The rule of this module: lines join means over seeds, bands are their confidence intervals as given; nothing is fitted
or smoothed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from loadtest.report.plot import GREY
from loadtest.report.plots_style import new_figure, save, show_shares, styles, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPoint:
    """A mean at one load; without an interval `low` and `high` are the mean."""

    load: float
    mean: float
    low: float
    high: float


Lines = Mapping[str, Sequence[LoadPoint]]
"""Points in order of load, by policy."""


def plot_loads(attained: Lines, goodput: Lines, path: Path, *, load_words: str, title: str, note: str) -> None:
    """Writes a PNG: SLO attainment (a share) and goodput (requests/s) against load, one line per policy.

    `load_words` names the loads, `note` says what the bands are. Raises ImportError without matplotlib.
    """
    figure = new_figure(10.0, 4.4)
    left, right = figure.subplots(1, 2)
    _draw(left, attained)
    show_shares(left)
    left.set_ylabel("Requests within the SLO")
    _draw(right, goodput)
    right.set_ylim(bottom=0.0)
    right.set_ylabel("Goodput (requests/s within the SLO)")
    for axes in (left, right):
        axes.set_xlabel(load_words)
        tidy(axes)
    handles, names = left.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=min(len(names), 5) or 1, fontsize=9, frameon=False)
    right.annotate(note, (1.0, 1.01), xycoords="axes fraction", ha="right", fontsize=8, color=GREY)
    save(figure, path, title=title)


def _draw(axes: Axes, lines: Lines) -> None:
    for (name, points), (colour, dash) in zip(lines.items(), styles(lines).values(), strict=True):
        loads = [point.load for point in points]
        lows, highs = [point.low for point in points], [point.high for point in points]
        axes.fill_between(loads, lows, highs, color=colour, alpha=0.1, linewidth=0.0)
        for edge in (lows, highs):
            axes.plot(loads, edge, color=colour, linestyle=dash, linewidth=0.6, alpha=0.6)
        axes.plot(
            loads,
            [point.mean for point in points],
            color=colour,
            linestyle=dash,
            linewidth=2.0,
            marker="o",
            markersize=4.5,
            label=name,
        )
