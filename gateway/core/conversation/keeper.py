"""The book of conversations, kept from what a router decides and hears.

The rule of this module: every turn that begins ends once. What is written down follows from decisions and outcomes
alone, so that a replay of them gives the same book.
"""

import math

from gateway.core.choosing import Ask
from gateway.core.conversation.book import Conversation, ConversationBook
from gateway.core.conversation.identity import tip_of
from gateway.core.conversation.rules import ConversationRules, Mode
from gateway.core.conversation.turn import Turn, turn_of
from gateway.core.fleet_state import FleetState
from gateway.core.ledger import Reservation
from gateway.core.types import Decision, Outcome, OutcomeKind, RequestFacts, WorkerId


class ConversationKeeper:
    """Begins, goes on with and ends conversations.

    Attributes:
        book: where they live.
    """

    def __init__(self, rules: ConversationRules, fleet: FleetState) -> None:
        self.book = ConversationBook(rules.capacity)
        self._rules = rules
        self._fleet = fleet

    def adopt(self, rules: ConversationRules) -> None:
        """Go by other rules from now on; homes stay."""
        self._rules = rules
        self.book.capacity = rules.capacity

    def turn_of(self, facts: RequestFacts) -> Turn | None:
        """Of which conversation a request is a turn."""
        return turn_of(facts, self._rules, self.book)

    def tick(self, now_s: float) -> None:
        """Forget conversations that nobody went on with."""
        self.book.expire(now_s - self._rules.idle_ttl_s)

    def turn_begins(self, ask: Ask, decision: Decision) -> Conversation | None:
        """Write down where its conversation lives from now on; None where no book is kept of it."""
        turn = ask.turn
        if turn is None or not turn.is_kept:
            return None
        conversation = turn.known if turn.lives_on(decision.decode_worker) else None
        if conversation is None:
            conversation = self._settle(ask, turn, decision.decode_worker)
            if conversation is None:
                return None
        kv_tokens = ask.estimate.isl_tokens + math.ceil(ask.estimate.osl_tokens)
        self.book.turn_begins(conversation, kv_tokens, ask.now_s)
        return conversation

    def turn_ended(self, reservation: Reservation, now_s: float, outcome: Outcome | None) -> None:
        """Write down what its conversation holds now; of a turn that was given up or went wrong nobody knows."""
        conversation, facts = reservation.conversation, reservation.facts.conversation
        if conversation is None or facts is None:
            return
        kv_tokens = tip = None
        if outcome is not None and outcome.kind is OutcomeKind.OK:
            kv_tokens = _held_tokens(reservation.decision, outcome)
            tip = tip_of(facts)
        self.book.turn_ends(conversation, now_s, kv_tokens=kv_tokens, tip=tip)
        is_over = facts.is_final and kv_tokens is not None
        if not conversation.under_way and (is_over or not conversation.turns):
            self.book.forget(conversation)

    def _settle(self, ask: Ask, turn: Turn, worker_id: WorkerId) -> Conversation | None:
        """Give it a home, and under ConServe the room that it is promised there."""
        isl_tokens = ask.estimate.isl_tokens
        if turn.mode is not Mode.CONSERVE:
            return self.book.begin(turn.identity, worker_id, isl_tokens, ask.now_s)
        promised = self._rules.promised_tokens(isl_tokens)
        capacity = self._fleet[worker_id].kv_capacity_tokens
        missing = self._rules.missing_tokens(self.book.held_tokens(worker_id), promised, capacity)
        if missing > 0:
            for idle in self.book.idle(worker_id, missing, before_s=ask.now_s - self._rules.tool_wait_s):
                self.book.chill(idle)
        return self.book.begin(turn.identity, worker_id, promised, ask.now_s)


def _held_tokens(decision: Decision, outcome: Outcome) -> int:
    features = decision.features
    output_tokens = math.ceil(features.osl_tokens) if outcome.output_tokens is None else outcome.output_tokens
    return (outcome.input_tokens or features.isl_tokens) + output_tokens
