"""What waits to be told to the others.

The rule of this module: one entry per conversation, its newest state. What this replica changes has a bound and goes
first; what is sent anew after an outage is bounded by what the replica knows.
"""

from collections.abc import Iterable, Mapping
from itertools import islice

from gateway.core.conversation.identity import ConversationId
from gateway.fleet.shared.codec import Op, Step, step_of
from gateway.fleet.shared.pins import Pin


class Outbox:
    """Steps by conversation, oldest first.

    Args:
        max_queued: how many changes wait at most.
    """

    def __init__(self, max_queued: int) -> None:
        self.dropped = 0
        """Changes that a full queue lost: always the one that had waited longest."""
        self._max_queued = max_queued
        self._changes: dict[ConversationId, Step] = {}
        self._backlog: dict[ConversationId, Step] = {}

    def __len__(self) -> int:
        return len(self._changes) + len(self._backlog)

    def __contains__(self, conversation: ConversationId) -> bool:
        """Whether a change of this conversation waits."""
        return conversation in self._changes

    def put(self, conversation: ConversationId, pin: Pin) -> None:
        """A conversation's newest state."""
        self._add(step_of(Op.PUT, conversation, pin))

    def close(self, conversation: ConversationId, seen_s: float) -> None:
        """A conversation has ended that was seen then."""
        self._add(Step(op=Op.CLOSE, conversation=conversation, seen_s=seen_s))

    def made(self, end: int, pin: Pin) -> None:
        """A response that a worker keeps."""
        self._add(step_of(Op.MADE, ConversationId(end), pin))

    def reopen(self, conversation: ConversationId) -> None:
        """A conversation goes on: forget that it should be closed."""
        step = self._changes.get(conversation)
        if step is not None and step.op is Op.CLOSE:
            del self._changes[conversation]

    def refill(self, snapshot: Mapping[ConversationId, Pin]) -> None:
        """Send everything that this replica knows once more; what waits already is at least as new."""
        self._backlog = {
            conversation: step_of(Op.PUT, conversation, pin)
            for conversation, pin in snapshot.items()
            if conversation not in self._changes
        }

    def take(self, count: int) -> list[Step]:
        """The next steps to send, no more than `count`; they are the caller's from now on."""
        taken = _take(self._changes, count)
        return taken + _take(self._backlog, count - len(taken))

    def put_back(self, steps: Iterable[Step]) -> None:
        """Take back what does not come again with the snapshot of steps that were lost."""
        for step in steps:
            if step.op in (Op.CLOSE, Op.MADE) and step.conversation not in self._changes:
                self._add(step)

    def _add(self, step: Step) -> None:
        self._backlog.pop(step.conversation, None)
        if step.conversation not in self._changes and len(self._changes) >= self._max_queued:
            del self._changes[next(iter(self._changes))]
            self.dropped += 1
        self._changes[step.conversation] = step


def _take(steps: dict[ConversationId, Step], count: int) -> list[Step]:
    return [steps.pop(conversation) for conversation in list(islice(steps, max(0, count)))]
