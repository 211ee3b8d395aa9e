"""Every metric of the gateway is declared here, once.

The rule of this module: base units, `_total` only on counters, labels with bounded values, and one prefix
without a colon (colons belong to recording rules, and `vllm:` to the engines). Nothing here counts;
`recorder.Metrics` does.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from gateway.telemetry.buckets import (
    DECISION_BUCKETS_S,
    DURATION_BUCKETS_S,
    QUOTIENT_BUCKETS,
    RATIO_BUCKETS,
    SHARED_CALL_BUCKETS_S,
    TPOT_BUCKETS_S,
    TTFT_BUCKETS_S,
)

PREFIX: Final = "tidegate_"


class MetricType(StrEnum):
    """The exposed type."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Across(StrEnum):
    """What the processes of one gateway (`server.workers`) come to, label by label."""

    SUM = "sum"
    """Each has some of it; of counters and histograms always."""
    MAX = "max"
    """All see the same, or the worst is of interest."""
    MIN = "min"
    """It holds where it holds for all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSpec:
    """One metric: its name without the prefix, what it says, and its shape."""

    name: str
    type: MetricType
    help: str
    across: Across
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    """Boundaries of a histogram; empty for the others."""

    @property
    def full_name(self) -> str:
        """The exposed name, with `_total` on a counter."""
        return PREFIX + self.name

    @property
    def per_worker(self) -> bool:
        """True where the series of a worker that left are dropped."""
        return "worker" in self.labels


def _counter(name: str, help_: str, *labels: str) -> MetricSpec:
    return MetricSpec(name=name, type=MetricType.COUNTER, help=help_, across=Across.SUM, labels=labels)


def _gauge(name: str, help_: str, *labels: str, across: Across) -> MetricSpec:
    return MetricSpec(name=name, type=MetricType.GAUGE, help=help_, across=across, labels=labels)


def _histogram(name: str, help_: str, *labels: str, buckets: tuple[float, ...]) -> MetricSpec:
    return MetricSpec(
        name=name, type=MetricType.HISTOGRAM, help=help_, across=Across.SUM, labels=labels, buckets=buckets
    )


REQUESTS = _counter(
    "requests_total",
    "Requests that ended, by how; path and served_model are `none` where a request was not routed.",
    "model", "served_model", "path", "outcome",
)  # fmt: skip
REQUEST_DURATION = _histogram(
    "request_duration_seconds",
    "From a request's arrival to its last byte or its failure.",
    "model", "outcome",
    buckets=DURATION_BUCKETS_S,
)  # fmt: skip
TTFT = _histogram(
    "ttft_seconds",
    "From a request's arrival to the first content sent to the client.",
    "model", "path",
    buckets=TTFT_BUCKETS_S,
)  # fmt: skip
ITL = _histogram(
    "itl_seconds",
    "Between one content event of a stream and the next.",
    "model",
    buckets=TPOT_BUCKETS_S,
)
TPOT = _histogram(
    "tpot_seconds",
    "A stream's mean time per output token after the first.",
    "model", "path",
    buckets=TPOT_BUCKETS_S,
)  # fmt: skip
PREFILL_LEG = _histogram(
    "prefill_leg_seconds",
    "How long the prefill worker took to answer, for requests on the remote path.",
    "model",
    buckets=TTFT_BUCKETS_S,
)
DECISION = _histogram(
    "decision_seconds",
    "How long the core took to route a request or to refuse it.",
    buckets=DECISION_BUCKETS_S,
)
TOKENS = _counter(
    "tokens_total",
    "Tokens as the workers reported them; cached tokens are a part of the input tokens.",
    "model", "type",
)  # fmt: skip
OUTPUT_LENGTH = _histogram(
    "output_length_ratio",
    "Predicted over actual output tokens of whole answers whose length the output-length model predicted.",
    "model",
    buckets=QUOTIENT_BUCKETS,
)
INFLIGHT = _gauge("inflight_requests", "Requests being served.", "model", across=Across.SUM)

PATHS = _counter("path_total", "Decisions by path and by the reason for it.", "path", "reason")
WORKER_SELECTED = _counter(
    "worker_selected_total",
    "Decisions that chose a worker, by the leg that it was chosen for.",
    "worker", "role", "policy",
)  # fmt: skip
PREDICTED_HIT = _histogram(
    "predicted_prefix_hit_ratio",
    "Share of the prompt that the worker chosen for the prefill was thought to hold.",
    buckets=RATIO_BUCKETS,
)
ACTUAL_CACHED = _histogram(
    "actual_cached_ratio",
    "Share of the prompt that the worker reported as cached.",
    buckets=RATIO_BUCKETS,
)
REFUSALS = _counter("refusals_total", "Requests that the core would not route.", "reason")
RETRIES = _counter("retries_total", "Attempts given up for another one, by what went wrong.", "cause")
UPSTREAM_ERRORS = _counter("upstream_errors_total", "Failures of a worker's legs.", "worker", "kind")

SLO_ATTAINED = _counter("slo_attained_total", "Routed requests that met their SLO.", "slo", "path")
SLO_MISSED = _counter(
    "slo_missed_total",
    "Routed requests that missed their SLO, by the bound that was missed.",
    "slo", "path", "bound",
)  # fmt: skip
SLO_OBJECTIVE = _gauge(
    "slo_objective",
    "Share of judged requests that should meet their SLO, as set now.",
    across=Across.MAX,
)
SLO_BOUND = _gauge(
    "slo_bound_seconds",
    "Bounds of every SLO class, as set now; a bound that does not apply has no series.",
    "slo", "bound",
    across=Across.MAX,
)  # fmt: skip
SLO_BURN_RATE = _gauge(
    "slo_burn_rate",
    "How many times faster than allowed the error budget was spent over the window.",
    "slo", "window",
    across=Across.MAX,
)  # fmt: skip

WORKERS = _gauge("workers", "Known workers by role and state.", "role", "state", across=Across.MAX)
WORKER_INFLIGHT_REQUESTS = _gauge(
    "worker_inflight_requests",
    "Requests that the gateway has in flight at the worker.",
    "worker", "role",
    across=Across.SUM,
)  # fmt: skip
WORKER_INFLIGHT_TOKENS = _gauge(
    "worker_inflight_tokens",
    "KV tokens that requests in flight hold or have reserved at the worker.",
    "worker", "role",
    across=Across.SUM,
)  # fmt: skip
WORKER_QUEUE_DEPTH = _gauge(
    "worker_queue_depth",
    "Requests waiting inside the engine, from its last fresh sample; absent without one.",
    "worker", "role",
    across=Across.MAX,
)  # fmt: skip
WORKER_KV_USED = _gauge(
    "worker_kv_used_ratio",
    "Share of the worker's KV cache in use, in [0,1]; absent where it is not known.",
    "worker", "role",
    across=Across.MAX,
)  # fmt: skip
WORKER_SAMPLE_AGE = _gauge(
    "worker_sample_age_seconds",
    "Age of the last sample of the worker's own metrics; absent before the first.",
    "worker", "role",
    across=Across.MAX,
)  # fmt: skip
WORKER_PRICE_RATIO = _gauge(
    "worker_price_ratio",
    "What prefills and decode steps took of late over what the worker's engine file or bundle says: 1 is as priced.",
    "worker", "role", "phase",
    across=Across.MAX,
)  # fmt: skip
WORKER_BREAKER = _gauge(
    "worker_breaker_state",
    "0 closed (well), 1 half-open (on trial), 2 open (ejected), 3 down (probe fails), 4 draining.",
    "worker", "role",
    across=Across.MAX,
)  # fmt: skip
UPSTREAM_CONNECTIONS = _gauge(
    "upstream_connections",
    "Connections to the worker by state.",
    "worker",
    "state",
    across=Across.SUM,
)

CONVERSATION_TURNS = _counter(
    "conversation_turns_total",
    "Requests that are turns of a conversation, by what the turn is to its KV: it begins (first), goes on where it is"
    " (next), or is computed anew elsewhere (moved).",
    "turn",
)
CONVERSATION_TRANSFERS = _counter(
    "conversation_transfers_total", "Prompts of conversations that were prefilled elsewhere, and their KV moved."
)
CONVERSATION_FIRST_TEXT = _histogram(
    "conversation_first_text_seconds",
    "Time to first effective token: how long a conversation's turns took until one streamed text that its user sees,"
    " without the pauses of its tools.",
    buckets=TTFT_BUCKETS_S,
)
PREFILL_ENERGY = _counter(
    "prefill_energy_joules_total",
    "Modelled, not measured: what the prefills of routed requests took beyond idling, by path; 0 unless"
    " routing.engines says what workers draw.",
    "path",
)
CONVERSATIONS = _gauge(
    "conversations",
    "Conversations that are remembered, by whether a worker holds their KV.",
    "kv",
    across=Across.SUM,
)
WORKER_CONVERSATION_TOKENS = _gauge(
    "worker_conversation_tokens",
    "KV tokens that remembered conversations hold, or are promised, at the worker.",
    "worker", "role",
    across=Across.SUM,
)  # fmt: skip
SHARED_UP = _gauge(
    "shared_up",
    "1 while the server of the shared pins answers, and in time; absent without a server, as all below.",
    across=Across.MIN,
)
SHARED_CALLS = _counter(
    "shared_calls_total", "Requests that asked where their conversation is pinned, by what came of it.", "outcome"
)
SHARED_CALL = _histogram(
    "shared_call_seconds",
    "How long requests waited for the server of the shared pins, those among them that gave up.",
    buckets=SHARED_CALL_BUCKETS_S,
)
SHARED_QUEUED = _gauge(
    "shared_queued",
    "Conversations whose newest state waits to be sent to the other gateways.",
    across=Across.SUM,
)
SHARED_SENT = _counter("shared_sent_total", "States and ends of conversations that were sent.")
SHARED_DROPPED = _counter("shared_dropped_total", "Those that a full queue lost.")
SHARED_DOWNS = _counter(
    "shared_downs_total", "Times that the server of the shared pins was lost, or away at the start."
)
SHARED_MOVED = _counter(
    "shared_moved_total", "Pins that another gateway has moved or closed, or knew better than this one."
)
SHARED_LOADS = _counter(
    "shared_loads_total",
    "Times that this gateway told the others what it has in flight and heard what they have; absent where"
    " `shared.load_s` is null, as the two below.",
)
SHARED_LOAD_FAILURES = _counter("shared_load_failures_total", "Times that this broke off, or could not begin.")
SHARED_REPLICAS = _gauge(
    "shared_replicas",
    "Gateways, or processes of one, that told theirs of late, this one among them; 0: not known.",
    across=Across.MAX,
)
WAITING_REQUESTS = _gauge("waiting_requests", "Requests that wait for room.", across=Across.SUM)
PREFIX_BLOCKS = _gauge("prefix_index_blocks", "Prompt blocks in the prefix index, over all workers.", across=Across.SUM)
BYTES_PER_TOKEN = _gauge("bytes_per_token", "Calibrated bytes of prompt text per token.", "model", across=Across.MAX)
POLICY_INFO = _gauge("policy_info", "The routing policy in force; always 1.", "policy", "version", across=Across.MAX)
POLICY_REFUSED = _counter(
    "policy_refused_total",
    "Times that the store's active bundle was refused, by what is wrong with it; the policy in force stayed.",
    "reason",
)
PROCESSES = _gauge(
    "processes",
    "Processes of this gateway that this scrape is of; absent where it is one (`server.workers`), as the two below.",
    across=Across.MAX,
)
PROCESS_RESTARTS = _counter("process_restarts_total", "Processes that ended by themselves and were started again.")
PROCESS_SCRAPE_MISSES = _counter(
    "process_scrape_misses_total",
    "Times that a process did not answer a scrape in time: its counts are those of the scrape before, and its gauges"
    " are left out.",
)
DECISION_LOG_RECORDS = _counter("decision_log_records_total", "Records written to the decision log.")
DECISION_LOG_DROPPED = _counter(
    "decision_log_dropped_total",
    "Records that the decision log lost to a full queue or a failing disk.",
)
EVENT_LOOP_LAG = _gauge(
    "event_loop_lag_seconds",
    "How late the event loop ran its timers: a moving average, and the largest since the last scrape.",
    "stat",
    across=Across.MAX,
)
BUILD_INFO = _gauge("build_info", "The running build; always 1.", "version", "commit", across=Across.MAX)

METRICS: Final = tuple(value for value in tuple(globals().values()) if isinstance(value, MetricSpec))
"""All of the above, in order."""
