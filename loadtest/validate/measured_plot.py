"""Draws measured runs beside their replays: one row a run, one panel a metric, cumulative shares of the requests.

matplotlib is loaded when a plot is asked for, not before.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from loadtest.validate.measured_times import METRICS, RequestTimes, Seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MEASURED, PREDICTED = "#000000", "#D55E00"
LABELS = {"queueing": "Queueing (s)", "TTFT": "Time to first token (s)", "TPOT": "Time per output token (s)"}


class ComparedRun(Protocol):
    """What is drawn of a run."""

    @property
    def name(self) -> str:
        """As its row's title."""

    @property
    def measured(self) -> RequestTimes:
        """What vLLM did."""

    @property
    def predicted(self) -> RequestTimes:
        """What the engine model did."""


def plot_runs(runs: Sequence[ComparedRun], path: Path) -> None:
    """Write the picture, its format by the file's name; `ImportError` without matplotlib (`tidegate[loadtest]`)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(12.0, 3.2 * len(runs)), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    rows = figure.subplots(len(runs), len(METRICS), squeeze=False)
    for run, panels in zip(runs, rows, strict=True):
        for (metric, seconds), axes in zip(METRICS.items(), panels, strict=True):
            _draw(axes, seconds(run.measured), "vLLM", MEASURED, "-")
            _draw(axes, seconds(run.predicted), "engine model", PREDICTED, "--")
            axes.set_xlabel(LABELS[metric])
            axes.set_ylim(0.0, 1.0)
            axes.grid(visible=True, alpha=0.3)
        panels[0].set_ylabel(f"{run.name}\nshare of requests")
    rows[0, 0].legend(loc="lower right")
    figure.savefig(path)


def _draw(axes: Axes, values: Seconds, label: str, colour: str, dash: str) -> None:
    ordered = np.sort(values)
    shares = np.arange(1, len(ordered) + 1) / len(ordered)
    axes.step(ordered, shares, where="post", color=colour, linestyle=dash, linewidth=1.8, label=label)
