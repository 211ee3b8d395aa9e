"""What the core is told.

The rule of this module: an event is a fact with the time at which it was observed, in seconds of the host's
clock. Events of one request name its decision; an event about an unknown decision is an error of the host.
"""

from dataclasses import dataclass
from typing import NamedTuple

from gateway.core.conversation.identity import ConversationId
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


@record
class ConversationTold:
    """Another replica knows where a conversation lives, or all of them have agreed on where it shall."""

    at_s: float
    conversation_id: ConversationId
    """As this replica has it."""
    label_key: int | None
    """The hash of its name; None where it has none."""
    end: int | None
    """Of its history, where it has no name."""
    worker_id: WorkerId
    kv_tokens: int
    """What it holds there; 0 where it shall only begin there."""
    turns: int
    paused_since_s: float | None = None
    """When a turn of it was last under way, at whichever replica; None where nobody said."""


@record
class ConversationClosed:
    """Another replica has seen a conversation end, or has gone on with it under another key."""

    at_s: float
    conversation_id: ConversationId


@record
class ResponseTold:
    """Another replica has seen a worker make a response that it keeps."""

    at_s: float
    end: int
    """See `identity.response_end`."""
    worker_id: WorkerId
    conversation_id: ConversationId | None
    """That the response belongs to, as this replica has it; None where no book is kept of it."""


@record
class KvPinned:
    """What conversations hold at each worker, over all replicas."""

    at_s: float
    until_s: float
    """No longer is it believed."""
    tokens: tuple[tuple[WorkerId, int], ...]
    """Of each worker that has any."""


class WorkerLoad(NamedTuple):
    """What requests in flight take from one worker: a `Tally` of the ledger, with its worker."""

    worker_id: WorkerId
    requests: int = 0
    prefill_tokens: int = 0
    kv_tokens: int = 0
    awaited_requests: int = 0
    awaited_kv_tokens: int = 0

    def plus(self, other: "WorkerLoad | None", *, sign: int = 1) -> "WorkerLoad":
        """With another's at the same worker."""
        if other is None:
            return self
        return WorkerLoad(self[0], *[own + sign * its for own, its in zip(self[1:], other[1:], strict=True)])

    def less(self, other: "WorkerLoad | None") -> "WorkerLoad":
        """Without another's at the same worker."""
        return self.plus(other, sign=-1)


@record
class LoadsElsewhere:
    """What all other replicas together have in flight at workers, a moment ago."""

    at_s: float
    until_s: float
    """No longer is it believed, nor what was told before."""
    loads: tuple[WorkerLoad, ...]
    """Of each worker where it has changed; zeros where nothing is left."""
    is_whole: bool = False
    """Of the workers that are not named nobody has anything; otherwise, what was told of them before."""


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
    | ConversationTold
    | ConversationClosed
    | ResponseTold
    | KvPinned
    | LoadsElsewhere
)
