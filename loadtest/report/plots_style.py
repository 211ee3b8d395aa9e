"""What the plots of experiments have in common.

The rule of this module: one name has one colour and one dash in all panels of a figure, from `loadtest.report.plot`.
matplotlib is loaded when a figure is made, not before.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

from loadtest.report.plot import COLOURS, DASHES, GREY

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Style = tuple[str, str]
"""A colour and a dash."""
GRID = "#DDDDDD"
SLO_DASH = (0, (4, 3))


def new_figure(width_in: float, height_in: float) -> Figure:
    """An empty figure that can be written to a file; ImportError without matplotlib (`tidegate[loadtest]`)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(width_in, height_in), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save(figure: Figure, path: Path, *, title: str) -> None:
    """Give the figure its title and write it."""
    figure.suptitle(title, fontsize=12)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def styles(names: Iterable[str]) -> dict[str, Style]:
    """A style for each name, in the order given."""
    return dict(zip(names, zip(cycle(COLOURS), cycle(DASHES), strict=False), strict=False))


def step_styles(names: Iterable[str]) -> dict[str, Style]:
    """The same for steps, which dashes tear to pieces: solid until the colours are used up."""
    return {
        name: (COLOURS[place % len(COLOURS)], DASHES[place // len(COLOURS) % len(DASHES)])
        for place, name in enumerate(names)
    }


def tidy(axes: Axes) -> None:
    """A light grid and no frame."""
    axes.grid(visible=True, color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def show_shares(axes: Axes) -> None:
    """The vertical axis is a share, from nothing to all."""
    axes.set_ylim(0.0, 1.03)
    axes.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")


def mark_bound(axes: Axes, bound: float) -> None:
    """A vertical line where an SLO ends."""
    axes.axvline(bound, color=GREY, linewidth=1.2, linestyle=SLO_DASH)
    axes.annotate("SLO", (bound, 1.01), xycoords=("data", "axes fraction"), ha="center", color=GREY, fontsize=9)
