"""A router whose every call is written down.

The rule of this module: it adds nothing to the router's answers, so a journal replayed through a plain router must
give the same bytes.
"""

from gateway.core.events import Event
from gateway.core.policy import Policy
from gateway.core.router import NO_EXCLUSIONS, Router
from gateway.core.types import Decision, DecisionId, Refusal, RequestFacts, WorkerId
from gateway.core.waiting import Ticket, Wait
from gateway.telemetry.journal import JournalWriter
from gateway.wire.journal import CallName, Detail


class RecordedCore:
    """Passes every call to a router and writes it to a journal, which begins with how the router was made."""

    def __init__(self, router: Router, journal: JournalWriter, *, seed: int, instance: str) -> None:
        self._router = router
        self._journal = journal
        details: dict[str, Detail] = {"seed": seed, "instance": instance, "policy": router.policy.description}
        journal.call(CallName.OPEN, 0.0, None, None, details=details)

    def submit(
        self,
        facts: RequestFacts,
        now_s: float,
        *,
        exclude: frozenset[WorkerId] = NO_EXCLUSIONS,
        attempt: int = 1,
    ) -> Decision | Refusal | Wait:
        """Route one request."""
        routed = self._router.submit(facts, now_s, exclude=exclude, attempt=attempt)
        details: dict[str, Detail] = {"exclude": [*sorted(exclude)], "attempt": attempt}
        self._journal.call(CallName.SUBMIT, now_s, facts, routed, details=details)
        return routed

    def release(self, now_s: float) -> list[tuple[Ticket, Decision | Refusal]]:
        """Route those that waited and need not any longer."""
        released = self._router.release(now_s)
        self._journal.call(CallName.RELEASE, now_s, None, released)
        return released

    def give_up(self, ticket: Ticket) -> None:
        """Whoever waits with this ticket has left."""
        self._router.give_up(ticket)
        self._journal.call(CallName.GIVE_UP, 0.0, None, None, details={"ticket": ticket})

    def adopt(self, policy: Policy) -> None:
        """Decide by another policy from now on."""
        self._router.adopt(policy)
        self._journal.call(CallName.ADOPT, 0.0, None, None, details={"policy": policy.description})

    def abort(self, decision_id: DecisionId, now_s: float, *, blame: WorkerId | None = None) -> None:
        """End a decision of which the client has seen nothing."""
        self._router.abort(decision_id, now_s, blame=blame)
        self._journal.call(CallName.ABORT, now_s, None, None, details={"decision_id": decision_id, "blame": blame})

    def observe(self, event: Event) -> None:
        """Take note of a fact."""
        self._router.observe(event)
        self._journal.call(CallName.OBSERVE, event.at_s, event, None)

    def tick(self, now_s: float) -> None:
        """Let time pass."""
        self._router.tick(now_s)
        self._journal.call(CallName.TICK, now_s, None, None)
