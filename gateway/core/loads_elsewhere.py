"""What the other replicas of a gateway have in flight at each worker.

The rule of this module: figures come from the ledgers of those that sent the requests, so they add up with one's own
and count nothing twice. They have a time up to which they are believed; from then on nothing is known of others.
"""

import math
from collections.abc import Iterable, Iterator

from gateway.core.events import LoadsElsewhere, WorkerLoad
from gateway.core.ledger import Ledger, Tally
from gateway.core.types import WorkerId

_NONE = Tally()


class OtherLoads:
    """Sums over all other replicas, by worker."""

    def __init__(self) -> None:
        self._tallies: dict[WorkerId, Tally] = {}
        self._until_s = -math.inf

    def told(self, event: LoadsElsewhere) -> Iterable[WorkerId]:
        """Take note of what has changed.

        Returns:
            The workers whose sums are others now.
        """
        touched = [load.worker_id for load in event.loads]
        if event.is_whole:
            touched += self._tallies
            self._tallies = {}
        for load in event.loads:
            if load.requests or load.prefill_tokens or load.kv_tokens:
                self._tallies[load.worker_id] = Tally(*load[1:])
            else:
                self._tallies.pop(load.worker_id, None)
        self._until_s = event.until_s
        return touched

    def forget(self, worker_id: WorkerId) -> None:
        """The worker left; what others still have there says nothing of one that comes back by its name."""
        self._tallies.pop(worker_id, None)

    def is_believed(self, now_s: float) -> bool:
        """Whether somebody has told of late."""
        return now_s <= self._until_s

    def tally(self, worker_id: WorkerId) -> Tally:
        """The others' sums at one worker, as last told (a live object: read it, never change it)."""
        return self._tallies.get(worker_id, _NONE)

    def prefill_tokens(self, worker_id: WorkerId, now_s: float) -> int:
        """Prompt tokens of others that wait there or are computed; 0 where nobody has told of late."""
        return self.tally(worker_id).prefill_tokens if self.is_believed(now_s) else 0


def loads_of(ledger: Ledger) -> Iterator[WorkerLoad]:
    """What one replica has in flight, of each worker where it has anything."""
    for worker_id, tally in ledger.tallies():
        yield WorkerLoad(
            worker_id,
            tally.requests,
            tally.prefill_tokens,
            tally.kv_tokens,
            tally.awaited_requests,
            tally.awaited_kv_tokens,
        )
