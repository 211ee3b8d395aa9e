"""The engine model in real time.

The engine keeps its own seconds; the host says what time it is there (`speed` engine seconds per clock second),
wakes it when its next event is due, and hands the events to whoever submitted the request. Every call into the
engine is made here. Sinks are called from the timer only, never from inside a call of theirs.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import Protocol

from loadtest.engine.types import EngineEvent, EngineRequest, EngineSnapshot, RequestFinished

Sink = Callable[[list[EngineEvent]], None]
"""Takes one request's events, oldest first; what one step of the clock brought comes in one call."""


class EngineModel(Protocol):
    """What the host needs of an engine; times are engine seconds and never go back."""

    def add(self, request: EngineRequest, now_s: float) -> None:
        """Queue a request."""

    def cancel(self, request_id: str, now_s: float) -> bool:
        """Take a request out; False where there is none such."""

    def release_held(self, request_id: str, now_s: float) -> bool:
        """Free what a prefill leg holds; False where it holds nothing."""

    def next_event_at_s(self) -> float | None:
        """When `advance` next has something to tell."""

    def advance(self, now_s: float) -> list[EngineEvent]:
        """What happened up to now and has not been told."""

    def snapshot(self) -> EngineSnapshot:
        """Gauges and counters."""


class Timer(Protocol):
    """A call that has been arranged."""

    def cancel(self) -> object:
        """Call it off; harmless when it has been made."""


class Clock(Protocol):
    """Where time comes from."""

    def now_s(self) -> float:
        """Seconds since some fixed moment."""

    def call_at(self, when_s: float, callback: Callable[[], None]) -> Timer:
        """Arrange for `callback` to be called at `when_s`, or soon after."""


class LoopClock:
    """The running event loop's clock."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def now_s(self) -> float:
        """The loop's monotonic time."""
        return self._loop.time()

    def call_at(self, when_s: float, callback: Callable[[], None]) -> Timer:
        """Arrange a call on the loop."""
        return self._loop.call_at(when_s, callback)


class EngineHost:
    """Runs one engine against a clock, `speed` times as fast."""

    def __init__(self, engine: EngineModel, *, speed: float, clock: Clock) -> None:
        self.speed = speed
        self._engine = engine
        self._clock = clock
        self._epoch_s = clock.now_s()
        self._reached_s = 0.0
        self._sinks: dict[str, Sink] = {}
        self._timer: Timer | None = None
        self._due_s: float | None = None

    def now_s(self) -> float:
        """Engine seconds since the host began."""
        return max(self._reached_s, (self._clock.now_s() - self._epoch_s) * self.speed)

    def submit(self, request: EngineRequest, sink: Sink) -> None:
        """Give the engine a request, whose id it has not seen; `sink` is called until the request finished."""
        self._engine.add(request, self._reach())
        self._sinks[request.request_id] = sink
        self._arm()

    def cancel(self, request_id: str) -> None:
        """Take a request out of the engine; its sink is not called again. Harmless once it has finished."""
        if self._sinks.pop(request_id, None) is not None:
            self._engine.cancel(request_id, self._reach())
            self._arm()

    def release_held(self, request_id: str) -> bool:
        """Free the blocks that a finished prefill leg holds; False where there are none any more."""
        released = self._engine.release_held(request_id, self._reach())
        self._arm()
        return released

    def snapshot(self) -> EngineSnapshot:
        """The engine's gauges and counters as of its last event."""
        return self._engine.snapshot()

    def _reach(self, at_least_s: float = 0.0) -> float:
        self._reached_s = max(self.now_s(), at_least_s)
        return self._reached_s

    def _deliver(self, events: list[EngineEvent]) -> None:
        batches: defaultdict[str, list[EngineEvent]] = defaultdict(list)
        for event in events:
            batches[event.request_id].append(event)
        for request_id, batch in batches.items():
            ended = isinstance(batch[-1], RequestFinished)
            sink = self._sinks.pop(request_id, None) if ended else self._sinks.get(request_id)
            if sink is not None:
                sink(batch)

    def _arm(self) -> None:
        due_s = self._engine.next_event_at_s()
        if due_s == self._due_s:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._due_s = due_s
        self._timer = None
        if due_s is not None:
            self._timer = self._clock.call_at(self._epoch_s + due_s / self.speed, self._fire)

    def _fire(self) -> None:
        """A timer may come a hair early; the engine is then told the time that it was set for."""
        due_s, self._due_s, self._timer = self._due_s, None, None
        self._deliver(self._engine.advance(self._reach(at_least_s=due_s or 0.0)))
        self._arm()
