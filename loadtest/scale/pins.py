"""Where conversations live, as replicas would find it in Redis.

The rule of this module: what a replica writes the others find some time later, and they ask when a turn arrives.
"""

from dataclasses import dataclass

from gateway.core.conversation.identity import ConversationId
from gateway.core.events import ConversationTold
from gateway.core.router import Router
from gateway.core.types import WorkerId
from loadtest.simulator.flight import Flight


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A conversation as a replica left it."""

    known_from_s: float
    conversation_id: ConversationId
    worker_id: WorkerId
    label_key: int | None
    kv_tokens: int
    turns: int


class SharedPins:
    """All pins, by session.

    Args:
        after_s: from a change until the others find it.
    """

    def __init__(self, after_s: float) -> None:
        self._after_s = after_s
        self._pins: dict[str, list[Pin]] = {}

    def note(self, router: Router, flight: Flight, now_s: float) -> None:
        """A replica has placed a turn, or has seen it end."""
        session, decision = flight.request.session, flight.decision
        if session is None or decision is None or decision.conversation is None:
            return
        known = router.conversations.book.get(ConversationId(int(decision.conversation, 16)))
        if known is None or known.is_cold:
            return
        pin = Pin(
            known_from_s=now_s + self._after_s,
            conversation_id=known.conversation_id,
            worker_id=known.worker_id,
            label_key=known.label_key,
            kv_tokens=known.kv_tokens,
            turns=known.turns,
        )
        self._pins.setdefault(session, []).append(pin)

    def tell(self, router: Router, flight: Flight, now_s: float) -> None:
        """A turn has arrived at a replica, which finds what the others have written."""
        session = flight.request.session
        noted = self._pins.get(session, []) if session is not None else []
        ripe = [pin for pin in noted if pin.known_from_s <= now_s]
        if not ripe or session is None:
            return
        pin = ripe[-1]
        self._pins[session] = [pin, *noted[len(ripe) :]]
        known = router.conversations.book.get(pin.conversation_id)
        if known is None or (not known.under_way and known.turns < pin.turns):
            router.observe(
                ConversationTold(
                    at_s=now_s,
                    conversation_id=pin.conversation_id,
                    worker_id=pin.worker_id,
                    label_key=pin.label_key,
                    end=None,
                    kv_tokens=pin.kv_tokens,
                    turns=pin.turns,
                )
            )
