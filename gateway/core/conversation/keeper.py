"""The book of conversations and of the responses in them, kept from what a router decides and hears.

The rule of this module: every turn that begins ends once. What is written down follows from decisions and outcomes
alone, so that a replay of them gives the same book.
"""

import math

from gateway.core.choosing import Ask
from gateway.core.conversation.book import Conversation, ConversationBook
from gateway.core.conversation.identity import ends_of, response_end, tip_of
from gateway.core.conversation.responses import ResponseHomes
from gateway.core.conversation.rules import ConversationRules, Mode
from gateway.core.conversation.turn import Turn, turn_of
from gateway.core.events import ConversationClosed, ConversationTold, KvPinned, ResponseTold
from gateway.core.fleet_state import FleetState
from gateway.core.ledger import Reservation
from gateway.core.types import Decision, Outcome, OutcomeKind, Path, RequestFacts, WorkerId


class ConversationKeeper:
    """Begins, goes on with and ends conversations.

    Attributes:
        book: where they live.
        responses: where the answers are that can be gone on from; kept in every mode.
    """

    def __init__(self, rules: ConversationRules, fleet: FleetState) -> None:
        self.book = ConversationBook(rules.capacity)
        self.responses = ResponseHomes(rules.capacity)
        self._rules = rules
        self._fleet = fleet

    def adopt(self, rules: ConversationRules) -> None:
        """Go by other rules from now on; homes stay."""
        self._rules = rules
        self.book.capacity = self.responses.capacity = rules.capacity

    def turn_of(self, facts: RequestFacts) -> Turn | None:
        """Of which conversation a request is a turn."""
        return turn_of(facts, self._rules, self.book)

    def kept_on(self, facts: RequestFacts) -> WorkerId | None:
        """The worker that keeps the response which a request goes on from; None where it is none, or not known."""
        said = facts.conversation
        if said is None or said.response_id is None:
            return None
        return self.response_home(said.response_id, said.tenant)

    def response_home(self, response_id: str, tenant: int) -> WorkerId | None:
        """The worker that keeps a response of a tenant, given by its hash; None where that is not known."""
        return self.responses.home(response_end(response_id, tenant))

    def lose(self, worker_id: WorkerId) -> None:
        """A worker is gone, and all that was there."""
        self.book.lose(worker_id)
        self.responses.lose(worker_id)

    def tick(self, now_s: float) -> None:
        """Give up conversations that are presumed to be over, and forget those that nobody went on with."""
        self.book.expire(now_s - self._rules.idle_ttl_s)
        if self._rules.presumes_over:
            self.book.presume_over(now_s - min(self._rules.tool_wait_s, self.book.pauses.usual_s()))

    def heard(self, event: ConversationTold | ConversationClosed | ResponseTold | KvPinned) -> None:
        """What other replicas know."""
        book = self.book
        match event:
            case ConversationTold():
                book.told(
                    event.conversation_id,
                    event.worker_id,
                    event.at_s,
                    label_key=event.label_key,
                    end=event.end,
                    kv_tokens=event.kv_tokens,
                    turns=event.turns,
                    paused_since_s=event.paused_since_s,
                )
            case ConversationClosed(conversation_id=conversation_id):
                known = book.get(conversation_id)
                # A turn that is under way here has gone on with it.
                if known is not None and not known.under_way:
                    book.forget(known)
            case ResponseTold():
                self._told_of_response(event)
            case KvPinned():
                book.elsewhere.told(dict(event.tokens), book.held_tokens, event.until_s)

    def turn_begins(self, ask: Ask, decision: Decision) -> Conversation | None:
        """Write down where its conversation lives from now on; None where no book is kept of it."""
        said, turn = ask.facts.conversation, ask.turn
        if said is not None and said.response_id is not None:
            self.responses.used(response_end(said.response_id, said.tenant))
        if turn is None or not turn.is_kept:
            return None
        conversation = turn.known
        if conversation is not None and conversation.paused_since_s is not None and not conversation.under_way:
            self.book.pauses.saw(ask.now_s - conversation.paused_since_s)
        if conversation is not None and turn.goes_on_at(decision.decode_worker, is_local=decision.path is Path.LOCAL):
            self.book.resume(conversation)
        else:
            conversation = self._settle(ask, turn, decision.decode_worker)
            if conversation is None:
                return None
        kv_tokens = ask.estimate.isl_tokens + math.ceil(ask.estimate.osl_tokens)
        self.book.turn_begins(conversation, kv_tokens, ask.now_s)
        conversation.is_promised = turn.mode is Mode.CONSERVE
        if conversation.is_promised:
            self._relieve(decision.decode_worker, ask.now_s)
        return conversation

    def turn_ended(self, reservation: Reservation, now_s: float, outcome: Outcome | None) -> None:
        """Write down what its conversation holds now; of a turn that was given up or went wrong nobody knows."""
        conversation, facts = reservation.conversation, reservation.facts.conversation
        if facts is None:
            return
        if outcome is not None and outcome.response_id is not None:
            self._answered(outcome.response_id, facts.tenant, reservation.decision.decode_worker)
        if conversation is None:
            return
        kv_tokens: int | None = None
        ends: tuple[int, ...] = ()
        if outcome is not None and outcome.kind is OutcomeKind.OK:
            kv_tokens = _held_tokens(reservation.decision, outcome)
            ends = ends_of(facts, outcome.response_id)
            if facts.response_id is None:
                conversation.end = tip_of(facts)
        self.book.turn_ends(conversation, now_s, kv_tokens=kv_tokens, ends=ends)
        is_over = facts.is_final and kv_tokens is not None
        if not conversation.under_way and (is_over or not conversation.turns):
            self.book.forget(conversation)

    def _answered(self, response_id: str, tenant: int, worker_id: WorkerId) -> None:
        # One that left while it answered has taken the answer with it.
        if worker_id in self._fleet:
            self.responses.made(response_end(response_id, tenant), worker_id)

    def _told_of_response(self, event: ResponseTold) -> None:
        if event.worker_id not in self._fleet:
            return
        self.responses.told(event.end, event.worker_id)
        known = None if event.conversation_id is None else self.book.get(event.conversation_id)
        if known is not None:
            self.book.found_by(known, event.end)

    def _relieve(self, worker_id: WorkerId, now_s: float) -> None:
        """Give up idle conversations where those of a worker have outgrown its KV cache: they go on elsewhere."""
        capacity = self._fleet[worker_id].kv_capacity_tokens
        if capacity is not None and (over := self.book.booked_tokens(worker_id, now_s) - capacity) > 0:
            self._give_up(worker_id, over, now_s)

    def _give_up(self, worker_id: WorkerId, tokens: int, now_s: float) -> None:
        protected_s = self._rules.protected_s(self.book.pauses.usual_s())
        for idle in self.book.idle(worker_id, tokens, before_s=now_s - protected_s):
            self.book.give_up(idle)

    def _settle(self, ask: Ask, turn: Turn, worker_id: WorkerId) -> Conversation | None:
        """Give it a home, and under ConServe the room that it is promised there."""
        isl_tokens = ask.estimate.isl_tokens
        if turn.mode is not Mode.CONSERVE:
            return self.book.begin(turn.identity, worker_id, isl_tokens, ask.now_s)
        promised = self._rules.promised_tokens(isl_tokens, is_new=turn.is_new)
        capacity = self._fleet[worker_id].kv_capacity_tokens
        missing = self._rules.missing_tokens(self.book.booked_tokens(worker_id, ask.now_s), promised, capacity)
        if missing > 0:
            self._give_up(worker_id, missing, ask.now_s)
        return self.book.begin(turn.identity, worker_id, promised, ask.now_s)


def _held_tokens(decision: Decision, outcome: Outcome) -> int:
    features = decision.features
    output_tokens = math.ceil(features.osl_tokens) if outcome.output_tokens is None else outcome.output_tokens
    return (outcome.input_tokens or features.isl_tokens) + output_tokens
