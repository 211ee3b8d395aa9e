"""Under which key the replicas of a gateway share a conversation.

The rule of this module: a key follows from what every replica reads of a request, and a conversation has one key at a
time. One with a name keeps its own. One without is known by where its history ends, so its key changes with every turn
that is answered; the key that is asked for is the id that a replica gives it which knows nothing of it.
"""

from gateway.core.conversation.book import Conversation
from gateway.core.conversation.facts import ConversationFacts
from gateway.core.conversation.identity import ConversationId, Identity, tip_of
from gateway.core.hashing import mix64, unmix64


def key_asked(facts: ConversationFacts, identity: Identity) -> ConversationId:
    """The key of the conversation that a request goes on with, as whoever answered its last turn has left it.

    Args:
        facts: the request's; with turns, where it has no name.
        identity: which conversation it is a turn of, at this replica.
    """
    return identity.conversation_id if identity.label_key is not None else ConversationId(mix64(end_asked(facts)))


def end_asked(facts: ConversationFacts) -> int:
    """The end of the history that a request with turns goes on from; of a first turn, all that it says."""
    turns = facts.turns
    return facts.tenant ^ (turns[0] if len(turns) == 1 else turns[-2])


def key_left(facts: ConversationFacts) -> ConversationId | None:
    """The key that the next turn asks for once this one is answered; None where that is the conversation's own."""
    end = tip_of(facts) if facts.response_id is None else None
    return None if end is None else ConversationId(mix64(end))


def key_of(conversation: Conversation) -> ConversationId:
    """The key of a conversation as it is now: after a turn without a name, the one that the next turn asks for."""
    end = conversation.end
    if conversation.label_key is not None or end is None:
        return conversation.conversation_id
    return ConversationId(mix64(end))


def end_of(key: ConversationId) -> int:
    """The end of the history that the key of a conversation without a name was made of."""
    return unmix64(key)


def key_of_beginning(facts: ConversationFacts, identity: Identity) -> ConversationId:
    """What is the same over all turns of a conversation and at every replica, for a choice that nobody remembers."""
    if identity.label_key is not None:
        return identity.conversation_id
    return ConversationId(mix64(facts.tenant ^ facts.turns[0]))
