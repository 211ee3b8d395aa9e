"""Both ends of a KV transfer: what a prefill leg holds until it is fetched, and what is on its way in."""

from collections import OrderedDict
from heapq import heappop, heappush

from loadtest.engine.sequence import LiveSequence, Phase
from loadtest.engine.stepping import NEVER_S
from loadtest.engine.types import EngineSpec


class Link:
    """One worker's network interface: transfers follow one another at the full rate.

    Sharing the rate among them would end the last one at the same time and all others later.
    """

    __slots__ = ("free_at_s",)

    def __init__(self) -> None:
        self.free_at_s = 0.0
        """When the transfers that were begun are through."""


class HeldKv:
    """Sequences whose blocks wait to be fetched, oldest first; each has the same lease."""

    __slots__ = ("_lease_s", "_leases", "next_end_s")

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._leases: OrderedDict[str, tuple[float, LiveSequence]] = OrderedDict()
        self.next_end_s = NEVER_S
        """When the oldest lease ends."""

    def __len__(self) -> int:
        return len(self._leases)

    def hold(self, sequence: LiveSequence, now_s: float) -> None:
        """Begin a lease."""
        self._leases[sequence.request.request_id] = (now_s + self._lease_s, sequence)
        self._look()

    def drop(self, request_id: str) -> LiveSequence | None:
        """End a lease early; None where there is none."""
        lease = self._leases.pop(request_id, None)
        self._look()
        return None if lease is None else lease[1]

    def pop_due(self, now_s: float) -> list[LiveSequence]:
        """End and return all leases up to now."""
        due = []
        while self.next_end_s <= now_s:
            _, (_, sequence) = self._leases.popitem(last=False)
            due.append(sequence)
            self._look()
        return due

    def _look(self) -> None:
        self.next_end_s = next(iter(self._leases.values()))[0] if self._leases else NEVER_S


class Delayed:
    """Sequences that come back after some time, all in one phase; one that has changed its phase has left."""

    __slots__ = ("_heap", "_phase", "_serial", "next_end_s")

    def __init__(self, phase: Phase) -> None:
        self._phase = phase
        self._heap: list[tuple[float, int, LiveSequence]] = []
        self._serial = 0
        self.next_end_s = NEVER_S
        """When the first one comes back."""

    def add(self, sequence: LiveSequence, end_s: float) -> None:
        """Wait until `end_s`; equal ends keep the order in which they began."""
        self._serial += 1
        heappush(self._heap, (end_s, self._serial, sequence))
        self.next_end_s = self._heap[0][0]

    def drop_left(self) -> None:
        """Somebody may have left."""
        heap = self._heap
        while heap and heap[0][2].phase is not self._phase:
            heappop(heap)
        self.next_end_s = heap[0][0] if heap else NEVER_S

    def pop_due(self, now_s: float) -> list[LiveSequence]:
        """All that come back up to now, in the order of their ends."""
        due = []
        while self.next_end_s <= now_s:
            due.append(heappop(self._heap)[2])
            self.drop_left()
        return due


def transfer_seconds(tokens: int, spec: EngineSpec) -> float:
    """How long the KV of `tokens` tokens takes to arrive over an idle link."""
    return spec.transfer_latency_s + tokens * spec.kv_bytes_per_token / spec.transfer_bytes_per_s
