"""The dashboard *Tidegate routing decisions*: where requests go, why, and whether the reasons held.

The rule of this module: choices come first, then how good their inputs were (prefix hits, prices, output lengths), then
what they did to the workers, then the gateway's own health.
"""

from deploy.grafana.common import (
    BREAKER_STATES,
    HALF,
    INSTANCE,
    MODEL,
    QUARTER,
    THIRD,
    graph,
    graphs,
    levels,
    quantiles,
    rates,
    table,
)
from deploy.grafana.conversations import conversation_rows
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
from deploy.grafana.promql import WINDOW, aggregate, increase, mean, quantile, rate, select, total
from gateway.telemetry import metrics

ENGINE_HITS = "vllm:prefix_cache_hits_total"
ENGINE_QUERIES = "vllm:prefix_cache_queries_total"

AGE_COLOURS = Thresholds(base=Colour.GOOD, steps=(Threshold(value=10, colour=Colour.BAD),), show_lines=True)
"""The default of `fleet.sample_max_age_s`: an older sample is not used."""
KV_COLOURS = Thresholds(
    base=Colour.GOOD,
    steps=(Threshold(value=0.9, colour=Colour.WARNING), Threshold(value=0.95, colour=Colour.BAD)),
    show_lines=True,
)
MISPRICED_BELOW, MISPRICED_ABOVE = 0.67, 1.5
"""Price ratios beyond which prices are off; the same numbers warn in `deploy/prometheus/rules.yml`."""
PRICE_COLOURS = Thresholds(
    base=Colour.WARNING,
    steps=(
        Threshold(value=MISPRICED_BELOW, colour=Colour.GOOD),
        Threshold(value=MISPRICED_ABOVE, colour=Colour.WARNING),
    ),
    show_lines=True,
)
LAG_COLOURS = Thresholds(base=Colour.GOOD, steps=(Threshold(value=0.1, colour=Colour.BAD),), show_lines=True)


def build() -> Dashboard:
    """The dashboard."""
    return Dashboard(
        uid="tidegate-routing",
        title="Tidegate routing decisions",
        description="Paths, workers and reasons of Tidegate's decisions, and the signals that they were made from.",
        variables=(INSTANCE, MODEL),
        rows=(
            _choices(),
            _inputs(),
            _predictions(),
            _failures(),
            _workers(),
            _balance(),
            *conversation_rows(),
            _gateway(),
        ),
    )


def _choices() -> Row:
    by_path, all_paths = rate(metrics.PATHS, by=("path",)), rate(metrics.PATHS)
    return graphs(
        graph(
            "Path mix",
            "Share of decisions by path: local prefills on the decode worker, remote on a prefill worker.",
            Unit.RATIO,
            Query(expr=f"{by_path} / on() group_left() {all_paths}", legend="{{path}}"),
            is_stacked=True,
            maximum=1.0,
        ),
        graph(
            "Reasons",
            "Decisions per second by path and reason; the metrics reference lists the reasons.",
            Unit.EVENTS_PER_S,
            Query(expr=rate(metrics.PATHS, by=("path", "reason")), legend="{{path}}: {{reason}}"),
            is_stacked=True,
        ),
        _selection_share(),
    )


def _selection_share() -> Panel:
    by_worker = increase(metrics.WORKER_SELECTED, by=("role", "worker"))
    by_leg = increase(metrics.WORKER_SELECTED, by=("role",))
    return Panel(
        kind=Kind.BAR_GAUGE,
        title="Selection share per worker",
        description="Share of a leg's decisions that each worker got, over the time range shown. Even shares are not a "
        "goal: conversations stay where their KV cache is.",
        unit=Unit.RATIO,
        width=THIRD,
        queries=(Query(expr=f"{by_worker} / on(role) group_left() {by_leg}", legend="{{role}}: {{worker}}"),),
        maximum=1.0,
    )


def _inputs() -> Row:
    engine_hits, engine_queries = (total(f"rate({name}[{WINDOW}])") for name in (ENGINE_HITS, ENGINE_QUERIES))
    return graphs(
        graph(
            "Prefix hits: predicted and actual",
            "Mean share of a prompt that the chosen worker was thought to hold, that it reported as cached, and the "
            "engines' own rate over all tokens. Predicted well above reported means that the index remembers blocks "
            "that the workers have evicted.",
            Unit.RATIO,
            Query(expr=mean(metrics.PREDICTED_HIT), legend="predicted"),
            Query(expr=mean(metrics.ACTUAL_CACHED), legend="reported"),
            Query(expr=f"{engine_hits} / {engine_queries}", legend="engines, by tokens"),
            maximum=1.0,
        ),
        quantiles("Decision time", "How long the core took to route a request or to refuse it.", metrics.DECISION),
        quantiles(
            "Prefill leg",
            "How long prefill workers took to answer, for requests on the remote path. It is a part of their TTFT.",
            metrics.PREFILL_LEG,
        ),
    )


def _predictions() -> Row:
    per_worker = aggregate("avg", select(metrics.WORKER_PRICE_RATIO), ("worker", "phase"))
    shares = (0.1, 0.5, 0.9)
    return graphs(
        graph(
            "Prices: taken over expected",
            "What each worker's prefills and decode steps took of late over what its engine file or the bundle says: "
            "1 is as priced. Outside the dashed lines calibrate again. Needs prices: routing.engines, or a bundle that "
            "has them.",
            Unit.TIMES,
            Query(expr=per_worker, legend="{{worker}}: {{phase}}"),
            width=HALF,
            thresholds=PRICE_COLOURS,
        ),
        graph(
            "Output length: predicted over actual",
            "Of whole answers whose length the output-length model predicted: 1 is as predicted, and eight of ten lie "
            "between p10 and p90. A p50 that leaves 1 means that the answers have changed: train again. Needs a bundle "
            "with a predictor.",
            Unit.TIMES,
            *(Query(expr=quantile(share, metrics.OUTPUT_LENGTH), legend=f"p{share * 100:g}") for share in shares),
            width=HALF,
        ),
    )


def _failures() -> Row:
    return graphs(
        rates(
            "Retries by cause",
            "Attempts given up for another one, before the client saw anything. A flat zero is good.",
            metrics.RETRIES,
            "cause",
            is_stacked=False,
        ),
        rates(
            "Upstream errors by kind",
            "Failed legs of all workers, retried or not. A flat zero is good.",
            metrics.UPSTREAM_ERRORS,
            "kind",
            is_stacked=False,
        ),
        Panel(
            kind=Kind.STATE_TIMELINE,
            title="Breaker states",
            description="Closed is well; half-open is on trial; open is ejected after failures; down fails its probe.",
            unit=Unit.COUNT,
            width=THIRD,
            queries=(Query(expr=aggregate("max", select(metrics.WORKER_BREAKER), ("worker",)), legend="{{worker}}"),),
            states=BREAKER_STATES,
            minimum=None,
        ),
    )


def _workers() -> Row:
    return graphs(
        levels(
            "KV cache used",
            "Share of each worker's KV cache in use. Above 0.9 engines begin to preempt.",
            metrics.WORKER_KV_USED,
            "worker",
            Unit.RATIO,
            operator="max",
            thresholds=KV_COLOURS,
            maximum=1.0,
        ),
        levels(
            "Engine queue",
            "Requests waiting inside each engine, from its last fresh sample.",
            metrics.WORKER_QUEUE_DEPTH,
            "worker",
            operator="max",
        ),
        levels(
            "Sample age",
            "Age of the last sample of each worker's own metrics. Past the dashed line (fleet.sample_max_age_s by "
            "default) the gateway decides by its own books alone.",
            metrics.WORKER_SAMPLE_AGE,
            "worker",
            Unit.SECONDS,
            operator="max",
            thresholds=AGE_COLOURS,
        ),
    )


def _balance() -> Row:
    smooth = f"avg_over_time({select(metrics.WORKER_INFLIGHT_TOKENS)}[{WINDOW}])"
    per_worker = total(smooth, ("role", "worker"))
    spread, middle = (aggregate(operator, per_worker, ("role",)) for operator in ("stddev", "avg"))
    return graphs(
        graph(
            "Load spread",
            "Standard deviation of the tokens in flight per worker over their mean, by role, "
            "averaged over some scrapes: 0 is perfectly even.",
            Unit.RATIO,
            Query(expr=f"{spread} / ({middle} > 0)", legend="{{role}}"),
        ),
        levels(
            "Tokens in flight",
            "KV tokens that requests in flight hold or have reserved, by worker, over all gateways shown.",
            metrics.WORKER_INFLIGHT_TOKENS,
            "worker",
            operator="sum",
        ),
        levels(
            "Prefix index",
            "Prompt blocks that the gateways remember, over all workers. It is bounded, and flat once full.",
            metrics.PREFIX_BLOCKS,
            "instance",
            operator="sum",
        ),
    )


def _gateway() -> Row:
    return graphs(
        levels(
            "Event-loop lag",
            "How late the event loop ran its timers, the worst gateway. Above the dashed line the gateway itself "
            "delays tokens.",
            metrics.EVENT_LOOP_LAG,
            "stat",
            Unit.SECONDS,
            operator="max",
            width=QUARTER,
            thresholds=LAG_COLOURS,
        ),
        graph(
            "Decision log",
            "Records written and lost per second. Lost ones are missing from what policies learn from.",
            Unit.EVENTS_PER_S,
            Query(expr=rate(metrics.DECISION_LOG_RECORDS), legend="written"),
            Query(expr=rate(metrics.DECISION_LOG_DROPPED), legend="lost"),
            width=QUARTER,
        ),
        table(
            "Policy in force",
            "How many gateways run which version of which policy; more than one line is a roll-out under way.",
            {"policy": "Policy", "version": "Version"},
            Column(title="Gateways", expr=total(select(metrics.POLICY_INFO), ("policy", "version"))),
            width=QUARTER,
        ),
        graph(
            "Policies refused",
            "How often the store's active bundle was refused, by what is wrong with it; the policy in force stayed. A "
            "flat zero is good.",
            Unit.COUNT,
            Query(expr=increase(metrics.POLICY_REFUSED, by=("reason",), window=WINDOW), legend="{{reason}}"),
            width=QUARTER,
            is_stacked=True,
        ),
    )
