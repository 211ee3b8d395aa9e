"""Where conversations live, and how much KV they hold there.

The rule of this module: a conversation has at most one home; a home's tokens are exactly the sum over the conversations
that are warm there. What is forgotten costs a prefill, never a request.
"""

from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gateway.core.conversation.elsewhere import Elsewhere
from gateway.core.conversation.identity import ConversationId, Identity
from gateway.core.conversation.pauses import Pauses
from gateway.core.types import WorkerId

MAX_TIPS = 4
"""Ends of its history by which a conversation is found again; a fork may go on from an older one."""
MAX_GIVEN_UP = 1000


@dataclass(slots=True, kw_only=True, eq=False)
class Conversation:
    """One conversation, as far as a router has to know it."""

    conversation_id: ConversationId
    label_key: int | None = None
    """See `Identity`."""
    worker_id: WorkerId
    """The decode worker that holds its KV, or held it last."""
    kv_tokens: int
    """Held, or promised before the first turn has ended; 0 where it shall only begin there."""
    last_seen_s: float
    """When there was last anything about it, a turn or news of another replica."""
    paused_since_s: float | None = None
    """When a turn of it was last under way, at whichever replica; None where nobody knows."""
    is_cold: bool = False
    """Its KV is gone, or given up: the next turn begins anew."""
    is_promised: bool = False
    """New ones wait for the room that it holds; a pin alone keeps nobody waiting."""
    under_way: int = 0
    """Turns that have not ended."""
    turns: int = 0
    transfers: int = 0
    rehomes: int = 0
    tips: list[int] = field(default_factory=list)
    end: int | None = None
    """Of the history that was answered last, for one without a name; see `shared_key`."""


@dataclass(slots=True)
class _Home:
    """The warm conversations of one decode worker, from the one seen longest ago."""

    tokens: int = 0
    members: OrderedDict[ConversationId, Conversation] = field(default_factory=OrderedDict)


_EMPTY = _Home()


class ConversationBook:
    """All conversations that are remembered.

    Args:
        capacity: how many; a new one drives out the one that was seen longest ago and is idle.

    Attributes:
        elsewhere: what other replicas hold.
        given_up: those whose KV was given up for others since somebody emptied this; nobody need, so it has a bound.
        presumed_over: likewise, those that pause for longer than others do.
        pauses: how long that is.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.elsewhere = Elsewhere()
        self.given_up: deque[Conversation] = deque(maxlen=MAX_GIVEN_UP)
        self.presumed_over: deque[Conversation] = deque(maxlen=MAX_GIVEN_UP)
        self.pauses = Pauses()
        self._all: OrderedDict[ConversationId, Conversation] = OrderedDict()
        """From the one seen longest ago."""
        self._homes: dict[WorkerId, _Home] = {}
        self._tips: dict[int, ConversationId] = {}
        self._labels: dict[int, ConversationId] = {}

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Conversation]:
        return iter(self._all.values())

    @property
    def tips(self) -> Mapping[int, ConversationId]:
        """Ends of histories, to be read."""
        return self._tips

    @property
    def labels(self) -> Mapping[int, ConversationId]:
        """The latest conversation by the hash of its name, to be read."""
        return self._labels

    def knows(self, conversation_id: ConversationId) -> bool:
        """Whether it is remembered."""
        return conversation_id in self._all

    def get(self, conversation_id: ConversationId) -> Conversation | None:
        """A conversation, if it is remembered."""
        return self._all.get(conversation_id)

    @property
    def warm(self) -> int:
        """How many have a worker that holds their KV."""
        return sum(len(home.members) for home in self._homes.values())

    def held_tokens(self, worker_id: WorkerId) -> int:
        """KV that warm conversations hold on a worker, or were promised there."""
        return self._homes.get(worker_id, _EMPTY).tokens

    def booked_tokens(self, worker_id: WorkerId, now_s: float) -> int:
        """The same over all replicas, as far as this one was told of late."""
        return self.held_tokens(worker_id) + self.elsewhere.tokens(worker_id, now_s)

    def residents(self, worker_id: WorkerId) -> int:
        """Warm conversations on a worker."""
        return len(self._homes.get(worker_id, _EMPTY).members)

    def begin(self, identity: Identity, worker_id: WorkerId, kv_tokens: int, now_s: float) -> Conversation | None:
        """Give a conversation a home: it is new, or its old one is lost. None where there is no room for its name."""
        conversation_id = identity.conversation_id
        known = self._all.get(conversation_id)
        if known is not None and identity.is_first and identity.label_key is None:
            # Many a conversation begins with the same words: the later one takes over what they are known by.
            self.forget(known)
            known = None
        if known is None:
            known = self._enter(conversation_id, identity.label_key, worker_id, now_s)
            if known is None:
                return None
        elif known.turns or known.is_cold or known.kv_tokens:
            known.rehomes += 1
        self._put(known, worker_id, kv_tokens)
        return known

    def told(
        self,
        conversation_id: ConversationId,
        worker_id: WorkerId,
        now_s: float,
        *,
        label_key: int | None,
        end: int | None,
        kv_tokens: int,
        turns: int,
        paused_since_s: float | None = None,
    ) -> None:
        """Another replica has gone on with a conversation, known here or not: it lives there from now on.

        Args:
            conversation_id: which, as this replica has it.
            worker_id: where it lives.
            now_s: when this was told.
            label_key: the hash of its name; None where it has none.
            end: of its history, where it has no name.
            kv_tokens: what it holds there; 0 where it shall only begin there.
            turns: how many it has had, as far as was told.
            paused_since_s: when a turn of it was last under way; None where that was not told.
        """
        known = self._all.get(conversation_id) or self._enter(conversation_id, label_key, worker_id, now_s)
        if known is None:
            return
        self._put(known, worker_id, kv_tokens)
        self._see(known, kv_tokens, now_s)
        known.turns = max(known.turns, turns)
        if paused_since_s is not None:
            known.paused_since_s = max(paused_since_s, known.paused_since_s or paused_since_s)
        if end is not None:
            known.end = end
            self._remember(known, end)

    def found_by(self, conversation: Conversation, end: int) -> None:
        """Whoever goes on from this end of its history goes on with it."""
        self._remember(conversation, end)

    def resume(self, conversation: Conversation) -> None:
        """It goes on where it lived: what was given up there is there still."""
        if conversation.is_cold:
            conversation.is_cold = False
            self._settle(conversation)

    def turn_begins(self, conversation: Conversation, kv_tokens: int, now_s: float) -> None:
        """A turn is on its way, after which at least so much will be held."""
        conversation.under_way += 1
        conversation.paused_since_s = now_s
        self._see(conversation, max(kv_tokens, conversation.kv_tokens), now_s)

    def turn_ends(
        self, conversation: Conversation, now_s: float, *, kv_tokens: int | None, ends: Sequence[int] = ()
    ) -> None:
        """A turn is over.

        Args:
            conversation: whose.
            now_s: when.
            kv_tokens: what is held now; None where the turn failed and nobody knows.
            ends: of its history, see `ends_of`; none where the turn failed.
        """
        conversation.under_way -= 1
        conversation.paused_since_s = now_s
        if self._all.get(conversation.conversation_id) is not conversation:
            return
        if kv_tokens is not None:
            conversation.turns += 1
        self._see(conversation, conversation.kv_tokens if kv_tokens is None else kv_tokens, now_s)
        for end in ends:
            self._remember(conversation, end)

    def chill(self, conversation: Conversation) -> None:
        """Its KV is given up; it keeps its name."""
        if conversation.is_cold:
            return
        home = self._homes[conversation.worker_id]
        home.tokens -= conversation.kv_tokens
        del home.members[conversation.conversation_id]
        if not home.members:
            del self._homes[conversation.worker_id]
        conversation.is_cold = True

    def give_up(self, conversation: Conversation) -> None:
        """Its KV is given up for another one."""
        self.chill(conversation)
        self.given_up.append(conversation)

    def idle(self, worker_id: WorkerId, tokens: int, *, before_s: float) -> list[Conversation]:
        """Idle conversations of a worker that hold so many tokens together, the ones seen longest ago first; none of
        them was seen since `before_s`. Empty where there are not enough of them."""
        freed, found = 0, []
        for conversation in self._homes.get(worker_id, _EMPTY).members.values():
            if freed >= tokens or conversation.last_seen_s > before_s:
                break
            if not conversation.under_way:
                freed += conversation.kv_tokens
                found.append(conversation)
        return found if freed >= tokens else []

    def lose(self, worker_id: WorkerId) -> None:
        """A worker is gone, and all KV that was there."""
        for conversation in list(self._homes.get(worker_id, _EMPTY).members.values()):
            self.chill(conversation)

    def forget(self, conversation: Conversation) -> None:
        """The conversation has ended."""
        if self._all.get(conversation.conversation_id) is conversation:
            del self._all[conversation.conversation_id]
            self.chill(conversation)
            self._forget_names(conversation)

    def expire(self, before_s: float) -> None:
        """Forget those that are idle and were not seen since then."""
        while self._all:
            oldest = next(iter(self._all.values()))
            if oldest.last_seen_s > before_s or oldest.under_way:
                return
            self.forget(oldest)

    def _enter(
        self, conversation_id: ConversationId, label_key: int | None, worker_id: WorkerId, now_s: float
    ) -> Conversation | None:
        """Write down a new one, without any KV yet; None where there is no room for its name."""
        if not self._make_room():
            return None
        entered = self._all[conversation_id] = Conversation(
            conversation_id=conversation_id,
            label_key=label_key,
            worker_id=worker_id,
            kv_tokens=0,
            last_seen_s=now_s,
            is_cold=True,
        )
        if label_key is not None:
            self._labels[label_key] = conversation_id
        return entered

    def _put(self, conversation: Conversation, worker_id: WorkerId, kv_tokens: int) -> None:
        """Let it live on this worker, wherever it did."""
        self.chill(conversation)
        conversation.worker_id, conversation.kv_tokens, conversation.is_cold = worker_id, kv_tokens, False
        self._settle(conversation)

    def presume_over(self, before_s: float) -> None:
        """Give up the room of those that are idle and were not seen since then; they keep their names."""
        for home in list(self._homes.values()):
            for conversation in list(home.members.values()):
                if conversation.last_seen_s > before_s:
                    break
                if conversation.is_promised and not conversation.under_way:
                    self.chill(conversation)
                    self.presumed_over.append(conversation)

    def _make_room(self) -> bool:
        """Forget one where there is no room for another; False where all the oldest ones are under way."""
        if len(self._all) < self.capacity:
            return True
        for tried, conversation in enumerate(self._all.values()):
            if not conversation.under_way:
                self.forget(conversation)
                return True
            if tried >= MAX_TIPS:
                break
        return False

    def _see(self, conversation: Conversation, kv_tokens: int, now_s: float) -> None:
        conversation.last_seen_s = now_s
        self._all.move_to_end(conversation.conversation_id)
        if not conversation.is_cold:
            home = self._homes[conversation.worker_id]
            home.tokens += kv_tokens - conversation.kv_tokens
            home.members.move_to_end(conversation.conversation_id)
        conversation.kv_tokens = kv_tokens

    def _settle(self, conversation: Conversation) -> None:
        home = self._homes.setdefault(conversation.worker_id, _Home())
        home.tokens += conversation.kv_tokens
        home.members[conversation.conversation_id] = conversation

    def _remember(self, conversation: Conversation, tip: int) -> None:
        tips = conversation.tips
        if tip in tips:
            return
        tips.append(tip)
        self._tips[tip] = conversation.conversation_id
        if len(tips) > MAX_TIPS:
            self._drop_tip(conversation, tips.pop(0))

    def _forget_names(self, conversation: Conversation) -> None:
        key = conversation.label_key
        if key is not None and self._labels.get(key) == conversation.conversation_id:
            del self._labels[key]
        for tip in conversation.tips:
            self._drop_tip(conversation, tip)
        conversation.tips.clear()

    def _drop_tip(self, conversation: Conversation, tip: int) -> None:
        # Two conversations may have had the same beginning; the later one's stays.
        if self._tips.get(tip) == conversation.conversation_id:
            del self._tips[tip]
