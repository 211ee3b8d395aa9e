"""Which worker keeps which response, so that who goes on from one gets to its history.

The rule of this module: bounded, and no guesses. It knows where a response was made and nothing of what it holds; it
is kept whatever conversations are held by, for the history of a kept response is nowhere else.
"""

from collections import OrderedDict, deque

from gateway.core.types import WorkerId

MAX_NEW = 1000


class ResponseHomes:
    """The workers of the responses that were made or gone on from last.

    Args:
        capacity: how many are remembered.

    Attributes:
        new: those that were made here since somebody emptied this, to tell other replicas; nobody need, so it has a
            bound.
    """

    def __init__(self, capacity: int) -> None:
        self.new: deque[int] = deque(maxlen=MAX_NEW)
        self._capacity = capacity
        self._homes: OrderedDict[int, WorkerId] = OrderedDict()
        """By `identity.response_end`, from the one used longest ago."""
        self._kept: dict[WorkerId, set[int]] = {}

    def __len__(self) -> int:
        return len(self._homes)

    @property
    def capacity(self) -> int:
        """How many are remembered; beyond it the ones used longest ago are forgotten."""
        return self._capacity

    @capacity.setter
    def capacity(self, capacity: int) -> None:
        self._capacity = capacity
        self._shrink()

    def home(self, end: int) -> WorkerId | None:
        """The worker that keeps the response of this `response_end`; reading changes nothing."""
        return self._homes.get(end)

    def made(self, end: int, worker_id: WorkerId) -> None:
        """A worker keeps a response from now on."""
        self.told(end, worker_id)
        self.new.append(end)

    def told(self, end: int, worker_id: WorkerId) -> None:
        """A worker keeps a response that another replica has seen it make."""
        self._drop(end)
        self._homes[end] = worker_id
        self._kept.setdefault(worker_id, set()).add(end)
        self._shrink()

    def used(self, end: int) -> None:
        """Somebody goes on from it: it is remembered longer."""
        if end in self._homes:
            self._homes.move_to_end(end)

    def lose(self, worker_id: WorkerId) -> None:
        """A worker is gone, and all responses with it."""
        for end in self._kept.pop(worker_id, ()):
            del self._homes[end]

    def _shrink(self) -> None:
        while len(self._homes) > self._capacity:
            self._drop(next(iter(self._homes)))

    def _drop(self, end: int) -> None:
        worker_id = self._homes.pop(end, None)
        if worker_id is not None:
            kept = self._kept[worker_id]
            kept.remove(end)
            if not kept:
                del self._kept[worker_id]
