"""Both ends of a KV transfer: what a prefill leg holds until it is fetched, and what is on its way in.

Transfers share nothing: each runs at the full rate, as it does between distinct pairs of workers.
"""

from collections import OrderedDict
from heapq import heappop, heappush

from loadtest.engine.sequence import LiveSequence, Phase


class HeldKv:
    """Sequences whose blocks wait to be fetched, oldest first; each has the same lease."""

    __slots__ = ("_lease_s", "_leases")

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._leases: OrderedDict[str, tuple[float, LiveSequence]] = OrderedDict()

    def hold(self, sequence: LiveSequence, now_s: float) -> None:
        """Begin a lease."""
        self._leases[sequence.request.request_id] = (now_s + self._lease_s, sequence)

    def drop(self, request_id: str) -> LiveSequence | None:
        """End a lease early; None where there is none."""
        lease = self._leases.pop(request_id, None)
        return None if lease is None else lease[1]

    def next_end_s(self) -> float | None:
        """When the oldest lease ends."""
        return next(iter(self._leases.values()))[0] if self._leases else None

    def pop_due(self, now_s: float) -> list[LiveSequence]:
        """End and return all leases up to now."""
        due = []
        while (end_s := self.next_end_s()) is not None and end_s <= now_s:
            _, (_, sequence) = self._leases.popitem(last=False)
            due.append(sequence)
        return due


class IncomingKv:
    """Transfers under way into this engine; a cancelled sequence leaves by its phase."""

    __slots__ = ("_heap", "_serial")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, LiveSequence]] = []
        self._serial = 0

    def __len__(self) -> int:
        return sum(sequence.phase is Phase.TRANSFERRING for _, _, sequence in self._heap)

    def start(self, sequence: LiveSequence, end_s: float) -> None:
        """Begin a transfer that ends at `end_s`; equal ends keep the order in which they began."""
        self._serial += 1
        heappush(self._heap, (end_s, self._serial, sequence))

    def next_end_s(self) -> float | None:
        """When the first transfer ends."""
        heap = self._heap
        while heap and heap[0][2].phase is not Phase.TRANSFERRING:
            heappop(heap)
        return heap[0][0] if heap else None

    def pop_due(self, now_s: float) -> list[LiveSequence]:
        """End and return all transfers up to now, in the order of their ends."""
        due = []
        while (end_s := self.next_end_s()) is not None and end_s <= now_s:
            due.append(heappop(self._heap)[2])
        return due
