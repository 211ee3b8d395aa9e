"""What both dashboards share: variables, the words for worker states, small panel shapes.

The rule of this module: nothing here belongs to one dashboard only.
"""

from deploy.grafana.model import Colour, Kind, LabelVariable, Panel, Query, State, Thresholds, Unit
from deploy.grafana.promql import quantile
from gateway.telemetry import metrics
from gateway.telemetry.metrics import MetricSpec
from gateway.telemetry.state import BREAKER_NUMBER

INSTANCE = LabelVariable(name="instance", title="Gateway", metric=metrics.BUILD_INFO.full_name, label="instance")
MODEL = LabelVariable(name="model", title="Model", metric=metrics.REQUESTS.full_name, label="model")
SLO = LabelVariable(name="slo", title="SLO class", metric=metrics.SLO_ATTAINED.full_name, label="slo")

QUANTILES = (0.5, 0.9, 0.99)
THIRD = 8
HALF = 12
FULL = 24

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


def quantile_lines(histogram: MetricSpec, *shares: float) -> tuple[Query, ...]:
    """One line per quantile, called p50, p90 and so on."""
    return tuple(Query(expr=quantile(share, histogram), legend=f"p{share * 100:g}") for share in shares or QUANTILES)
