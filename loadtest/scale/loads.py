"""What each gateway has in flight, as replicas would find it summed up in Redis.

The rule of this module: a replica tells what has changed since it told last, and is answered at once with the sums that
have changed, without its own part; it hears the answer a little later. Nothing here takes longer for workers of which
nothing has changed.
"""

from dataclasses import dataclass

from gateway.core.events import LoadsElsewhere, WorkerLoad
from gateway.core.ledger import Ledger
from gateway.core.loads_elsewhere import loads_of
from gateway.core.types import WorkerId

BELIEVED_INTERVALS = 10
"""So many answers may be missing before the last one is believed no longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """How replicas tell each other of their loads."""

    interval_s: float = 0.025
    """Between two times that a replica tells and asks."""
    way_s: float = 0.005
    """From that to when it hears the answer. What it then knows of others is `way_s` old and up to two intervals more:
    one until they have told, and one until it asks again."""


class SharedLoads:
    """The sums over all replicas.

    Args:
        plan: how often they are asked for.
        replicas: how many ask.
    """

    def __init__(self, plan: LoadPlan, replicas: int) -> None:
        self.plan = plan
        self._sums: dict[WorkerId, WorkerLoad] = {}
        self._told: list[dict[WorkerId, WorkerLoad]] = [{} for _ in range(replicas)]
        self._changed: list[WorkerId] = []
        """Of every change, in order; each replica has read up to a place in it."""
        self._dropped = 0
        """How many of them are gone, for all have read them."""
        self._read = [0] * replicas

    def exchange(self, replica: int, ledger: Ledger, now_s: float) -> LoadsElsewhere:
        """A replica tells what it has in flight, and is told of the others'."""
        self._take(replica, ledger)
        told = self._told[replica]
        fresh = dict.fromkeys(self._changed[self._read[replica] - self._dropped :])
        self._read[replica] = self._dropped + len(self._changed)
        self._trim()
        heard_s = now_s + self.plan.way_s
        return LoadsElsewhere(
            at_s=heard_s,
            until_s=heard_s + BELIEVED_INTERVALS * self.plan.interval_s,
            loads=tuple(self._sums[worker_id].less(told.get(worker_id)) for worker_id in fresh),
        )

    def _take(self, replica: int, ledger: Ledger) -> None:
        before = self._told[replica]
        after = self._told[replica] = {load.worker_id: load for load in loads_of(ledger)}
        for worker_id in {**before, **after}:  # in one order, whatever the hashes
            old, new = before.get(worker_id), after.get(worker_id)
            if old != new:
                known = self._sums.get(worker_id, WorkerLoad(worker_id))
                self._sums[worker_id] = known.less(old).plus(new)
                self._changed.append(worker_id)

    def _trim(self) -> None:
        read_by_all = min(self._read) - self._dropped
        if read_by_all > len(self._changed) // 2:
            del self._changed[:read_by_all]
            self._dropped += read_by_all
