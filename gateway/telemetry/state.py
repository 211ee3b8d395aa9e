"""What a scrape reads from the running gateway, and the gauges that it becomes.

The rule of this module: gauges are read when asked for, never kept, so they cannot be stale. A signal that is
None gives no series.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Protocol

from prometheus_client.samples import Sample

from gateway.core.health import HealthState
from gateway.core.types import Role, SloTarget, WorkerId
from gateway.telemetry import metrics
from gateway.telemetry.labels import LagStat, Leg, MissedBound, SharedOutcome
from gateway.telemetry.loop_lag import LoopLag
from gateway.telemetry.metrics import MetricSpec
from gateway.telemetry.series import histogram_samples

DRAINING: Final = "draining"

BREAKER_NUMBER: Mapping[str, int] = MappingProxyType(
    {
        HealthState.CLOSED: 0,
        HealthState.HALF_OPEN: 1,
        HealthState.OPEN: 2,
        HealthState.DOWN: 3,
        DRAINING: 4,
    }
)
"""The value of `worker_breaker_state` by state; also the closed list of `state` in `workers`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerState:
    """One worker as the gauges show it."""

    worker_id: WorkerId
    role: Role
    state: HealthState
    draining: bool
    inflight_requests: int
    inflight_tokens: int
    queue_depth: int | None = None
    kv_used_ratio: float | None = None
    sample_age_s: float | None = None
    prefill_price_ratio: float | None = None
    """What prefills took of late over what their prices say; None where there are none."""
    decode_price_ratio: float | None = None
    conversation_tokens: int = 0
    """KV that remembered conversations hold or are promised."""

    @property
    def shown_state(self) -> str:
        """The state as a label: draining goes before health."""
        return DRAINING if self.draining else self.state.value


class StateReader(Protocol):
    """The core's state as of now."""

    def workers(self) -> Sequence[WorkerState]:
        """All known workers."""
        ...

    def prefix_blocks(self) -> int:
        """Blocks in the prefix index, over all workers."""
        ...

    def conversations(self) -> Mapping[str, int]:
        """Remembered conversations by whether a worker holds their KV: `warm` or `cold`."""
        ...

    def waiting_requests(self) -> int:
        """Requests that wait for room."""
        ...

    def bytes_per_token(self) -> Mapping[str, float]:
        """Calibrated bytes of text per token, by model."""
        ...

    def burn_rates(self) -> Mapping[tuple[str, str], float]:
        """Burn rate by (SLO name, window), the window as in `5m`."""
        ...

    def slos(self) -> Sequence[SloTarget]:
        """The SLOs in force, the default among them."""
        ...

    def slo_objective(self) -> float:
        """The share of judged requests that should meet their SLO."""
        ...

    def policy(self) -> tuple[str, str]:
        """Name and version of the policy in force."""
        ...


class PoolReader(Protocol):
    """The upstream connection pool."""

    def connections(self) -> Mapping[tuple[str, str], int]:
        """Open connections by (worker, state)."""
        ...


class DecisionLogReader(Protocol):
    """The decision log's own counts."""

    @property
    def written(self) -> int:
        """Records written."""
        ...

    @property
    def dropped(self) -> int:
        """Records lost."""
        ...


class LagReader(Protocol):
    """The event loop's lag."""

    def take(self) -> LoopLag | None:
        """The lag since the last call; None before the first sample."""
        ...


class SharedReader(Protocol):
    """What the shared pins have done since the start; see `gateway.fleet.shared.stats`."""

    @property
    def is_up(self) -> bool:
        """The server answers, and in time."""
        ...

    @property
    def queued(self) -> int:
        """Conversations whose newest state waits."""
        ...

    @property
    def answered(self) -> int:
        """Calls that were answered."""
        ...

    @property
    def timed_out(self) -> int:
        """Calls that were given up."""
        ...

    @property
    def refused(self) -> int:
        """Calls that were not made, or lost with the server."""
        ...

    @property
    def sent(self) -> int:
        """States and ends that were sent."""
        ...

    @property
    def dropped(self) -> int:
        """Those that were lost."""
        ...

    @property
    def downs(self) -> int:
        """How often the server was lost."""
        ...

    @property
    def moved(self) -> int:
        """Pins that others moved, closed or knew better."""
        ...

    @property
    def call_counts(self) -> Sequence[int]:
        """Calls by how long they took: one number for each of `SHARED_CALL_BUCKETS_S`, and one beyond."""
        ...

    @property
    def call_seconds(self) -> float:
        """The sum of those times."""
        ...


class LoadsReader(Protocol):
    """What came of telling the other gateways of one's load; see `gateway.fleet.shared.stats`."""

    @property
    def exchanges(self) -> int:
        """Times that loads were told and heard."""
        ...

    @property
    def failures(self) -> int:
        """Times that this broke off."""
        ...

    @property
    def replicas(self) -> int:
        """Gateways that told of late."""
        ...


class ProcessesReader(Protocol):
    """The processes of one gateway, as their parent sees them."""

    @property
    def answering(self) -> int:
        """Those that answered this scrape."""
        ...

    @property
    def restarts(self) -> int:
        """How often one was started again."""
        ...

    @property
    def misses(self) -> int:
        """How often one did not answer a scrape in time."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Readers:
    """Everything that a scrape reads; a part that is not running is None and shows no series."""

    state: StateReader
    pool: PoolReader | None = None
    decision_log: DecisionLogReader | None = None
    loop_lag: LagReader | None = None
    shared: Callable[[], SharedReader] | None = None
    loads: LoadsReader | None = None
    processes: ProcessesReader | None = None


Reading = tuple[MetricSpec, tuple[str, ...], float]
"""A metric, its label values and its value."""


def read(readers: Readers, workers: Sequence[WorkerState]) -> Iterator[Reading]:
    """All values of this moment; `workers` is the reader's answer, taken once per scrape."""
    yield from _fleet(workers)
    for worker in workers:
        yield from _worker(worker)
    yield from _core(readers.state)
    if readers.pool is not None:
        known = {worker.worker_id for worker in workers}
        yield from _connections(readers.pool.connections(), known)
    if readers.decision_log is not None:
        yield metrics.DECISION_LOG_RECORDS, (), readers.decision_log.written
        yield metrics.DECISION_LOG_DROPPED, (), readers.decision_log.dropped
    if readers.loop_lag is not None:
        yield from _loop_lag(readers.loop_lag.take())
    if readers.shared is not None:
        yield from _shared(readers.shared())
    if readers.loads is not None:
        yield metrics.SHARED_LOADS, (), readers.loads.exchanges
        yield metrics.SHARED_LOAD_FAILURES, (), readers.loads.failures
        yield metrics.SHARED_REPLICAS, (), readers.loads.replicas
    if readers.processes is not None:
        yield from read_processes(readers.processes)


def read_processes(processes: ProcessesReader) -> Iterator[Reading]:
    """What is known of the processes of one gateway."""
    yield metrics.PROCESSES, (), processes.answering
    yield metrics.PROCESS_RESTARTS, (), processes.restarts
    yield metrics.PROCESS_SCRAPE_MISSES, (), processes.misses


def _shared(shared: SharedReader) -> Iterator[Reading]:
    yield metrics.SHARED_UP, (), shared.is_up
    yield metrics.SHARED_QUEUED, (), shared.queued
    yield metrics.SHARED_CALLS, (SharedOutcome.ANSWERED,), shared.answered
    yield metrics.SHARED_CALLS, (SharedOutcome.TIMED_OUT,), shared.timed_out
    yield metrics.SHARED_CALLS, (SharedOutcome.REFUSED,), shared.refused
    yield metrics.SHARED_SENT, (), shared.sent
    yield metrics.SHARED_DROPPED, (), shared.dropped
    yield metrics.SHARED_DOWNS, (), shared.downs
    yield metrics.SHARED_MOVED, (), shared.moved


def read_calls(readers: Readers) -> Iterator[Sample]:
    """How long calls of the shared pins took, as exposed lines."""
    if readers.shared is not None:
        shared, spec = readers.shared(), metrics.SHARED_CALL
        yield from histogram_samples(spec.full_name, {}, spec.buckets, shared.call_counts, shared.call_seconds)


def _fleet(workers: Iterable[WorkerState]) -> Iterator[Reading]:
    count = Counter((worker.role, worker.shown_state) for worker in workers)
    for role in Role:
        for state in BREAKER_NUMBER:
            yield metrics.WORKERS, (role, state), count[role, state]


def _worker(worker: WorkerState) -> Iterator[Reading]:
    values: tuple[tuple[MetricSpec, float | None], ...] = (
        (metrics.WORKER_INFLIGHT_REQUESTS, worker.inflight_requests),
        (metrics.WORKER_INFLIGHT_TOKENS, worker.inflight_tokens),
        (metrics.WORKER_QUEUE_DEPTH, worker.queue_depth),
        (metrics.WORKER_KV_USED, worker.kv_used_ratio),
        (metrics.WORKER_SAMPLE_AGE, worker.sample_age_s),
        (metrics.WORKER_CONVERSATION_TOKENS, worker.conversation_tokens),
        (metrics.WORKER_BREAKER, BREAKER_NUMBER[worker.shown_state]),
    )
    for spec, value in values:
        if value is not None:
            yield spec, (worker.worker_id, worker.role), value
    for phase, ratio in ((Leg.PREFILL, worker.prefill_price_ratio), (Leg.DECODE, worker.decode_price_ratio)):
        if ratio is not None:
            yield metrics.WORKER_PRICE_RATIO, (worker.worker_id, worker.role, phase), ratio


def _core(state: StateReader) -> Iterator[Reading]:
    yield metrics.PREFIX_BLOCKS, (), state.prefix_blocks()
    for kv, count in state.conversations().items():
        yield metrics.CONVERSATIONS, (kv,), count
    yield metrics.WAITING_REQUESTS, (), state.waiting_requests()
    for model, bytes_per_token in state.bytes_per_token().items():
        yield metrics.BYTES_PER_TOKEN, (model,), bytes_per_token
    for (slo, window), rate in state.burn_rates().items():
        yield metrics.SLO_BURN_RATE, (slo, window), rate
    yield metrics.SLO_OBJECTIVE, (), state.slo_objective()
    for target in state.slos():
        yield from _bounds(target)
    yield metrics.POLICY_INFO, state.policy(), 1.0


def _bounds(slo: SloTarget) -> Iterator[Reading]:
    for bound, seconds in ((MissedBound.TTFT, slo.ttft_s), (MissedBound.TPOT, slo.tpot_s)):
        if seconds is not None:
            yield metrics.SLO_BOUND, (slo.name, bound), seconds


def _connections(counts: Mapping[tuple[str, str], int], known: set[WorkerId]) -> Iterator[Reading]:
    for (worker, state), count in counts.items():
        if worker in known:
            yield metrics.UPSTREAM_CONNECTIONS, (worker, state), count


def _loop_lag(lag: LoopLag | None) -> Iterator[Reading]:
    if lag is not None:
        yield metrics.EVENT_LOOP_LAG, (LagStat.EWMA,), lag.ewma_s
        yield metrics.EVENT_LOOP_LAG, (LagStat.MAX,), lag.max_s
