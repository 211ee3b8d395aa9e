"""The core, and those that it keeps waiting.

The rule of this module: whoever waits is called once, as soon as the core routes or refuses it, after the call to the
core that made room; one that leaves before is never called.
"""

from collections.abc import Callable
from typing import Protocol

from gateway.core.events import Event
from gateway.core.policy import Policy
from gateway.core.types import Decision, DecisionId, Refusal, RequestFacts, WorkerId
from gateway.core.waiting import Ticket, Wait
from gateway.upstream.services import Core

Call = Callable[[Decision | Refusal], None]


class ReleasingCore(Core, Protocol):
    """A core that says when somebody need not wait any longer."""

    def release(self, now_s: float) -> list[tuple[Ticket, Decision | Refusal]]:
        """Route those that waited and need not any longer."""


class CallingCore:
    """Passes every call to a core, and calls those for whom there is room then."""

    def __init__(self, core: ReleasingCore) -> None:
        self._core = core
        self._waiting: dict[Ticket, Call] = {}
        self._is_calling = False

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return len(self._waiting)

    def submit(
        self,
        facts: RequestFacts,
        now_s: float,
        *,
        exclude: frozenset[WorkerId] = frozenset(),
        attempt: int = 1,
    ) -> Decision | Refusal | Wait:
        """Route one request and reserve what it needs; see `expect` for one that has to wait."""
        return self._core.submit(facts, now_s, exclude=exclude, attempt=attempt)

    def expect(self, ticket: Ticket, call: Call) -> None:
        """Call the one with this ticket when it is routed."""
        self._waiting[ticket] = call

    def give_up(self, ticket: Ticket) -> None:
        """The one with this ticket has left."""
        if self._waiting.pop(ticket, None) is not None:
            self._core.give_up(ticket)

    def adopt(self, policy: Policy) -> None:
        """Decide by another policy from now on."""
        self._core.adopt(policy)

    def abort(self, decision_id: DecisionId, now_s: float, *, blame: WorkerId | None = None) -> None:
        """End a decision of which the client has seen nothing."""
        self._core.abort(decision_id, now_s, blame=blame)
        self._release(now_s)

    def observe(self, event: Event) -> None:
        """Take note of a fact."""
        self._core.observe(event)
        self._release(event.at_s)

    def tick(self, now_s: float) -> None:
        """Let time pass."""
        self._core.tick(now_s)
        self._release(now_s)

    def _release(self, now_s: float) -> None:
        """Call those that need not wait any longer."""
        if not self._waiting or self._is_calling:
            return
        self._is_calling = True
        try:
            # What a call does may make room for the next one.
            while released := self._core.release(now_s):
                for ticket, routed in released:
                    self._waiting.pop(ticket)(routed)
        finally:
            self._is_calling = False
