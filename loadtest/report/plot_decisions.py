"""Draws what a decision takes.

The rule of this module: microseconds as they were measured, by the size of the fleet and of the prompt; one policy has
one colour in both panels, solid for the median and dashed for the tail.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from loadtest.report.plot import COLOURS, GREY
from loadtest.report.plots_style import SLO_DASH, new_figure, save, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, slots=True, kw_only=True)
class CostLine:
    """One policy's costs in microseconds, by whatever varies."""

    xs: tuple[int, ...]
    p50_us: tuple[float, ...]
    p99_us: tuple[float, ...]


def plot_costs(
    by_workers: Mapping[str, CostLine],
    by_kilobytes: Mapping[str, CostLine],
    path: Path,
    *,
    bound_us: float,
    fixed: tuple[str, str],
) -> None:
    """Writes a figure, in the format that the file's name ends in.

    Args:
        by_workers: costs by the number of workers, by policy.
        by_kilobytes: costs by the length of the prompt, by policy.
        path: the file.
        bound_us: the median that was asked for; a line in the first panel.
        fixed: what does not vary in the one and the other panel.

    Raises:
        ImportError: matplotlib is not there (`tidegate[loadtest]`).
    """
    figure = new_figure(10.0, 4.2)
    left, right = figure.subplots(1, 2)
    for axes, lines, words, still in (
        (left, by_workers, "Workers", fixed[0]),
        (right, by_kilobytes, "Prompt (KB)", fixed[1]),
    ):
        _draw(axes, lines)
        axes.set_xlabel(words)
        axes.set_title(still, fontsize=10)
        tidy(axes)
    left.axhline(bound_us, color=GREY, linewidth=1.2, linestyle=SLO_DASH)
    left.annotate(
        f"asked for: P50 {bound_us:g}",
        (1.0, bound_us),
        xycoords=("axes fraction", "data"),
        ha="right",
        va="bottom",
        fontsize=8,
        color=GREY,
    )
    left.set_ylabel("One decision (microseconds of CPU)")
    left.legend(loc="upper left", fontsize=9, frameon=False)
    save(figure, path, title="What one decision takes: parse, hash, look up, place, reserve")


def _draw(axes: Axes, lines: Mapping[str, CostLine]) -> None:
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator  # noqa: PLC0415

    for (name, line), colour in zip(lines.items(), COLOURS, strict=False):
        axes.plot(line.xs, line.p50_us, color=colour, linewidth=2.0, marker="o", markersize=4, label=f"{name}, P50")
        axes.plot(line.xs, line.p99_us, color=colour, linewidth=1.2, linestyle="--", label=f"{name}, P99")
    xs = sorted({x for line in lines.values() for x in line.xs})
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(FixedLocator(xs))
    axes.xaxis.set_major_formatter(FixedFormatter([str(x) for x in xs]))
    axes.xaxis.set_minor_locator(NullLocator())
