"""Draws distributions of TTFT and TPOT, load by load.

The rule of this module: a cumulative curve counts all of a policy's requests, so that failures keep it below 100 %;
seeds are pooled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gateway.core.types import SloTarget
from loadtest.client.records import Record
from loadtest.report.plot import cumulative_shares
from loadtest.report.plots_style import mark_bound, new_figure, save, show_shares, styles, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROW_IN = 2.6
FURNITURE_IN = 1.1
"""Title and legend."""
SHOWN = (0.01, 0.99)
"""The axis spans these quantiles of every curve."""

Runs = Mapping[str, Sequence[Record]]
"""Requests by policy."""


def plot_latencies(loads: Mapping[str, Runs], slo: SloTarget, path: Path, *, title: str) -> None:
    """Writes a PNG with a row for each load (by its words) and TTFT and TPOT side by side, one curve per policy.

    Raises ImportError without matplotlib.
    """
    figure = new_figure(10.0, ROW_IN * len(loads) + FURNITURE_IN)
    rows = figure.subplots(len(loads), 2, squeeze=False, sharex="col")
    for (words, runs), (ttft, tpot) in zip(loads.items(), rows, strict=True):
        _draw(ttft, runs, lambda record: record.ttft_s, slo.ttft_s)
        _draw(tpot, runs, _tpot_ms, None if slo.tpot_s is None else slo.tpot_s * 1e3)
        ttft.set_ylabel(f"Share of requests, {words}")
    values = [runs for runs in loads.values() if runs]
    _lay_out(rows[-1][0], values, lambda record: record.ttft_s, slo.ttft_s, "Time to first token (s)")
    _lay_out(
        rows[-1][1], values, _tpot_ms, None if slo.tpot_s is None else slo.tpot_s * 1e3, "Time per output token (ms)"
    )
    handles, names = rows[0][0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=min(len(names), 5) or 1, fontsize=9, frameon=False)
    save(figure, path, title=title)


Value = Callable[[Record], float | None]


def _draw(axes: Axes, runs: Runs, value: Value, bound: float | None) -> None:
    for (name, records), (colour, dash) in zip(runs.items(), styles(runs).values(), strict=True):
        values, shares = cumulative_shares(records, value)
        if values:
            # Level to the right of its last request, wherever the axis ends.
            values, shares = [*values, values[-1] * 1e6 + 1.0], [*shares, shares[-1]]
        axes.step(values, shares, where="post", color=colour, linestyle=dash, linewidth=1.8, label=name)
    if bound is not None:
        mark_bound(axes, bound)
    show_shares(axes)
    tidy(axes)


def _lay_out(axes: Axes, rows: Sequence[Runs], value: Value, bound: float | None, words: str) -> None:
    """A logarithmic axis for the whole column."""
    from matplotlib.ticker import LogLocator, NullLocator  # noqa: PLC0415

    ends = [] if bound is None else [bound]
    for runs in rows:
        for records in runs.values():
            values, _ = cumulative_shares(records, value)
            ends += [end for end in np.quantile(values or [0.0], SHOWN).tolist() if end > 0]
    left, right = min(ends, default=1.0) * 0.9, max(ends, default=1.0) * 1.1
    axes.set_xscale("log")
    axes.set_xlim(left, right)
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if right > 100.0 * left else (1.0, 2.0, 3.0, 5.0)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda tick, _: f"{tick:g}")
    axes.set_xlabel(words)


def _tpot_ms(record: Record) -> float | None:
    return None if record.tpot_s is None else record.tpot_s * 1e3
