"""A core whose conversations the other replicas hear of.

The rule of this module: it adds nothing to the core's answers. Whenever a turn has begun or ended, the newest state of
its conversation is left for the others; nobody waits for that.
"""

from dataclasses import replace

from gateway.core.conversation.book import Conversation
from gateway.core.conversation.identity import ConversationId
from gateway.core.conversation.shared_key import key_left, key_of
from gateway.core.events import Event, Finished
from gateway.core.policy import Policy
from gateway.core.record import record
from gateway.core.router import NO_EXCLUSIONS, Router
from gateway.core.types import Decision, DecisionId, Refusal, RequestFacts, WorkerId
from gateway.core.waiting import Ticket, Wait
from gateway.fleet.shared.hearing import pin_of
from gateway.fleet.shared.pins import LEAST_TOKENS, Pin, SharedState
from gateway.upstream.calling import ReleasingCore


@record
class _Turn:
    """A turn of a conversation of which a book is kept."""

    conversation: Conversation
    key: ConversationId
    """The conversation's, before the turn is answered."""
    left: ConversationId
    """The one that it has afterwards."""


class TellingCore:
    """Passes every call to a core and tells the others what came of it.

    Args:
        core: the router, recorded or not.
        router: the same, to be read.
        shared: where the others hear of it.
    """

    def __init__(self, core: ReleasingCore, router: Router, shared: SharedState) -> None:
        self._core = core
        self._router = router
        self._shared = shared

    def submit(
        self,
        facts: RequestFacts,
        now_s: float,
        *,
        exclude: frozenset[WorkerId] = NO_EXCLUSIONS,
        attempt: int = 1,
    ) -> Decision | Refusal | Wait:
        """Route one request."""
        routed = self._core.submit(facts, now_s, exclude=exclude, attempt=attempt)
        if isinstance(routed, Decision):
            self._began(routed)
        return routed

    def release(self, now_s: float) -> list[tuple[Ticket, Decision | Refusal]]:
        """Route those that waited and need not any longer."""
        released = self._core.release(now_s)
        for _, routed in released:
            if isinstance(routed, Decision):
                self._began(routed)
        return released

    def give_up(self, ticket: Ticket) -> None:
        """Whoever waits with this ticket has left."""
        self._core.give_up(ticket)

    def adopt(self, policy: Policy) -> None:
        """Decide by another policy from now on."""
        self._core.adopt(policy)

    def abort(self, decision_id: DecisionId, now_s: float, *, blame: WorkerId | None = None) -> None:
        """End a decision of which the client has seen nothing."""
        turn = self._turn_of(decision_id)
        self._core.abort(decision_id, now_s, blame=blame)
        self._ended(turn)

    def observe(self, event: Event) -> None:
        """Take note of a fact."""
        turn = self._turn_of(event.decision_id) if isinstance(event, Finished) else None
        self._core.observe(event)
        self._ended(turn)
        if self._router.conversations.responses.new:
            self._tell_of_responses(event.at_s, None if turn is None else turn.conversation)

    def tick(self, now_s: float) -> None:
        """Let time pass."""
        self._core.tick(now_s)
        presumed_over = self._router.conversations.book.presumed_over
        while presumed_over:
            idle = presumed_over.popleft()
            if idle.is_cold:
                # Its pin stands, for it may come back; its room is free.
                self._shared.touch(key_of(idle), replace(pin_of(idle), kv_tokens=LEAST_TOKENS))

    def _began(self, decision: Decision) -> None:
        turn = self._turn_of(decision.decision_id)
        if turn is None:
            return
        pin = pin_of(turn.conversation)
        self._shared.touch(turn.key, pin)
        if turn.left != turn.key:
            # Its next turn may come elsewhere before the others have heard that this one is answered.
            self._shared.touch(turn.left, replace(pin, kv_tokens=LEAST_TOKENS))
        given_up = self._router.conversations.book.given_up
        while given_up:
            idle = given_up.popleft()
            # Where another replica has gone on with it since, it stands, and this one hears so.
            self._shared.close(key_of(idle), seen_s=idle.last_seen_s)

    def _turn_of(self, decision_id: DecisionId) -> _Turn | None:
        """What a decision is a turn of, as it is now."""
        reservation = self._router.ledger.get(decision_id)
        if reservation is None or reservation.conversation is None or reservation.facts.conversation is None:
            return None
        key = key_of(reservation.conversation)
        left = key_left(reservation.facts.conversation) or key
        return _Turn(conversation=reservation.conversation, key=key, left=left)

    def _ended(self, turn: _Turn | None) -> None:
        if turn is None:
            return
        conversation = turn.conversation
        known = self._router.conversations.book.get(conversation.conversation_id)
        if known is not None and known is not conversation:
            return  # a later one has taken over its name
        key_now = None if known is None else key_of(known)
        if turn.key != key_now:
            self._shared.close(turn.key)
        if turn.left not in (turn.key, key_now) and not conversation.under_way:
            self._shared.close(turn.left)
        if key_now is not None and not conversation.is_cold:
            self._shared.touch(key_now, pin_of(conversation))

    def _tell_of_responses(self, now_s: float, conversation: Conversation | None) -> None:
        """Of those that were made in a turn that has ended, of this conversation where a book is kept of it."""
        homes, book = self._router.conversations.responses, self._router.conversations.book
        known = None if conversation is None else book.get(conversation.conversation_id)
        while homes.new:
            end = homes.new.popleft()
            worker_id = homes.home(end)
            if worker_id is None:
                continue  # forgotten already
            pin = Pin(worker_id=worker_id, kv_tokens=0, turns=0, last_seen_s=now_s)
            if known is not None and known is conversation:
                pin = replace(pin, kv_tokens=known.kv_tokens, turns=known.turns, part_of=key_of(known))
            self._shared.made(end, pin)
