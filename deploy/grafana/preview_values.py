"""Values as Grafana writes them, as far as these dashboards need it.

The rule of this module: a number and its unit in, text or a colour out.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from deploy.grafana.encode import NO_TRAFFIC

Json = Mapping[str, Any]

PALETTE = ("#73bf69", "#f2cc0c", "#8ab8ff", "#ff780a", "#f2495c", "#5794f2", "#b877d9", "#96d98d", "#ffa6b0")
COLOURS = {"green": "#73bf69", "orange": "#ff9830", "red": "#f2495c", "blue": "#5794f2", "text": "#ccccdc"}

_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
_THOUSANDS = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_SUFFIXES = {"reqps": " req/s", "ops": " ops/s", "si:tok/s": "tok/s", "suffix: x": " x", "watt": "W", "short": ""}
_PREFIXED = ("tok/s", "W")
"""Units that take the prefix themselves, as in kW."""


def text(value: float | None, unit: str) -> str:
    """A value in its unit."""
    if value is None or math.isnan(value):
        return NO_TRAFFIC
    match unit:
        case "percentunit":
            return f"{_digits(value * 100)}%"
        case "s":
            return _seconds(value)
        case _:
            return _thousands(value, _SUFFIXES[unit])


def _seconds(value: float) -> str:
    if value == 0:
        return "0 s"
    size, name = next(((size, name) for size, name in _SECONDS if abs(value) >= size), _SECONDS[-1])
    return f"{_digits(value / size)} {name}"


def _thousands(value: float, suffix: str) -> str:
    size, prefix = next(((size, prefix) for size, prefix in _THOUSANDS if abs(value) >= size), (1.0, ""))
    gap = " " if suffix in _PREFIXED else ""
    return f"{_digits(value / size)}{gap}{prefix}{suffix}"


def _digits(value: float) -> str:
    """Three figures, without an exponent or trailing zeros."""
    decimals = max(0, 2 - math.floor(math.log10(abs(value)))) if value else 0
    written = f"{value:.{decimals}f}"
    return written.rstrip("0").rstrip(".") if decimals else written


def threshold_colour(value: float | None, steps: Sequence[Json]) -> str:
    """The colour of a value; `steps` are Grafana's, ascending."""
    if value is None:
        return COLOURS["text"]
    reached = [step["color"] for step in steps if step["value"] is None or value >= step["value"]]
    return COLOURS[reached[-1]]


def mapped(value: float | None, mappings: Sequence[Json]) -> tuple[str, str] | None:
    """The word and the colour that stand for a value, where there is one."""
    for mapping in mappings:
        if value is not None and mapping["type"] == "value" and (state := mapping["options"].get(f"{value:g}")):
            return state["text"], COLOURS[state["color"]]
    return None
