"""Draws runs of the same work beside each other.

The rule of this module: one colour is one run in every panel, from the Okabe-Ito palette that colour-blind readers
tell apart, with line styles as a second cue. matplotlib is loaded when a plot is asked for, not before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gateway.core.types import SloTarget
from loadtest.client.records import Record
from loadtest.report.slo import slo_words
from loadtest.report.summary import summarise

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#000000", "#56B4E9")
DASHES = ("-", "--", "-.", ":")
GREY = "#555555"
BARS_OF_FULL_WIDTH = 5
"""Fewer bars leave room above and below rather than grow thick."""

Runs = Mapping[str, Sequence[Record]]


def plot_runs(runs: Runs, slo: SloTarget, path: Path, *, title: str = "") -> None:
    """Writes a PNG: TTFT and TPOT as cumulative shares with the SLO's bounds, and attainment as bars.

    A cumulative curve counts all of a run's requests, so failures keep it below 100 %. Raises ImportError
    without matplotlib (`pip install tidegate[loadtest]`).
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(13.0, 4.4), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    ttft, tpot, bars = figure.subplots(1, 3, width_ratios=(1.0, 1.0, 0.9))
    _draw_cdf(ttft, runs, lambda record: record.ttft_s, slo.ttft_s, "Time to first token (s)")
    _draw_cdf(tpot, runs, _tpot_ms, _ms(slo.tpot_s), "Time per output token (ms)")
    _draw_attainment(bars, runs, slo)
    ttft.set_ylabel("Share of requests")
    ttft.legend(loc="lower right", fontsize=9)
    figure.suptitle(title or "Latency and SLO attainment", fontsize=13)
    figure.savefig(path)


def _draw_cdf(
    axes: Axes,
    runs: Runs,
    value: Callable[[Record], float | None],
    bound: float | None,
    label: str,
) -> None:
    """One line per run on a logarithmic axis, from every run's first hundredth to its last but one."""
    curves = {name: cumulative_shares(records, value) for name, records in runs.items()}
    ends = [] if bound is None else [bound]
    for values, _ in curves.values():
        ends += [end for end in np.quantile(values or [0.0], (0.01, 0.99)).tolist() if end > 0]
    ends = ends or [1.0]
    right = 1.1 * max(ends)
    for (name, (values, shares)), (colour, dash) in zip(curves.items(), _styles(len(runs)), strict=True):
        steps = ([*values, max(right, *values)], [*shares, shares[-1]]) if values else ([], [])
        axes.step(*steps, where="post", color=colour, linestyle=dash, linewidth=2.0, label=name)
    if bound is not None:
        axes.axvline(bound, color=GREY, linewidth=1.2, linestyle=(0, (4, 3)))
        axes.annotate("SLO", (bound, 1.03), ha="center", color=GREY, fontsize=9, annotation_clip=False)
    _lay_out_cdf(axes, 0.9 * min(ends), right, label)


def _lay_out_cdf(axes: Axes, left: float, right: float, label: str) -> None:
    from matplotlib.ticker import LogLocator, NullLocator  # noqa: PLC0415

    axes.set_xscale("log")
    axes.set_xlim(left, right)
    wide = right > 100.0 * left
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if wide else (1.0, 2.0, 3.0, 5.0)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda tick, _: f"{tick:g}")
    axes.set_ylim(0.0, 1.02)
    axes.set_xlabel(label)
    axes.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    axes.grid(visible=True, color="#DDDDDD", linewidth=0.7)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_attainment(axes: Axes, runs: Runs, slo: SloTarget) -> None:
    """One bar per run, best read from the top down in the order given."""
    ratios = [summarise(records, slo).attained_ratio or 0.0 for records in runs.values()]
    places = range(len(ratios))
    axes.barh(places, ratios, color=[colour for colour, _ in _styles(len(runs))], height=0.62)
    for place, share in zip(places, ratios, strict=True):
        axes.text(share + 0.015, place, f"{share:.1%}", va="center", fontsize=10)
    axes.set_yticks(places, list(runs))
    middle, half = (len(ratios) - 1) / 2, max(len(ratios), BARS_OF_FULL_WIDTH) / 2
    axes.set_ylim(middle + half, middle - half)
    axes.set_xlim(0.0, 1.15)
    axes.set_xticks([0.0, 0.25, 0.5, 0.75, 1.0])
    axes.xaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    axes.set_xlabel(f"SLO met ({slo_words(slo)})")
    axes.spines[["top", "right"]].set_visible(False)


def cumulative_shares(
    records: Sequence[Record], value: Callable[[Record], float | None]
) -> tuple[list[float], list[float]]:
    """Ascending values of the requests that ended well, and the share of requests up to each.

    Requests that failed count in the whole; those that were cancelled, or have no such value, do not.
    """
    values = sorted(found for record in records if record.ok and (found := value(record)) is not None)
    whole = len(values) + sum(not record.ok and not record.cancelled for record in records)
    return values, [rank / whole for rank in range(1, len(values) + 1)]


def _styles(count: int) -> list[tuple[str, str]]:
    return list(islice(zip(cycle(COLOURS), cycle(DASHES), strict=False), count))


def _tpot_ms(record: Record) -> float | None:
    return _ms(record.tpot_s)


def _ms(value_s: float | None) -> float | None:
    return None if value_s is None else value_s * 1000.0
