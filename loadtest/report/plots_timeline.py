"""Draws a run's workers over time.

The rule of this module: what is drawn was sampled; a level holds from one sample to the next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from loadtest.report.plots_style import new_figure, save, show_shares, step_styles, tidy


class Samples(Protocol):
    """One worker's gauges; all lists are equally long."""

    @property
    def at_s(self) -> Sequence[float]:
        """When they were taken."""

    @property
    def running(self) -> Sequence[int]:
        """Sequences in the batch."""

    @property
    def waiting(self) -> Sequence[int]:
        """Requests that are not yet in it."""

    @property
    def kv_used_ratio(self) -> Sequence[float]:
        """In [0,1]."""


def plot_workers(workers: Mapping[str, Samples], path: Path, *, title: str) -> None:
    """Writes a PNG: queue, batch and KV cache in use over time, one line per worker.

    Raises ImportError without matplotlib.
    """
    figure = new_figure(10.0, 6.6)
    queue, batch, cache = figure.subplots(3, 1, sharex=True)
    for (name, samples), (colour, dash) in zip(workers.items(), step_styles(workers).values(), strict=True):
        for axes, values in ((queue, samples.waiting), (batch, samples.running), (cache, samples.kv_used_ratio)):
            axes.step(samples.at_s, values, where="post", color=colour, linestyle=dash, linewidth=1.5, label=name)
    queue.set_ylabel("Queue (requests)")
    batch.set_ylabel("Batch (sequences)")
    cache.set_ylabel("KV cache in use")
    cache.set_xlabel("Time (s)")
    for axes in (queue, batch):
        axes.set_ylim(bottom=0.0)
        axes.yaxis.get_major_locator().set_params(integer=True)
    show_shares(cache)
    for axes in (queue, batch, cache):
        axes.margins(x=0.01)
        tidy(axes)
    handles, names = queue.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=min(len(names), 6) or 1, fontsize=9, frameon=False)
    save(figure, path, title=title)
