"""How late the event loop runs its timers.

The rule of this module: a timer every quarter of a second measures its own lateness; whatever holds the loop
up shows there. The loop is an argument.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

INTERVAL_S: Final = 0.25
EWMA_WEIGHT: Final = 0.1
"""Weight of the newest sample: about the last ten (2.5 s) count."""


class Timer(Protocol):
    """A pending call."""

    def cancel(self) -> object:
        """Do not call."""
        ...


class Loop(Protocol):
    """The part of an event loop that is needed."""

    def time(self) -> float:
        """Seconds of a monotonic clock."""
        ...

    def call_at(self, when: float, callback: Callable[[], object], /) -> Timer:
        """Call back at `when` by `time()`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopLag:
    """Lateness in seconds: a moving average, and the largest since the last reading."""

    ewma_s: float
    max_s: float


class LoopLagSampler:
    """Measures a loop's lag between `start()` and `stop()`."""

    def __init__(self, loop: Loop, *, interval_s: float = INTERVAL_S) -> None:
        self._loop: Final = loop
        self._interval_s: Final = interval_s
        self._timer: Timer | None = None
        self._due_s = 0.0
        self._ewma_s: float | None = None
        self._max_s = 0.0

    def start(self) -> None:
        """Begin to measure; on the loop's thread."""
        self._schedule()

    def stop(self) -> None:
        """Measure no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def take(self) -> LoopLag | None:
        """The lag, and start a new maximum; None before the first sample."""
        if self._ewma_s is None:
            return None
        lag = LoopLag(ewma_s=self._ewma_s, max_s=self._max_s)
        self._max_s = 0.0
        return lag

    def _schedule(self) -> None:
        self._due_s = self._loop.time() + self._interval_s
        self._timer = self._loop.call_at(self._due_s, self._sample)

    def _sample(self) -> None:
        lag_s = max(0.0, self._loop.time() - self._due_s)
        previous_s = lag_s if self._ewma_s is None else self._ewma_s
        self._ewma_s = previous_s + EWMA_WEIGHT * (lag_s - previous_s)
        self._max_s = max(self._max_s, lag_s)
        self._schedule()
