"""Draws one panel of a kind.

The rule of this module: a panel's JSON and its series in, marks on given axes out; where a panel lies is not known
here.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import cycle
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator

from deploy.grafana.encode import BY_QUERY
from deploy.grafana.preview_values import COLOURS, PALETTE, mapped, text, threshold_colour
from deploy.grafana.results import Series

Json = Mapping[str, Any]
Found = Sequence[Sequence[Series]]
Times = npt.NDArray[np.float64]

TEXT = "#ccccdc"
DIM = "#8e8e99"
GRID = "#2c2f36"
SECONDS_OF_DAY = 86_400.0
SMALL = 7.5
TIMED = ("timeseries", "state-timeline")
CHARACTER_PX, MARK_PX = 6.2, 34.0
"""How wide a legend's entry is: per character, and beside it."""
LEGEND_ENTRIES = 9
"""More lines than that are drawn, but not named."""
TICKS_PX, LEGEND_ROW_PX = 24.0, 15.0
"""How high the times below an axis are, and each row of the legend below them."""
TIME_PX = 58.0
"""How wide a time is with room to the next."""


def below_px(panel: Json, found: Found, width_px: float) -> float:
    """Room that a graph of this width needs below its axes."""
    names = [series.name for answers in found for series in answers][:LEGEND_ENTRIES]
    rows = math.ceil(len(names) / _columns(names, width_px)) if panel["type"] == "timeseries" else 0
    return TICKS_PX + LEGEND_ROW_PX * rows


def draw(axes: Axes, panel: Json, found: Found, *, start_s: float, end_s: float) -> None:
    """Draw a panel's content; time axes run from `start_s` to `end_s`, in Unix seconds."""
    _DRAWERS[panel["type"]](axes, panel, found)
    if panel["type"] in TIMED:
        axes.set_xlim(start_s / SECONDS_OF_DAY, end_s / SECONDS_OF_DAY)


def _time_series(axes: Axes, panel: Json, found: Found) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    measured, limits = _measured_and_limits(panel, found)
    if defaults["custom"]["stacking"]["mode"] == "normal":
        _stack(axes, measured)
    else:
        for series, colour in zip(measured, cycle(PALETTE), strict=False):
            axes.plot(*_points(series), color=colour, lw=1.2, label=series.name)
    for series in limits:
        axes.plot(*_points(series), color=COLOURS["red"], lw=1.1, ls=(0, (5, 4)), label=series.name)
    _threshold_lines(axes, defaults)
    _scale(axes, defaults)
    _legend(axes)


def _measured_and_limits(panel: Json, found: Found) -> tuple[list[Series], list[Series]]:
    """The series of a panel by name; those of a query that has an override of its own are limits."""
    matchers = [override["matcher"] for override in panel["fieldConfig"]["overrides"]]
    limit_queries = {matcher["options"] for matcher in matchers if matcher["id"] == BY_QUERY}
    measured: list[Series] = []
    limits: list[Series] = []
    for target, answer in zip(panel["targets"], found, strict=True):
        (limits if target["refId"] in limit_queries else measured).extend(answer)
    return sorted(measured, key=lambda series: series.name), sorted(limits, key=lambda series: series.name)


def _points(series: Series) -> tuple[Times, Times]:
    return _dates(series.times_s), np.array(series.values)


def _dates(times_s: Sequence[float]) -> Times:
    """Matplotlib's dates: days since the epoch."""
    return np.array(times_s) / SECONDS_OF_DAY


def _stack(axes: Axes, lines: Sequence[Series]) -> None:
    times_s = sorted({time_s for series in lines for time_s in series.times_s})
    heights = [_on(times_s, series) for series in lines]
    axes.stackplot(
        _dates(times_s),
        np.array(heights).reshape(len(lines), len(times_s)),
        labels=[series.name for series in lines],
        colors=[colour for colour, _ in zip(cycle(PALETTE), lines, strict=False)],
        alpha=0.65,
        lw=0.8,
    )


def _on(times_s: Sequence[float], series: Series) -> list[float]:
    """The values at these times, 0 where there is none."""
    known = dict(zip(series.times_s, series.values, strict=True))
    return [0.0 if math.isnan(value := known.get(time_s, 0.0)) else value for time_s in times_s]


def _threshold_lines(axes: Axes, defaults: Json) -> None:
    if defaults["custom"]["thresholdsStyle"]["mode"] == "off":
        return
    top = axes.get_ylim()[1]
    for step in defaults["thresholds"]["steps"]:
        # A bound far above everything would flatten the lines; Grafana does not stretch the axis for it either.
        if step["value"] is not None and step["value"] <= top * 1.5:
            axes.axhline(step["value"], color=COLOURS[step["color"]], lw=0.9, ls=(0, (5, 4)))


def _scale(axes: Axes, defaults: Json) -> None:
    unit = defaults["unit"]
    if "min" in defaults:
        axes.set_ylim(bottom=defaults["min"])
    if "max" in defaults:
        axes.set_ylim(top=defaults["max"] * 1.02)
    elif axes.get_ylim()[1] <= axes.get_ylim()[0] or axes.dataLim.y1 <= 0:
        axes.set_ylim(top=1.0)
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: text(value, unit)))
    _time_axis(axes)
    axes.set_axisbelow(True)
    axes.grid(visible=True, color=GRID, lw=0.6)


def _time_axis(axes: Axes) -> None:
    most = max(3, int(axes.get_window_extent().width // TIME_PX))
    axes.xaxis.set_major_locator(AutoDateLocator(tz=UTC, minticks=2, maxticks=most))  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_formatter(FuncFormatter(lambda days, _: _clock(days)))
    axes.margins(x=0)
    axes.tick_params(colors=DIM, labelsize=SMALL, length=0)
    axes.tick_params(axis="x", pad=7)  # clear of the lowest value's label
    for spine in axes.spines.values():
        spine.set_visible(False)


def _clock(days: float) -> str:
    return f"{datetime.fromtimestamp(days * SECONDS_OF_DAY, UTC):%H:%M:%S}"


def _legend(axes: Axes) -> None:
    handles, names = axes.get_legend_handles_labels()
    if not handles:
        return
    extent = axes.get_window_extent()
    axes.legend(
        handles[:LEGEND_ENTRIES],
        names[:LEGEND_ENTRIES],
        loc="upper left",
        bbox_to_anchor=(-0.02, -TICKS_PX / extent.height),
        ncols=_columns(names[:LEGEND_ENTRIES], extent.width),
        frameon=False,
        fontsize=SMALL,
        labelcolor=TEXT,
        handlelength=1.2,
        columnspacing=1.0,
        borderaxespad=0.0,
        labelspacing=0.3,
    )


def _columns(names: Sequence[str], width_px: float) -> int:
    """Of a legend; a name that is wider than the panel has a row of its own."""
    return max(1, int(width_px // (MARK_PX + CHARACTER_PX * max(map(len, names), default=0))))


def _stat(axes: Axes, panel: Json, found: Found) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    value = next((series.last for answers in found for series in answers), None)
    axes.set_axis_off()
    colour = threshold_colour(value, defaults["thresholds"]["steps"])
    axes.text(0.5, 0.42, text(value, defaults["unit"]), color=colour, fontsize=21, ha="center", va="center")


def _bar_gauge(axes: Axes, panel: Json, found: Found) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    bars = sorted((series for answers in found for series in answers), key=lambda series: series.name)
    top = defaults.get("max") or max((series.last or 0.0 for series in bars), default=1.0)
    axes.set_axis_off()
    axes.set_xlim(0, 1)
    axes.set_ylim(len(bars), 0)
    for row, series in enumerate(bars):
        colour = threshold_colour(series.last, defaults["thresholds"]["steps"])
        axes.text(0.0, row + 0.5, series.name, color=TEXT, fontsize=9, va="center")
        axes.add_patch(Rectangle((0.38, row + 0.2), 0.46, 0.6, color=GRID))
        axes.add_patch(Rectangle((0.38, row + 0.2), 0.46 * (series.last or 0.0) / top, 0.6, color=colour))
        axes.text(
            1.0, row + 0.5, text(series.last, defaults["unit"]), color=colour, fontsize=10, ha="right", va="center"
        )


def _state_timeline(axes: Axes, panel: Json, found: Found) -> None:
    mappings = panel["fieldConfig"]["defaults"]["mappings"]
    lanes = sorted((series for answers in found for series in answers), key=lambda series: series.name)
    for row, series in enumerate(lanes):
        times = _dates(series.times_s)
        for first, last, value in _runs(series.values):
            word, colour = mapped(value, mappings) or (f"{value:g}", TEXT)
            start, end = times[first], times[min(last + 1, len(times) - 1)]
            axes.add_patch(Rectangle((start, row + 0.1), end - start, 0.8, color=colour, alpha=0.75))
            if (end - start) > 0.12 * (times[-1] - times[0]):
                axes.text((start + end) / 2, row + 0.5, word, color="#111217", fontsize=SMALL, ha="center", va="center")
    axes.set_ylim(len(lanes), 0)
    axes.set_yticks([row + 0.5 for row in range(len(lanes))], [series.name for series in lanes])
    _time_axis(axes)


def _runs(values: Sequence[float]) -> list[tuple[int, int, float]]:
    """(first, last, value) of every run of equal values."""
    starts = [index for index, value in enumerate(values) if index == 0 or value != values[index - 1]]
    return [(start, end - 1, values[start]) for start, end in zip(starts, [*starts[1:], len(values)], strict=True)]


def _table(axes: Axes, panel: Json, found: Found) -> None:
    overrides = {o["matcher"]["options"]: o["properties"] for o in panel["fieldConfig"]["overrides"]}
    titles: dict[str, str] = panel["transformations"][1]["options"]["renameByName"]
    labels = [name for name in titles if not name.startswith("Value")]
    columns = [title for name, title in titles.items() if name.startswith("Value")]
    keys = sorted({_key(series, labels) for answers in found for series in answers})
    heads = [*(titles[label] for label in labels), *columns]
    axes.set_axis_off()
    axes.set_xlim(0, len(heads))
    axes.set_ylim(max(len(keys) + 1, 5), 0)
    for x, head in enumerate(heads):
        axes.text(x, 0.5, head, color=COLOURS["blue"], fontsize=9, va="center")
    for row, key in enumerate(keys, start=1):
        axes.axhline(row, color=GRID, lw=0.6)
        for x, word in enumerate(key):
            axes.text(x, row + 0.5, word, color=TEXT, fontsize=9, va="center")
        for x, (title, answers) in enumerate(zip(columns, found, strict=True), start=len(labels)):
            value = next((series.last for series in answers if _key(series, labels) == key), None)
            word, colour = _cell(value, {p["id"]: p["value"] for p in overrides[title]})
            axes.text(x, row + 0.5, word, color=colour, fontsize=9, va="center")


def _key(series: Series, labels: Sequence[str]) -> tuple[str, ...]:
    return tuple(series.labels.get(label, "") for label in labels)


def _cell(value: float | None, properties: Json) -> tuple[str, str]:
    if value is None:
        return "", TEXT
    return mapped(value, properties.get("mappings", ())) or (text(value, properties["unit"]), TEXT)


_DRAWERS: Mapping[str, Callable[[Axes, Json, Found], None]] = MappingProxyType(
    {
        "timeseries": _time_series,
        "stat": _stat,
        "bargauge": _bar_gauge,
        "state-timeline": _state_timeline,
        "table": _table,
    }
)
