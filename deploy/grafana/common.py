"""What both dashboards share: variables, the words for worker states, shapes of panels and rows.

The rule of this module: nothing here belongs to one dashboard only.
"""

from collections.abc import Mapping

from deploy.grafana.model import Colour, Column, Kind, LabelVariable, Panel, Query, Row, State, Thresholds, Unit
from deploy.grafana.promql import aggregate, quantile, rate, select
from gateway.telemetry import metrics
from gateway.telemetry.metrics import MetricSpec
from gateway.telemetry.state import BREAKER_NUMBER

INSTANCE = LabelVariable(name="instance", title="Gateway", metric=metrics.BUILD_INFO.full_name, label="instance")
MODEL = LabelVariable(name="model", title="Model", metric=metrics.REQUESTS.full_name, label="model")
SLO = LabelVariable(name="slo", title="SLO class", metric=metrics.SLO_ATTAINED.full_name, label="slo")

QUANTILES = (0.5, 0.9, 0.99)
QUARTER = 6
THIRD = 8
HALF = 12
FULL = 24
GRAPH_HEIGHT = 8

_STATE_COLOURS = (Colour.GOOD, Colour.WARNING, Colour.BAD, Colour.BAD, Colour.NEUTRAL)
BREAKER_STATES = tuple(
    State(value=number, text=state.replace("_", "-"), colour=colour)
    for (state, number), colour in zip(BREAKER_NUMBER.items(), _STATE_COLOURS, strict=True)
)
"""`worker_breaker_state` in words."""


def graph(
    title: str,
    description: str,
    unit: Unit,
    *queries: Query,
    width: int = THIRD,
    is_stacked: bool = False,
    thresholds: Thresholds = Thresholds(),  # noqa: B008 (frozen)
    maximum: float | None = None,
) -> Panel:
    """Lines over time."""
    return Panel(
        kind=Kind.TIME_SERIES,
        title=title,
        description=description,
        unit=unit,
        width=width,
        queries=queries,
        is_stacked=is_stacked,
        thresholds=thresholds,
        maximum=maximum,
    )


def graphs(*panels: Panel) -> Row:
    """A row of panels that are as high as a graph."""
    return Row(height=GRAPH_HEIGHT, panels=panels)


def quantiles(title: str, description: str, histogram: MetricSpec, *limits: Query) -> Panel:
    """A histogram of seconds as lines called p50, p90 and so on, with the limits on them."""
    lines = (Query(expr=quantile(share, histogram), legend=f"p{share * 100:g}") for share in QUANTILES)
    return graph(title, description, Unit.SECONDS, *lines, *limits)


def rates(
    title: str, description: str, counter: MetricSpec, label: str, unit: Unit = Unit.EVENTS_PER_S, *, is_stacked: bool
) -> Panel:
    """A counter per second, one line for each value of a label."""
    query = Query(expr=rate(counter, by=(label,)), legend=f"{{{{{label}}}}}")
    return graph(title, description, unit, query, is_stacked=is_stacked)


def levels(
    title: str,
    description: str,
    gauge: MetricSpec,
    label: str,
    unit: Unit = Unit.COUNT,
    *,
    operator: str,
    width: int = THIRD,
    thresholds: Thresholds = Thresholds(),  # noqa: B008 (frozen)
    maximum: float | None = None,
) -> Panel:
    """A gauge, one line for each value of a label; `operator` joins gateways, `max` or `sum`."""
    query = Query(expr=aggregate(operator, select(gauge), (label,)), legend=f"{{{{{label}}}}}")
    return graph(title, description, unit, query, width=width, thresholds=thresholds, maximum=maximum)


def table(title: str, description: str, labels: Mapping[str, str], *columns: Column, width: int) -> Panel:
    """A table with a line for each set of label values; `labels` are their headings."""
    return Panel(
        kind=Kind.TABLE,
        title=title,
        description=description,
        unit=Unit.COUNT,
        width=width,
        label_titles=labels,
        columns=columns,
    )
