"""How long conversations pause between two turns, and from when on one that does not go on is presumed to be over.

The rule of this module: what is counted is what came back, however long it took; old pauses fade. Few clients say that
a conversation has ended, so most endings can only be told from a pause that is longer than nearly all of them.
"""

import math
from bisect import bisect_left

LEAST_PAUSES = 64
"""Before so many were seen, nothing is presumed."""
MEMORY_PAUSES = 4096
"""About so many of the last ones count."""
RETURN_SHARE = 0.95
"""Of all pauses: so many have ended by then. A conversation of some twenty turns that pauses longer is as likely over
as not; one that does come back is taken back where its KV still is."""
_STEPS_PER_OCTAVE = 4
_SHORTEST_S = 1 / 64
BOUNDS_S = tuple(_SHORTEST_S * 2 ** (step / _STEPS_PER_OCTAVE) for step in range(80))
"""Upper bounds of what pauses are counted in: from 16 ms to four hours."""


class Pauses:
    """The distribution of pauses, as of late."""

    def __init__(self) -> None:
        self._counts = [0.0] * (len(BOUNDS_S) + 1)
        self._total = 0.0

    def saw(self, pause_s: float) -> None:
        """A conversation went on after so long."""
        if self._total >= MEMORY_PAUSES:
            self._counts = [count / 2 for count in self._counts]
            self._total /= 2
        self._counts[bisect_left(BOUNDS_S, pause_s)] += 1.0
        self._total += 1.0

    def usual_s(self) -> float:
        """What `RETURN_SHARE` of all pauses do not exceed; without end where too few were seen, or that is so long."""
        if self._total < LEAST_PAUSES:
            return math.inf
        missing = RETURN_SHARE * self._total
        for bound_s, count in zip(BOUNDS_S, self._counts, strict=False):
            missing -= count
            if missing <= 0:
                return bound_s
        return math.inf
