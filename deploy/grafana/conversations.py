"""The rows of the dashboard *Tidegate routing decisions* that are about conversations.

The rule of this module: first what becomes of turns, then what conversations hold, then how gateways share them.
"""

from collections.abc import Sequence

from deploy.grafana.common import QUARTER, graph, graphs, levels
from deploy.grafana.model import Query, Row, Unit
from deploy.grafana.promql import aggregate, quantile, rate, select
from gateway.telemetry import metrics


def conversation_rows() -> Sequence[Row]:
    """All of them, in order."""
    return _turns(), _room(), _shared()


def _turns() -> Row:
    begun = rate(metrics.CONVERSATION_TURNS, 'turn="first"')
    kept = rate(metrics.CONVERSATION_TURNS, 'turn="next"')
    later = rate(metrics.CONVERSATION_TURNS, 'turn!="first"')
    moved = rate(metrics.CONVERSATION_TRANSFERS)
    return graphs(
        graph(
            "Turns of conversations",
            "Requests by what they are to their conversation's KV: it begins, goes on where it is, or is computed anew "
            "elsewhere because it was lost or given up.",
            Unit.EVENTS_PER_S,
            Query(expr=rate(metrics.CONVERSATION_TURNS, by=("turn",)), legend="{{turn}}"),
            width=QUARTER,
        ),
        graph(
            "Pin hit ratio",
            "Share of later turns that went where their conversation's KV is.",
            Unit.RATIO,
            Query(expr=f"{kept} / ({later} > 0)", legend="at home"),
            width=QUARTER,
        ),
        graph(
            "Transfers per conversation",
            "Prompts that were prefilled elsewhere, over conversations that began: 1 where each moves its KV once.",
            Unit.COUNT,
            Query(expr=f"{moved} / ({begun} > 0)", legend="transfers"),
            width=QUARTER,
        ),
        graph(
            "Time to first effective token",
            "What a conversation's turns took until one streamed text that its user sees; its tools' pauses left out.",
            Unit.SECONDS,
            Query(expr=quantile(0.5, metrics.CONVERSATION_FIRST_TEXT), legend="p50"),
            Query(expr=quantile(0.95, metrics.CONVERSATION_FIRST_TEXT), legend="p95"),
            width=QUARTER,
        ),
    )


def _room() -> Row:
    held = aggregate("sum", select(metrics.WORKER_CONVERSATION_TOKENS), ("worker",))
    return graphs(
        levels(
            "KV of conversations",
            "KV tokens that remembered conversations hold, or are promised, by worker. With "
            "routing.conversation.pinning hash no gateway remembers any.",
            metrics.WORKER_CONVERSATION_TOKENS,
            "worker",
            operator="sum",
            width=QUARTER,
        ),
        graph(
            "KV imbalance",
            "The fullest worker's conversations over the mean of those that hold any: 1 is even. Conversations are not "
            "moved for it unless routing.conversation.rebalance_ratio says so.",
            Unit.COUNT,
            Query(expr=f"max({held}) / avg({held} > 0)", legend="fullest / mean"),
            width=QUARTER,
        ),
        graph(
            "Energy of prefills (modelled)",
            "What prefills took beyond idling, in watts, as the prices of routing.engines have it. A model, not a "
            "measurement; decoding is not in it.",
            Unit.WATTS,
            Query(expr=rate(metrics.PREFILL_ENERGY, by=("path",)), legend="{{path}}"),
            width=QUARTER,
        ),
        levels(
            "Waiting for room",
            "New conversations that wait until a worker has room for their KV.",
            metrics.WAITING_REQUESTS,
            "instance",
            operator="sum",
            width=QUARTER,
        ),
    )


def _shared() -> Row:
    return graphs(
        levels(
            "Shared pins: server up",
            "1 while a gateway reaches the Redis or Valkey server by which gateways keep a conversation's turns "
            "together. At 0 each goes by what it knows itself. Empty without shared.url.",
            metrics.SHARED_UP,
            "instance",
            operator="min",
            width=QUARTER,
            maximum=1.0,
        ),
        graph(
            "Shared pins: waiting for an answer",
            "How long requests waited that had to ask where their conversation lives. Most turns ask nobody. What "
            "reaches shared.deadline_s is given up.",
            Unit.SECONDS,
            Query(expr=quantile(0.5, metrics.SHARED_CALL), legend="p50"),
            Query(expr=quantile(0.99, metrics.SHARED_CALL), legend="p99"),
            width=QUARTER,
        ),
        graph(
            "Shared pins: calls by outcome",
            "Requests that asked per second. Those timed out or refused went on by what their gateway knew.",
            Unit.EVENTS_PER_S,
            Query(expr=rate(metrics.SHARED_CALLS, by=("outcome",)), legend="{{outcome}}"),
            width=QUARTER,
            is_stacked=True,
        ),
        graph(
            "Shared loads: told and heard",
            "How often gateways told each other what they have in flight, per second and over all of them, and how "
            "often that failed. A gateway that fails goes by its scrapes. Empty without shared.url and shared.load_s.",
            Unit.EVENTS_PER_S,
            Query(expr=rate(metrics.SHARED_LOADS), legend="exchanged"),
            Query(expr=rate(metrics.SHARED_LOAD_FAILURES), legend="failed"),
            width=QUARTER,
        ),
    )
