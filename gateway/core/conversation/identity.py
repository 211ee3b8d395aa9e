"""Which conversation a request is a turn of.

The rule of this module: history decides, a label only tells apart what has the same history. A response of the model
that a request goes on from is history that the worker keeps, and the request belongs to its conversation. So a
sub-agent under its caller's label is a conversation of its own, a fork belongs to what it forked from, and a client
that just sends its history again is recognised by it. Only where a history is new in the middle of a conversation with
a label, as after its client has summed it up, does the label decide.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import NewType, Protocol

from gateway.core.conversation.facts import ConversationFacts
from gateway.core.hashing import hash64, mix64
from gateway.core.record import record

ConversationId = NewType("ConversationId", int)
"""64 bits, the same at every replica for equal labels and beginnings."""

_label_hash = lru_cache(maxsize=4096)(hash64)


@record
class Identity:
    """A request's place among conversations."""

    conversation_id: ConversationId
    label_key: int | None
    """A hash of the client's own name for it; None where it goes by its history alone."""
    is_first: bool
    """It holds no answer of the model, and goes on from none."""


class Known(Protocol):
    """What is remembered of conversations."""

    @property
    def tips(self) -> Mapping[int, ConversationId]:
        """Ends of histories; see `ends_of`."""

    @property
    def labels(self) -> Mapping[int, ConversationId]:
        """The latest conversation by the hash of its name."""

    def knows(self, conversation_id: ConversationId) -> bool:
        """Whether it is remembered."""


def identify(facts: ConversationFacts, known: Known) -> Identity | None:
    """The conversation, known or new; None for a request that says nothing of one."""
    turns = facts.turns
    is_first = len(turns) <= 1 and facts.response_id is None
    key = None if facts.label is None else mix64(_label_hash(facts.label) ^ facts.tenant)
    if facts.response_id is not None and (turns or key is not None):
        answered = known.tips.get(response_end(facts.response_id, facts.tenant))
        if answered is not None:
            return Identity(answered, key, is_first=False)
    if key is None:
        return _by_history(facts, known.tips, is_first=is_first) if turns else None
    own = ConversationId(mix64(key ^ (turns[0] if turns else 0)))
    if not is_first and not known.knows(own):
        own = known.labels.get(key, own)
    return Identity(own, key, is_first)


def tip_of(facts: ConversationFacts) -> int | None:
    """The end of its history, by which a conversation without a name is found again by its own tenant."""
    return facts.turns[-1] ^ facts.tenant if facts.label is None and facts.turns else None


def response_end(response_id: str, tenant: int) -> int:
    """A kept response as an end of its conversation's history: 64 bits, the same at every replica.

    Args:
        response_id: as the worker gave it.
        tenant: a hash of who asked for it; another tenant's end of the same id is another one.
    """
    return mix64(hash64(response_id) ^ mix64(tenant))


def ends_of(facts: ConversationFacts, response_id: str | None) -> tuple[int, ...]:
    """By what the conversation is found again after a turn that ended well.

    Args:
        facts: the turn's.
        response_id: its answer's, where the worker keeps it.
    """
    # What goes on from a response is only the end of a history, which nobody sends again.
    tip = tip_of(facts) if facts.response_id is None else None
    own = None if response_id is None else response_end(response_id, facts.tenant)
    return tuple(end for end in (tip, own) if end is not None)


def _by_history(facts: ConversationFacts, tips: Mapping[int, ConversationId], *, is_first: bool) -> Identity:
    turns = facts.turns
    if not is_first:
        # The longest known history; its own end too, for an answer may be asked for again.
        for turn in reversed(turns):
            known = tips.get(turn ^ facts.tenant)
            if known is not None:
                return Identity(known, None, is_first=False)
    own = turns[0] if len(turns) == 1 else turns[-2]
    return Identity(ConversationId(mix64(facts.tenant ^ own)), None, is_first)
