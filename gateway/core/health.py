"""Every change of a worker's health happens in this file.

The rule of this module: three signals move a worker (outcomes of requests, health probes, time), through one
transition table. A client's own error never counts, overload is not failure, and no more than a set share of a
pool is ejected at once. A probe that is refused says more than one that runs out of time: an engine on busy cores
answers late and yet serves, so requests that get on there meanwhile outweigh its late probes.
Sources: the breaker and ejection terms are Envoy's outlier detection; the cases are field reports 39, 40, 49.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from gateway.core.path.base import PolicyError
from gateway.core.types import DecisionId, Role, WorkerId

_MAX_DOUBLINGS = 64
_COUNTS = (
    "consecutive_failures",
    "outlier_min_requests",
    "memory_requests",
    "trial_successes",
    "probe_failures",
    "probe_timeouts",
    "probe_successes",
)


class HealthState(StrEnum):
    """A worker's state; only the first two take requests."""

    CLOSED = "closed"
    """Well: takes requests."""
    HALF_OPEN = "half_open"
    """On trial: takes one request at a time; those from before the trial do not count."""
    OPEN = "open"
    """Ejected for a while because requests failed there."""
    DOWN = "down"
    """Its health probe fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthPolicy:
    """When a worker is ejected and how it comes back."""

    consecutive_failures: int = 5
    """Failures in a row that open the breaker."""
    outlier_min_requests: int = 20
    """Judge a failure ratio only over at least so many requests."""
    outlier_failure_ratio: float = 0.5
    """A worker that fails more often than this while the rest of its pool fails less is ejected."""
    memory_requests: float = 50.0
    """How many requests the failure ratio remembers."""
    open_s: float = 10.0
    """First ejection; doubled at each further one, up to `max_open_s`."""
    max_open_s: float = 120.0
    trial_successes: int = 2
    """Successes on trial that close the breaker."""
    max_ejected_ratio: float = 0.5
    """Share of a pool that may be ejected at once (at least one worker may)."""
    panic_ratio: float = 0.34
    """Below this share of routable workers the breaker is ignored: some answer is better than none."""
    probe_failures: int = 3
    """Probes that were refused, broken off or answered with an error, without a good one between, until DOWN."""
    probe_timeouts: int = 6
    """Failed probes of any kind until DOWN, with nothing heard of the worker between."""
    probe_successes: int = 2

    def __post_init__(self) -> None:
        for name in ("outlier_failure_ratio", "max_ejected_ratio", "panic_ratio"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise PolicyError(f"{name} must lie between 0 and 1")
        for name in ("open_s", "max_open_s"):
            if not getattr(self, name) > 0.0:
                raise PolicyError(f"{name} must be above 0")
        for name in _COUNTS:
            if not getattr(self, name) >= 1:
                raise PolicyError(f"{name} must be at least 1")


@dataclass(slots=True)
class WorkerHealth:
    """One worker's counters and state."""

    role: Role
    state: HealthState = HealthState.CLOSED
    draining: bool = False
    failures_in_row: int = 0
    trial_successes: int = 0
    trials: set[DecisionId] = field(default_factory=set)
    """Requests in flight that were sent while on trial."""
    probe_failures: int = 0
    """Without those that ran out of time."""
    silent_probes: int = 0
    """Failed probes of any kind since something was heard of the worker."""
    probe_successes: int = 0
    ejections: int = 0
    open_until_s: float = 0.0
    requests: float = 0.0
    failures: float = 0.0

    @property
    def failure_ratio(self) -> float:
        """Share of failures among the remembered requests."""
        return self.failures / self.requests if self.requests else 0.0

    def count(self, failed: bool, memory_requests: float) -> None:
        """Remember one outcome; older ones fade."""
        fade = 1.0 - 1.0 / memory_requests
        self.requests = self.requests * fade + 1.0
        self.failures = self.failures * fade + failed
        self.failures_in_row = self.failures_in_row + 1 if failed else 0


@dataclass(slots=True)
class HealthTable:
    """The health of all workers."""

    policy: HealthPolicy
    version: int = 0
    """Grows when a worker may have become one that takes requests, or stopped being one."""
    _workers: dict[WorkerId, WorkerHealth] = field(default_factory=dict)

    def add(self, worker_id: WorkerId, role: Role) -> None:
        """A worker joined (well), or a known one changed its role and stays as it was."""
        known = self._workers.get(worker_id)
        self.version += 1
        if known is None:
            self._workers[worker_id] = WorkerHealth(role)
        else:
            known.role = role
            known.draining = False

    def remove(self, worker_id: WorkerId) -> None:
        """Forget a worker."""
        self.version += 1
        self._workers.pop(worker_id, None)

    def drain(self, worker_id: WorkerId) -> None:
        """A worker takes no new requests from now on."""
        health = self._workers.get(worker_id)
        if health is not None:
            self.version += 1
            health.draining = True

    def get(self, worker_id: WorkerId) -> WorkerHealth:
        """The worker's health; raises KeyError where it is unknown."""
        return self._workers[worker_id]

    def routable(self, pool: Iterable[WorkerId], *, may_panic: bool) -> list[WorkerId]:
        """Those of `pool` that may take a request now.

        With `may_panic`, a pool in which too few are left gives its ejected workers too (never those whose probe
        fails or that drain).
        """
        present = [(worker_id, health) for worker_id in pool if not (health := self._workers[worker_id]).draining]
        well = [worker_id for worker_id, health in present if _takes(health)]
        if may_panic and len(well) < self.policy.panic_ratio * len(present):
            return [worker_id for worker_id, health in present if health.state is not HealthState.DOWN]
        return well

    def is_well(self, worker_id: WorkerId) -> bool:
        """Whether it takes a request by its own merit, not only because too few others are left."""
        return _takes(self._workers[worker_id])

    def is_down(self, worker_id: WorkerId) -> bool:
        """Whether its probe fails, or it has left."""
        health = self._workers.get(worker_id)
        return health is None or health.state is HealthState.DOWN

    def sent(self, worker_id: WorkerId, decision_id: DecisionId) -> None:
        """A request goes there; on trial it takes no other until `ended`."""
        health = self._workers.get(worker_id)
        if health is not None and health.state is HealthState.HALF_OPEN:
            self.version += 1
            health.trials.add(decision_id)

    def ended(self, worker_id: WorkerId, decision_id: DecisionId) -> None:
        """The request has ended there, however it did."""
        health = self._workers.get(worker_id)
        if health is not None and health.trials:
            self.version += 1
            health.trials.discard(decision_id)

    def heard(self, worker_id: WorkerId) -> None:
        """It got on with a request: it is alive, however late its probes are. A scrape says nothing of its engine."""
        health = self._workers.get(worker_id)
        if health is not None:
            health.silent_probes = 0

    def succeeded(self, worker_id: WorkerId) -> None:
        """A request went well there."""
        health = self._workers.get(worker_id)
        if health is None:
            return
        health.count(False, self.policy.memory_requests)
        health.silent_probes = 0
        if health.state is HealthState.HALF_OPEN:
            health.trial_successes += 1
            if health.trial_successes >= self.policy.trial_successes:
                self._close(health)

    def failed(self, worker_id: WorkerId, now_s: float) -> None:
        """A request failed there by the worker's own fault (never for 4xx or overload)."""
        health = self._workers.get(worker_id)
        if health is None:
            return
        health.count(True, self.policy.memory_requests)
        if health.state is HealthState.HALF_OPEN or (
            health.state is HealthState.CLOSED and self._is_sick(health) and self._may_eject(health)
        ):
            self._open(health, now_s)

    def probed(self, worker_id: WorkerId, healthy: bool, *, timed_out: bool = False) -> None:
        """A health probe was answered well, or it failed; `timed_out` where it failed for want of any answer."""
        health = self._workers.get(worker_id)
        if health is None:
            return
        health.probe_successes = health.probe_successes + 1 if healthy else 0
        if healthy:
            health.probe_failures = health.silent_probes = 0
        else:
            health.probe_failures += not timed_out
            health.silent_probes += 1
        if health.state is HealthState.DOWN:
            if health.probe_successes >= self.policy.probe_successes:
                self._try(health)
        elif self._is_gone(health):
            self.version += 1
            health.state = HealthState.DOWN

    def tick(self, now_s: float) -> None:
        """Put workers on trial whose ejection has ended."""
        for health in self._workers.values():
            if health.state is HealthState.OPEN and now_s >= health.open_until_s:
                self._try(health)

    def _is_gone(self, health: WorkerHealth) -> bool:
        policy = self.policy
        return health.probe_failures >= policy.probe_failures or health.silent_probes >= policy.probe_timeouts

    def _is_sick(self, health: WorkerHealth) -> bool:
        policy = self.policy
        if health.failures_in_row >= policy.consecutive_failures:
            return True
        if health.requests < policy.outlier_min_requests:
            return False
        return health.failure_ratio > policy.outlier_failure_ratio > self._rest_failure_ratio(health)

    def _rest_failure_ratio(self, health: WorkerHealth) -> float:
        rest = [other for other in self._workers.values() if other is not health and other.role is health.role]
        requests = sum(other.requests for other in rest)
        return sum(other.failures for other in rest) / requests if requests else 1.0

    def _may_eject(self, health: WorkerHealth) -> bool:
        pool = [other for other in self._workers.values() if other.role is health.role]
        ejected = sum(other.state is HealthState.OPEN for other in pool)
        return ejected + 1 <= max(1, self.policy.max_ejected_ratio * len(pool))

    def _open(self, health: WorkerHealth, now_s: float) -> None:
        # Capped: a worker that never recovers would overflow the power within days.
        pause_s = min(self.policy.open_s * 2.0 ** min(health.ejections, _MAX_DOUBLINGS), self.policy.max_open_s)
        self.version += 1
        health.state = HealthState.OPEN
        health.open_until_s = now_s + pause_s
        health.ejections += 1

    def _try(self, health: WorkerHealth) -> None:
        self.version += 1
        health.state = HealthState.HALF_OPEN
        health.trial_successes = 0
        health.trials = set()
        health.failures_in_row = 0

    def _close(self, health: WorkerHealth) -> None:
        self.version += 1
        health.state = HealthState.CLOSED
        health.ejections = 0
        health.requests = health.failures = 0.0


def _takes(health: WorkerHealth) -> bool:
    if health.state is HealthState.CLOSED:
        return True
    return health.state is HealthState.HALF_OPEN and not health.trials
