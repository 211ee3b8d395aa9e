"""A deadline that is cheap to move.

Data arrives far more often than deadlines pass, so moving a deadline later is one assignment: the timer that is
already running wakes at its old time, sees that it is early and sleeps on.
"""

from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """A call that is yet to come."""

    def cancel(self) -> None:
        """Prevent the call."""


class Scheduler(Protocol):
    """A clock with timers; every asyncio loop is one."""

    def time(self) -> float:
        """Return the current time in seconds from an arbitrary origin."""

    def call_later(self, delay: float, callback: Callable[[], object], /) -> Timer:
        """Call back once, `delay` seconds from now."""


class Alarm:
    """One deadline with one callback, set and cleared any number of times."""

    __slots__ = ("_callback", "_due_s", "_scheduler", "_timer", "_wakes_s")

    def __init__(self, scheduler: Scheduler, callback: Callable[[], object]) -> None:
        self._scheduler = scheduler
        self._callback = callback
        self._due_s: float | None = None
        self._timer: Timer | None = None
        self._wakes_s = 0.0

    def set(self, delay_s: float) -> None:
        """Move the deadline to `delay_s` seconds from now."""
        now_s = self._scheduler.time()
        self._move(now_s + delay_s, now_s)

    def set_by(self, due_s: float) -> None:
        """Make sure that the deadline is at `due_s` or earlier, on the scheduler's clock."""
        if self._due_s is None or due_s < self._due_s:
            self._move(due_s, self._scheduler.time())

    def clear(self) -> None:
        """Forget the deadline; a running timer is kept for the next one."""
        self._due_s = None

    def close(self) -> None:
        """Forget the deadline and release the timer."""
        self._due_s = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _move(self, due_s: float, now_s: float) -> None:
        self._due_s = due_s
        if self._timer is None:
            self._sleep_until(due_s, now_s)
        elif due_s < self._wakes_s:
            self._timer.cancel()
            self._sleep_until(due_s, now_s)

    def _sleep_until(self, due_s: float, now_s: float) -> None:
        self._wakes_s = due_s
        self._timer = self._scheduler.call_later(due_s - now_s, self._wake)

    def _wake(self) -> None:
        self._timer = None
        due_s = self._due_s
        if due_s is None:
            return
        now_s = self._scheduler.time()
        if now_s < due_s:
            self._sleep_until(due_s, now_s)
        else:
            self._due_s = None
            self._callback()
