"""What a request's journey needs from the rest of the gateway.

The rule of this module: Protocols and plain containers, so that a journey can be driven by fakes and behind any
kind of server.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from gateway.core.events import Event
from gateway.core.policy import Policy
from gateway.core.record import record
from gateway.core.types import Decision, DecisionId, Refusal, RequestFacts, RequestId, WorkerId
from gateway.core.waiting import Ticket, Wait
from gateway.telemetry.request import RequestTelemetry
from gateway.upstream.budget import RetryBudget
from gateway.upstream.exchange import Limits
from gateway.upstream.hand_overs import HandOvers
from gateway.upstream.origin import Origin
from gateway.upstream.pending import PendingDecodes
from gateway.upstream.pool import UpstreamPool
from gateway.wire.dialects import Dialect

Headers = list[tuple[bytes, bytes]]


class Core(Protocol):
    """The decision core, recorded or not (see `gateway.core.router.Router`)."""

    def submit(
        self, facts: RequestFacts, now_s: float, *, exclude: frozenset[WorkerId] = ..., attempt: int = 1
    ) -> Decision | Refusal | Wait:
        """Route one request and reserve what it needs."""

    def give_up(self, ticket: Ticket) -> None:
        """Whoever waits with this ticket has left."""

    def adopt(self, policy: Policy) -> None:
        """Decide by another policy from now on."""

    def abort(self, decision_id: DecisionId, now_s: float, *, blame: WorkerId | None = None) -> None:
        """End a decision of which the client has seen nothing."""

    def observe(self, event: Event) -> None:
        """Take note of a fact."""

    def tick(self, now_s: float) -> None:
        """Let time pass."""


class ClientSink(Protocol):
    """The client's side of one request. Calls come from the event loop and must not block."""

    def start(self, status: int, headers: Headers) -> None:
        """The head of the answer; once, before anything else."""

    def write(self, data: bytes) -> None:
        """A piece of the body."""

    def flush(self) -> None:
        """No more follows at once: what was written goes out now, as it also does with the end."""

    def finish(self) -> None:
        """The answer is whole."""

    def break_off(self) -> None:
        """The answer cannot be completed: the client must see a broken connection, not a short body."""


def nobody_waits(ticket: Ticket, call: Callable[[Decision | Refusal], None]) -> None:  # noqa: ARG001
    """For a core that keeps nobody waiting."""
    raise AssertionError(f"ticket {ticket} was given out, and nobody calls it")


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """One of each, shared by all requests."""

    core: Core
    pool: UpstreamPool
    origins: Mapping[WorkerId, Origin]
    remote_origins: Mapping[WorkerId, Origin] = field(default_factory=dict)
    """The entry of the remote path, for workers that split by themselves."""
    prefill_limits: Limits
    decode_limits: Limits
    budget: RetryBudget
    max_attempts: int
    telemetry: RequestTelemetry
    clock: Callable[[], float]
    """Seconds, monotone; the same clock as the core's events."""
    expect: Callable[[Ticket, Callable[[Decision | Refusal], None]], None] = field(default=nobody_waits)
    """Who has to wait leaves here what is to be called when it is routed."""
    hand_overs: HandOvers = field(default_factory=HandOvers)
    pending: PendingDecodes = field(default_factory=PendingDecodes)


@record
class ClientRequest:
    """The client's request, ready to be sent on."""

    request_id: RequestId
    method: bytes
    target: bytes
    headers: Headers
    body: bytes
    """What the workers get: the client's bytes, but for an alias's model and a usage that the gateway asks for."""
    arrived_s: float
    dialect: Dialect
    hide_usage: bool = False
    """The client did not ask for the usage chunk of its stream."""
    own_headers: tuple[tuple[bytes, bytes], ...] = ()
    """The gateway's own headers for the workers, in the place of the client's of the same names."""
