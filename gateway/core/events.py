"""What the core is told.

The rule of this module: an event is a fact with the time at which it was observed, in seconds of the host's
clock. Events of one request name its decision; an event about an unknown decision is an error of the host.
"""

from dataclasses import dataclass

from gateway.core.record import record
from gateway.core.types import DecisionId, Outcome, WorkerId, WorkerSample, WorkerSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerUp:
    """A worker joined, or its spec changed."""

    at_s: float
    spec: WorkerSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDown:
    """A worker left the fleet: its index and health are forgotten."""

    at_s: float
    worker_id: WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDraining:
    """A worker takes no new requests; those in flight finish."""

    at_s: float
    worker_id: WorkerId


@record
class WorkerSampled:
    """A worker's metrics were scraped."""

    at_s: float
    worker_id: WorkerId
    sample: WorkerSample


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerProbed:
    """A health probe answered, or did not."""

    at_s: float
    worker_id: WorkerId
    healthy: bool
    timed_out: bool = False
    """It failed because no answer came in time, which a busy worker may do too."""


@record
class Dispatched:
    """The first leg of a decision was accepted by its worker's socket."""

    at_s: float
    decision_id: DecisionId


@record
class Prefilled:
    """The prefill leg of a remote path ended well; the decode leg starts now."""

    at_s: float
    decision_id: DecisionId


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillLost:
    """The prefill leg failed and the decode worker prefills the prompt itself."""

    at_s: float
    decision_id: DecisionId
    blame: WorkerId | None
    """The prefill worker, where the failure counts against it."""


@record
class FirstToken:
    """The first content of the answer arrived."""

    at_s: float
    decision_id: DecisionId


@record
class Finished:
    """The request ended; its reservation is released. Sent exactly once per decision that was not aborted."""

    at_s: float
    decision_id: DecisionId
    outcome: Outcome
    blame: WorkerId | None = None
    """The worker whose fault the end was, where it was a worker's fault."""


Event = (
    WorkerUp
    | WorkerDown
    | WorkerDraining
    | WorkerSampled
    | WorkerProbed
    | Dispatched
    | Prefilled
    | PrefillLost
    | FirstToken
    | Finished
)
