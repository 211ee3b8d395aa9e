"""What the shared state has done, in numbers that telemetry may read at any time.

The rule of this module: numbers only rise, but for `is_up`, `queued` and `replicas`.
"""

from bisect import bisect_left
from dataclasses import dataclass, field

from gateway.telemetry.buckets import SHARED_CALL_BUCKETS_S


@dataclass(slots=True, kw_only=True)
class LoadStats:
    """Of the loads that replicas tell each other."""

    is_up: bool = False
    """The last try went well."""
    exchanges: int = 0
    """Times that they were told and heard."""
    failures: int = 0
    """Times that this broke off, or could not begin."""
    replicas: int = 0
    """Gateways that told theirs of late, as last heard; 0 while that is not known."""

    def exchange(self, replicas: int) -> None:
        """It went well, among so many."""
        self.is_up, self.replicas = True, replicas
        self.exchanges += 1

    def fail(self) -> None:
        """It did not."""
        self.is_up, self.replicas = False, 0
        self.failures += 1


@dataclass(slots=True, kw_only=True)
class SharedStats:
    """Counters since the start, and two states."""

    is_up: bool = False
    """The server answers, and in time."""
    queued: int = 0
    """Conversations whose newest state waits to be sent."""
    downs: int = 0
    """How often the server was lost, or found to be away at the start."""
    errors: dict[str, int] = field(default_factory=dict)
    """Failed tries to reach the server or to go on with it, by the name of what was raised."""
    answered: int = 0
    """Claims and moves that were answered."""
    timed_out: int = 0
    """Those given up at the deadline."""
    refused: int = 0
    """Those answered by None at once, or as the server was lost."""
    sent: int = 0
    """Touches and closes that the server has taken."""
    dropped: int = 0
    """Those dropped from a full queue."""
    moved: int = 0
    """Pins that another replica moved or closed, or knew better."""
    swept: int = 0
    """Expired pins that this replica's calls removed."""
    call_seconds: float = 0.0
    """Sum over the answered and the timed out, as their callers saw them."""
    call_counts: list[int] = field(default_factory=lambda: [0] * (len(SHARED_CALL_BUCKETS_S) + 1))
    """How many of those took so long: one for each of `SHARED_CALL_BUCKETS_S` (not cumulative), and one beyond."""

    def answer(self, took_s: float) -> None:
        """Count a claim or move that was answered, and how long its caller waited."""
        self.answered += 1
        self._time(took_s)

    def time_out(self, took_s: float) -> None:
        """Count one that was given up at the deadline."""
        self.timed_out += 1
        self._time(took_s)

    def fail(self, error: BaseException) -> None:
        """Count what went wrong."""
        name = type(error).__name__
        self.errors[name] = self.errors.get(name, 0) + 1

    def _time(self, took_s: float) -> None:
        self.call_seconds += took_s
        self.call_counts[bisect_left(SHARED_CALL_BUCKETS_S, took_s)] += 1
