"""What a replica tells the shared state of itself, and makes of what it hears from the others.

The rule of this module: the book is read, and changed by events alone. News of conversations that are not known here
are no news.
"""

from collections.abc import Callable, Mapping

from gateway.core.conversation.book import Conversation, ConversationBook
from gateway.core.conversation.identity import ConversationId
from gateway.core.conversation.rules import ConversationRules, Mode
from gateway.core.conversation.shared_key import end_of, key_of
from gateway.core.events import ConversationClosed, ConversationTold, Event, KvPinned
from gateway.core.router import Router
from gateway.core.types import WorkerId
from gateway.fleet.shared.pins import LEAST_TOKENS, Pin

BELIEVED_REFRESHES = 5
"""So many of them may be missing before the last occupancy is believed no longer."""


class Hearing:
    """The listeners of `SharedPins`.

    Args:
        router: of this replica; it is only read.
        observe: tells the core.
        clock: seconds; the core's clock.
        refresh_s: between two reads of the occupancy.
    """

    def __init__(
        self, router: Router, observe: Callable[[Event], None], *, clock: Callable[[], float], refresh_s: float
    ) -> None:
        self._router = router
        self._observe = observe
        self._clock = clock
        self._believed_s = BELIEVED_REFRESHES * refresh_s

    def snapshot(self) -> Mapping[ConversationId, Pin]:
        """Every conversation that has a home."""
        book = self._router.conversations.book
        return {key_of(known): pin_of(known) for known in book if not known.is_cold}

    def moved(self, key: ConversationId, pin: Pin | None) -> None:
        """Another replica has moved a conversation, or has closed its key."""
        known = known_by(self._router.conversations.book, key)
        if known is None:
            return
        now_s = self._clock()
        if pin is None:
            self._observe(ConversationClosed(at_s=now_s, conversation_id=known.conversation_id))
        elif known.is_cold or known.worker_id != pin.worker_id:
            self._observe(
                ConversationTold(
                    at_s=now_s,
                    conversation_id=known.conversation_id,
                    label_key=known.label_key,
                    end=known.end,
                    worker_id=pin.worker_id,
                    kv_tokens=max(LEAST_TOKENS, pin.kv_tokens),
                    turns=pin.turns,
                    paused_since_s=pin.last_seen_s,
                )
            )

    def occupancy(self, tokens: Mapping[WorkerId, int]) -> None:
        """What is pinned at each worker over all replicas; the core is told where it admits by it."""
        if _admits(self._router.policy.conversation):
            now_s = self._clock()
            pinned = tuple(sorted(tokens.items()))
            self._observe(KvPinned(at_s=now_s, until_s=now_s + self._believed_s, tokens=pinned))


def known_by(book: ConversationBook, key: ConversationId) -> Conversation | None:
    """The conversation that has this key now; None where none that is known here has."""
    found = book.get(key)
    if found is None and (own := book.tips.get(end_of(key))) is not None:
        found = book.get(own)
    return found if found is not None and key_of(found) == key else None


def pin_of(conversation: Conversation) -> Pin:
    """What the others may know of a conversation."""
    return Pin(
        worker_id=conversation.worker_id,
        kv_tokens=conversation.kv_tokens,
        turns=conversation.turns,
        last_seen_s=conversation.last_seen_s,
    )


def _admits(rules: ConversationRules) -> bool:
    return Mode.CONSERVE in (rules.mode, *(mode for _, mode in rules.by_model))
