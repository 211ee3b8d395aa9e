"""Asks Prometheus what Grafana would ask for a dashboard.

The rule of this module: it reads the generated JSON, not the model behind it, so that what is checked and drawn is
what users import.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

Json = Mapping[str, Any]

_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_LEGEND = re.compile(r"\{\{\s*(\w+)\s*\}\}")
TIMEOUT_S = 30.0


class QueryError(RuntimeError):
    """Prometheus refused an expression, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The time range shown, in Unix seconds."""

    start_s: float
    end_s: float
    step_s: float
    rate_window_s: float
    """What `$__rate_interval` stands for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line: its legend, its labels, and its points; a value may be NaN."""

    name: str
    labels: Mapping[str, str]
    times_s: tuple[float, ...]
    values: tuple[float, ...]

    @property
    def last(self) -> float | None:
        """The newest value that is a number."""
        return next((value for value in reversed(self.values) if math.isfinite(value)), None)


Answers = Mapping[int, tuple[tuple[Series, ...], ...]]
"""Series by panel id and query."""


def variables(dashboard: Json, span: Span) -> dict[str, str]:
    """What every `$name` stands for when a dashboard is opened: its default, and Grafana's own for the range."""
    chosen = {
        "__rate_interval": f"{span.rate_window_s:g}s",
        "__range": f"{math.ceil(span.end_s - span.start_s)}s",
    }
    for variable in dashboard["templating"]["list"]:
        chosen[variable["name"]] = variable.get("allValue") or variable["query"]
    return chosen


def substituted(expr: str, values: Mapping[str, str]) -> str:
    """The expression that Prometheus gets; raises KeyError for a variable that the dashboard does not have."""
    return _VARIABLE.sub(lambda match: values[match[1] or match[2]], expr)


def ask(url: str, dashboard: Json, span: Span) -> Answers:
    """Every panel's series from the Prometheus at `url`.

    Raises:
        QueryError: an expression is wrong.
        httpx.HTTPError: no answer.
    """
    values = variables(dashboard, span)
    with httpx.Client(base_url=url, trust_env=False, timeout=TIMEOUT_S) as client:
        return {
            panel["id"]: tuple(_query(client, target, values, span) for target in panel["targets"])
            for panel in dashboard["panels"]
        }


def _query(client: httpx.Client, target: Json, values: Mapping[str, str], span: Span) -> tuple[Series, ...]:
    expr = substituted(target["expr"], values)
    asked = {"query": expr, "start": str(span.start_s), "end": str(span.end_s), "step": str(span.step_s)}
    answer = client.get("/api/v1/query_range", params=asked).json()
    if answer["status"] != "success":
        raise QueryError(f"{expr}: {answer['error']}")
    return tuple(_series(found, target["legendFormat"]) for found in answer["data"]["result"])


def _series(found: Json, legend: str) -> Series:
    labels: dict[str, str] = found["metric"]
    return Series(
        name=_LEGEND.sub(lambda match: labels.get(match[1], ""), legend),
        labels=labels,
        times_s=tuple(float(time_s) for time_s, _ in found["values"]),
        values=tuple(float(value) for _, value in found["values"]),
    )
