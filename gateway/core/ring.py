"""Workers on a circle: who is first for a key, at a cost that hardly grows with their number.

The rule of this module: as with rendezvous hashing, a key's worker depends on nothing but the key and the workers' own
ids, and a worker that leaves moves only the keys that were on it. Each worker has one point, and a key looks up at
several: among many lookers the nearest is found about evenly.
Source: Appleton and O'Reilly, "Multi-probe consistent hashing" (arXiv 1505.00062), 2015.
"""

from bisect import bisect_left
from collections.abc import Container, Iterable

from gateway.core.hashing import mix64, mix64_each, rank_of
from gateway.core.types import WorkerId

PROBES = 21
"""At so many the busiest worker has about 5 % more keys than the mean (the source's table 1)."""
LEAST_PART = 4
"""With fewer workers there is hardly a choice; parts overlap then."""
_POINT_KEY = 0
_MASK = (1 << 64) - 1


class Ring:
    """A circle of workers."""

    def __init__(self, members: Iterable[WorkerId]) -> None:
        placed = sorted((rank_of(_POINT_KEY, member), member) for member in members)
        self._points = [point for point, _ in placed]
        self._members = [member for _, member in placed]

    def first(self, key: int, among: Container[WorkerId]) -> WorkerId | None:
        """The worker of a hashed key, of those that are asked about; None where there is none."""
        points, members = self._points, self._members
        best: WorkerId | None = None
        nearest = _MASK + 1
        for at in mix64_each([(key + probe) & _MASK for probe in range(PROBES)]):
            place = self._next(at, among)
            if place is None:
                return None
            distance = (points[place] - at) & _MASK
            if distance < nearest:
                best, nearest = members[place], distance
        return best

    def at(self, key: int, among: Container[WorkerId]) -> WorkerId | None:
        """The next worker after the key itself: cheaper than `first`, and less even."""
        place = self._next(mix64(key & _MASK), among)
        return None if place is None else self._members[place]

    def part(self, number: int, parts: int) -> list[WorkerId]:
        """One of so many equal parts of the circle, of `LEAST_PART` workers at least, where there are as many.

        Args:
            number: which, from 0; beyond the last it begins anew.
            parts: how many.
        """
        size = len(self._members)
        begin, end = (size * (number % parts + step) // parts for step in (0, 1))
        return [self._members[place % size] for place in range(begin, max(end, begin + min(LEAST_PART, size)))]

    def _next(self, at: int, among: Container[WorkerId]) -> int | None:
        members = self._members
        begin, size = bisect_left(self._points, at), len(members)
        for step in range(size):
            place = (begin + step) % size
            if members[place] in among:
                return place
        return None
