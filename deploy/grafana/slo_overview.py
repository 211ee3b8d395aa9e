"""The dashboard *Tidegate SLO overview*: is the service good enough, and if not, what is late.

The rule of this module: what clients feel comes first (attainment, burn rate, latencies), then load, then workers.
"""

from deploy.grafana.common import (
    BREAKER_STATES,
    FULL,
    HALF,
    INSTANCE,
    MODEL,
    SLO,
    graph,
    graphs,
    levels,
    quantiles,
    rates,
    table,
)
from deploy.grafana.model import (
    Colour,
    Column,
    Dashboard,
    Kind,
    Panel,
    Query,
    Row,
    Threshold,
    Thresholds,
    Unit,
)
from deploy.grafana.promql import WINDOW, aggregate, increase, quantile, rate, select, total
from gateway.telemetry import metrics
from gateway.telemetry.labels import MissedBound

TILE = 4
TILE_HEIGHT = 4
TABLE_HEIGHT = 7

FAST_BURN = 14.4
"""Spends 2 % of a 30-day budget in one hour; the same number pages in `deploy/prometheus/rules.yml`."""
FAILED = 'outcome=~"upstream_error|timeout|refused"'
"""The gateway's or a worker's fault; client errors and cancellations are the client's."""

BURN_COLOURS = Thresholds(
    base=Colour.GOOD,
    steps=(Threshold(value=1, colour=Colour.WARNING), Threshold(value=FAST_BURN, colour=Colour.BAD)),
    show_lines=True,
)
ATTAINMENT_COLOURS = Thresholds(
    base=Colour.BAD,
    steps=(Threshold(value=0.95, colour=Colour.WARNING), Threshold(value=0.99, colour=Colour.GOOD)),
)
ERROR_COLOURS = Thresholds(
    base=Colour.GOOD,
    steps=(Threshold(value=0.01, colour=Colour.WARNING), Threshold(value=0.05, colour=Colour.BAD)),
)


def build() -> Dashboard:
    """The dashboard."""
    return Dashboard(
        uid="tidegate-slo",
        title="Tidegate SLO overview",
        description="SLO attainment, latency, load and errors of Tidegate gateways, and the state of their workers.",
        variables=(INSTANCE, MODEL, SLO),
        rows=(
            Row(height=TILE_HEIGHT, panels=_tiles()),
            _objective(),
            _first_and_next_tokens(),
            _load(),
            _trouble(),
            Row(height=TABLE_HEIGHT, panels=(_workers(),)),
        ),
    )


def _tiles() -> tuple[Panel, ...]:
    met, missed = increase(metrics.SLO_ATTAINED), increase(metrics.SLO_MISSED)
    requests = rate(metrics.REQUESTS)
    return (
        _tile(
            "SLO attainment",
            "Share of judged requests that met their SLO, over the time range shown.",
            Unit.RATIO,
            f"{met} / ({met} + {missed})",
            ATTAINMENT_COLOURS,
        ),
        _tile(
            "Burn rate, 1 h",
            "How many times faster than allowed the error budget is spent: the worst class and gateway. "
            f"Above 1 the budget will not last; above {FAST_BURN:g} an alert pages.",
            Unit.TIMES,
            aggregate("max", select(metrics.SLO_BURN_RATE, 'window="1h"')),
            BURN_COLOURS,
        ),
        _tile("Requests", "Requests that ended, per second.", Unit.REQUESTS_PER_S, requests),
        _tile(
            "TTFT p90",
            "Nine of ten requests had their first token sooner.",
            Unit.SECONDS,
            quantile(0.9, metrics.TTFT),
        ),
        _tile(
            "TPOT p90",
            "Nine of ten streams took less per token after the first.",
            Unit.SECONDS,
            quantile(0.9, metrics.TPOT),
        ),
        _tile(
            "Failed",
            "Share of requests that ended as upstream_error, timeout or refused.",
            Unit.RATIO,
            f"{rate(metrics.REQUESTS, FAILED)} / {requests}",
            ERROR_COLOURS,
        ),
    )


def _tile(title: str, description: str, unit: Unit, expr: str, thresholds: Thresholds = Thresholds()) -> Panel:  # noqa: B008 (frozen)
    return Panel(
        kind=Kind.STAT,
        title=title,
        description=description,
        unit=unit,
        width=TILE,
        queries=(Query(expr=expr, legend=title),),
        thresholds=thresholds,
    )


def _objective() -> Row:
    by = ("slo", "path")
    met, missed = rate(metrics.SLO_ATTAINED, by=by), rate(metrics.SLO_MISSED, by=by)
    worst = aggregate("max", select(metrics.SLO_BURN_RATE), ("slo", "window"))
    return graphs(
        graph(
            "SLO attainment by class and path",
            "Share of judged requests that met their SLO. The dashed line is the gateways' objective.",
            Unit.RATIO,
            Query(expr=f"{met} / ({met} + {missed})", legend="{{slo}} {{path}}"),
            Query(expr=aggregate("max", select(metrics.SLO_OBJECTIVE)), legend="objective", is_limit=True),
            width=HALF,
            maximum=1.0,
        ),
        graph(
            "Error-budget burn rate",
            "1 spends the budget exactly in its period. A page needs both windows above "
            f"{FAST_BURN:g}: the long one shows that it matters, the short one that it still happens.",
            Unit.TIMES,
            Query(expr=worst, legend="{{slo}} over {{window}}"),
            width=HALF,
            thresholds=BURN_COLOURS,
        ),
    )


def _first_and_next_tokens() -> Row:
    return graphs(
        quantiles(
            "Time to first token",
            "From a request's arrival to the first content sent to the client. The dashed lines are the bounds of the "
            "SLO classes.",
            metrics.TTFT,
            _bound(MissedBound.TTFT),
        ),
        quantiles(
            "Time per output token",
            "A stream's mean time per token after the first. The dashed lines are the bounds of the SLO classes.",
            metrics.TPOT,
            _bound(MissedBound.TPOT),
        ),
        quantiles(
            "Inter-token latency",
            "Between one content event of a stream and the next. A p99 far above p50 means that streams stall, for "
            "example behind prefills on the same worker.",
            metrics.ITL,
        ),
    )


def _bound(bound: MissedBound) -> Query:
    expr = aggregate("max", select(metrics.SLO_BOUND, f'bound="{bound}"'), ("slo",))
    return Query(expr=expr, legend="SLO {{slo}}", is_limit=True)


def _load() -> Row:
    return graphs(
        quantiles(
            "Request duration",
            "From a request's arrival to its last byte or its failure, whatever its outcome.",
            metrics.REQUEST_DURATION,
        ),
        rates(
            "Requests by outcome",
            "Requests that ended, per second.",
            metrics.REQUESTS,
            "outcome",
            Unit.REQUESTS_PER_S,
            is_stacked=True,
        ),
        rates(
            "Tokens",
            "As the workers reported them. Cached tokens are a part of the input tokens.",
            metrics.TOKENS,
            "type",
            Unit.TOKENS_PER_S,
            is_stacked=False,
        ),
    )


def _trouble() -> Row:
    return graphs(
        levels("In flight", "Requests being served, by model.", metrics.INFLIGHT, "model", operator="sum"),
        graph(
            "Errors and refusals",
            "Requests that failed, by outcome, and why the router refused some. A flat zero is good.",
            Unit.REQUESTS_PER_S,
            Query(expr=rate(metrics.REQUESTS, FAILED, by=("outcome",)), legend="{{outcome}}"),
            Query(expr=rate(metrics.REFUSALS, by=("reason",)), legend="refused: {{reason}}"),
        ),
        rates(
            "Missed SLOs by bound",
            "Which bound the misses went over. TTFT points at prefill and queues, TPOT at decode batches.",
            metrics.SLO_MISSED,
            "bound",
            Unit.REQUESTS_PER_S,
            is_stacked=True,
        ),
    )


def _workers() -> Panel:
    by = ("worker", "role")

    def worst(metric: metrics.MetricSpec) -> str:
        return aggregate("max", select(metric), by)

    # The role of a selection is the leg, not the worker's own: so it is summed over legs and given the worker's.
    selections = total(f"rate({select(metrics.WORKER_SELECTED)}[{WINDOW}])", ("worker",))
    per_worker = f"{worst(metrics.WORKER_BREAKER)} * 0 + on(worker) group_left() {selections}"
    return table(
        "Workers",
        "As the gateways see them. Queue, KV and sample age are the worst that any gateway saw; an empty cell means "
        "that the worker does not tell.",
        {"worker": "Worker", "role": "Role"},
        Column(title="State", expr=worst(metrics.WORKER_BREAKER), states=BREAKER_STATES),
        Column(title="In flight", expr=total(select(metrics.WORKER_INFLIGHT_REQUESTS), by)),
        Column(title="Tokens in flight", expr=total(select(metrics.WORKER_INFLIGHT_TOKENS), by)),
        Column(title="Queue", expr=worst(metrics.WORKER_QUEUE_DEPTH)),
        Column(title="KV used", expr=worst(metrics.WORKER_KV_USED), unit=Unit.RATIO),
        Column(title="Sample age", expr=worst(metrics.WORKER_SAMPLE_AGE), unit=Unit.SECONDS),
        Column(title="Selections", expr=per_worker, unit=Unit.EVENTS_PER_S),
        width=FULL,
    )
