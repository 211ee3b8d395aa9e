"""Asking the other replicas where a conversation lives, before one of its turns is routed.

The rule of this module: a turn of a conversation that is at home here asks nobody, and so does one that nobody else can
know. Whoever asks waits no longer than the deadline and goes on whatever is said; what all have agreed on is told to
the core as an event, so that the route follows from it.
"""

from collections.abc import Awaitable, Callable

from gateway.core.conversation.book import Conversation
from gateway.core.conversation.facts import ConversationFacts
from gateway.core.conversation.identity import ConversationId, response_end
from gateway.core.conversation.rules import Mode
from gateway.core.conversation.shared_key import end_asked, key_asked, key_of, key_of_beginning
from gateway.core.conversation.turn import Turn
from gateway.core.events import ConversationTold, Event, ResponseTold
from gateway.core.hashing import rendezvous
from gateway.core.pools import Pools
from gateway.core.record import record
from gateway.core.router import Router
from gateway.core.types import Decision, RequestFacts, Role, WorkerId
from gateway.fleet.shared.hearing import known_by
from gateway.fleet.shared.pins import LEAST_TOKENS, Pin, SharedState


@record
class _Question:
    """What there is to ask."""

    turn: Turn
    key: ConversationId
    end: int | None
    """That the key was made of, where the conversation has no name."""
    lost: WorkerId | None
    """Its home, where that takes no requests any more."""


class Sharing:
    """Asks for the turns of one replica.

    Args:
        router: whose turns; it is only read.
        shared: who is asked.
        observe: tells the core.
        clock: seconds; the core's clock.
    """

    def __init__(
        self, router: Router, shared: SharedState, observe: Callable[[Event], None], *, clock: Callable[[], float]
    ) -> None:
        self._router = router
        self._shared = shared
        self._observe = observe
        self._clock = clock
        self._pools = Pools(router.fleet, router.health)

    def before(self, facts: RequestFacts) -> Awaitable[None] | None:
        """What to wait for before a request is submitted; None for most."""
        said = facts.conversation
        if said is not None and said.response_id is not None and self._router.conversations.kept_on(facts) is None:
            return self._find_and_ask(facts, said.response_id, said.tenant)
        question = self._question(facts)
        return None if question is None else self._ask(facts, question)

    async def find(self, response_id: str, tenant: int) -> None:
        """Ask the others which worker keeps a response that is not known here, and tell the core.

        Args:
            response_id: as the worker gave it.
            tenant: the hash of who asks.
        """
        end = response_end(response_id, tenant)
        found = await self._shared.find(end)
        if found is None or found.worker_id not in self._router.fleet:
            return
        conversation_id = None if found.part_of is None else self._conversation_of(found, found.part_of)
        self._observe(
            ResponseTold(at_s=self._clock(), end=end, worker_id=found.worker_id, conversation_id=conversation_id)
        )

    async def _find_and_ask(self, facts: RequestFacts, response_id: str, tenant: int) -> None:
        await self.find(response_id, tenant)
        question = self._question(facts)
        if question is not None:
            await self._ask(facts, question)

    def _conversation_of(self, found: Pin, key: ConversationId) -> ConversationId:
        """The conversation that a response belongs to; one that is not known here is so from now on."""
        known = known_by(self._router.conversations.book, key)
        if known is not None:
            return known.conversation_id
        self._observe(
            ConversationTold(
                at_s=self._clock(),
                conversation_id=key,
                label_key=None,
                end=None,
                worker_id=found.worker_id,
                kv_tokens=max(LEAST_TOKENS, found.kv_tokens),
                turns=found.turns,
                paused_since_s=found.last_seen_s,
            )
        )
        return key

    def _question(self, facts: RequestFacts) -> _Question | None:
        said, turn = facts.conversation, self._router.conversations.turn_of(facts)
        if said is None or turn is None or not turn.is_kept:
            return None
        known = turn.known
        if known is None:
            return self._about_unknown(said, turn)
        if _has_gone_on(said, turn, known):
            return _Question(turn=turn, key=key_asked(said, turn.identity), end=end_asked(said), lost=None)
        is_lost = known.worker_id not in self._takers(facts.model)
        if not is_lost and not known.is_cold:
            return None
        return _Question(turn=turn, key=key_of(known), end=known.end, lost=known.worker_id if is_lost else None)

    def _about_unknown(self, said: ConversationFacts, turn: Turn) -> _Question | None:
        identity = turn.identity
        if identity.label_key is not None:
            return _Question(turn=turn, key=identity.conversation_id, end=None, lost=None)
        if identity.is_first or said.response_id is not None:
            return None
        return _Question(turn=turn, key=key_asked(said, identity), end=end_asked(said), lost=None)

    def _takers(self, model: str) -> frozenset[WorkerId]:
        return self._pools.all_routable(model, Role.DECODE).among

    async def _ask(self, facts: RequestFacts, question: _Question) -> None:
        now_s = self._clock()
        proposal = self._router.preview(facts, now_s)
        if not isinstance(proposal, Decision):
            return
        offered = Pin(
            worker_id=proposal.decode_worker,
            kv_tokens=self._promised(question.turn, proposal),
            turns=0,
            last_seen_s=now_s,
        )
        standing = await self._standing(facts.model, question, offered)
        again = self._question(facts)
        if again is None or again.key != question.key:
            return  # another turn of it has begun here meanwhile
        if standing is None:
            self._go_alone(facts, again)
        elif standing is offered:
            self._begin(facts, again, standing.worker_id)
        else:
            tokens = max(LEAST_TOKENS, standing.kv_tokens)
            self._tell(again, standing.worker_id, tokens, standing.turns, paused_since_s=standing.last_seen_s)

    async def _standing(self, model: str, question: _Question, offered: Pin) -> Pin | None:
        """The pin that stands for all replicas, the very one that is offered where it does; None where nobody knows."""
        if question.lost is not None:
            standing = await self._move(question.key, question.lost, offered)
        else:
            claim = await self._shared.claim(question.key, offered)
            standing = None if claim is None else offered if claim.is_new else claim.pin
        if standing is None or standing is offered or standing.worker_id in self._takers(model):
            return standing
        return await self._move(question.key, standing.worker_id, offered)

    async def _move(self, key: ConversationId, lost: WorkerId, offered: Pin) -> Pin | None:
        standing = await self._shared.move(key, lost, offered)
        return offered if standing == offered else standing

    def _promised(self, turn: Turn, proposal: Decision) -> int:
        isl_tokens = proposal.features.isl_tokens
        if turn.mode is Mode.CONSERVE:
            return self._router.policy.conversation.promised_tokens(isl_tokens, is_new=turn.is_new)
        return isl_tokens

    def _begin(self, facts: RequestFacts, question: _Question, worker_id: WorkerId) -> None:
        """It is this replica's to begin it, and nowhere else than it has said, unless it goes on there."""
        turn, known = question.turn, question.turn.known
        if known is not None and turn.lives_on(worker_id):
            self._tell(question, worker_id, known.kv_tokens, known.turns)
        elif turn.mode is Mode.CONSERVE and self._router.would_wait(facts, self._clock()):
            # Who knows where there will be room? Once it is routed the others are told.
            self._shared.close(question.key)
        else:
            self._tell(question, worker_id, 0, 0)

    def _go_alone(self, facts: RequestFacts, question: _Question) -> None:
        """Nobody can be asked: a later turn goes where all replicas send it that do not know it either."""
        turn, said = question.turn, facts.conversation
        if said is None or turn.known is not None or turn.identity.is_first:
            return
        beginning = key_of_beginning(said, turn.identity)
        worker_id = rendezvous(f"{beginning:016x}", sorted(self._takers(facts.model)))
        if worker_id is not None:
            self._tell(question, worker_id, 0, 0)

    def _tell(
        self,
        question: _Question,
        worker_id: WorkerId,
        kv_tokens: int,
        turns: int,
        *,
        paused_since_s: float | None = None,
    ) -> None:
        identity, known = question.turn.identity, question.turn.known
        left = None if known is None else key_of(known)
        self._observe(
            ConversationTold(
                at_s=self._clock(),
                conversation_id=identity.conversation_id,
                label_key=identity.label_key,
                end=question.end,
                worker_id=worker_id,
                kv_tokens=kv_tokens,
                turns=turns,
                paused_since_s=paused_since_s,
            )
        )
        if left is not None and left != question.key:
            self._shared.close(left)


def _has_gone_on(said: ConversationFacts, turn: Turn, known: Conversation) -> bool:
    """Whether the history of a conversation without a name has an end that is not known here."""
    if turn.identity.label_key is not None or known.label_key is not None or said.response_id is not None:
        return False
    newest = said.turns[-1] ^ said.tenant
    is_known_end = end_asked(said) in known.tips or newest in known.tips
    return not is_known_end and key_asked(said, turn.identity) != known.conversation_id
