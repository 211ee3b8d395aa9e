"""Requests that wait for room.

The rule of this module: first come, first served, for each model by itself; whoever gives up is passed over.
"""

from collections import deque
from collections.abc import Iterator
from typing import NewType

from gateway.core.record import record
from gateway.core.types import RequestFacts, RequestId

Ticket = NewType("Ticket", int)


@record
class Wait:
    """A request that is routed as soon as there is room for it; the ticket is what it will be called by."""

    request_id: RequestId
    ticket: Ticket
    words: str


@record
class Waiting:
    """One of them."""

    ticket: Ticket
    facts: RequestFacts
    since_s: float


class WaitingRoom:
    """All of them."""

    def __init__(self) -> None:
        self._queues: dict[str, deque[Waiting]] = {}
        self._open: set[Ticket] = set()
        self._tickets = 0

    def __len__(self) -> int:
        return len(self._open)

    def enter(self, facts: RequestFacts, now_s: float) -> Ticket:
        """The last one in its queue."""
        self._tickets += 1
        ticket = Ticket(self._tickets)
        queue = self._queues.setdefault(facts.model, deque())
        queue.append(Waiting(ticket=ticket, facts=facts, since_s=now_s))
        self._open.add(ticket)
        return ticket

    def give_up(self, ticket: Ticket) -> None:
        """It waits no more; nothing happens where it does not."""
        self._open.discard(ticket)

    def models(self) -> Iterator[str]:
        """Those that somebody waits for, in the order in which the first ones came."""
        yield from list(self._queues)

    def first(self, model: str) -> Waiting | None:
        """Whose turn it is."""
        queue = self._queues.get(model)
        while queue:
            if queue[0].ticket in self._open:
                return queue[0]
            queue.popleft()
        self._queues.pop(model, None)
        return None

    def leave(self, model: str) -> None:
        """The first one need not wait any longer."""
        self._open.discard(self._queues[model].popleft().ticket)
