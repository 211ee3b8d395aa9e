import pytest

from loadtest.engine.types import (
    EngineEvent,
    EngineRequest,
    EngineSnapshot,
    FinishReason,
    RequestFinished,
    TokenMade,
)
from loadtest.worker.host import EngineHost
from tests.loadtest.worker.worker_lab import VirtualClock


class ScriptedEngine:
    """Makes one token per running request every second, on the second."""

    def __init__(self) -> None:
        self.left: dict[str, int] = {}
        self.made: dict[str, int] = {}
        self.calls: list[tuple[str, float]] = []
        self.now_s = 0.0

    def add(self, request: EngineRequest, now_s: float) -> None:
        self._note("add", now_s)
        self.left[request.request_id] = request.output_tokens

    def cancel(self, request_id: str, now_s: float) -> bool:
        self._note("cancel", now_s)
        return self.left.pop(request_id, None) is not None

    def release_held(self, request_id: str, now_s: float) -> bool:
        self._note("release", now_s)
        return request_id == "held"

    def next_event_at_s(self) -> float | None:
        return float(int(self.now_s) + 1) if self.left else None

    def advance(self, now_s: float) -> list[EngineEvent]:
        events: list[EngineEvent] = []
        for second in range(int(self.now_s) + 1, int(now_s) + 1):
            for request_id in list(self.left):
                events += self._token(request_id, float(second))
        self._note("advance", now_s)
        return events

    def snapshot(self) -> EngineSnapshot:
        raise NotImplementedError

    def _token(self, request_id: str, at_s: float) -> list[EngineEvent]:
        index = self.made.get(request_id, 0)
        self.made[request_id] = index + 1
        events: list[EngineEvent] = [TokenMade(at_s=at_s, request_id=request_id, index=index)]
        self.left[request_id] -= 1
        if not self.left[request_id]:
            del self.left[request_id]
            events.append(
                RequestFinished(
                    at_s=at_s,
                    request_id=request_id,
                    reason=FinishReason.LENGTH,
                    cached_tokens=0,
                    preemptions=0,
                )
            )
        return events

    def _note(self, call: str, now_s: float) -> None:
        assert now_s >= self.now_s
        self.now_s = now_s
        self.calls.append((call, now_s))


def request(request_id: str, output_tokens: int) -> EngineRequest:
    return EngineRequest(request_id=request_id, prompt_tokens=1, output_tokens=output_tokens)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


def drain(clock: VirtualClock) -> None:
    while clock.next_at_s() is not None:
        clock.fire_next()


def test_engine_seconds_pass_faster_by_the_speed(clock: VirtualClock) -> None:
    host = EngineHost(ScriptedEngine(), speed=4.0, clock=clock)
    clock.move(2.5)
    assert host.now_s() == 10.0


def test_each_step_brings_its_tokens_when_they_are_due(clock: VirtualClock) -> None:
    engine = ScriptedEngine()
    host = EngineHost(engine, speed=2.0, clock=clock)
    got: list[tuple[float, int]] = []
    host.submit(request("a", 3), lambda events: got.append((clock.now_s(), len(events))))
    start_s = clock.now_s()
    drain(clock)
    assert got == [(start_s + 0.5, 1), (start_s + 1.0, 1), (start_s + 1.5, 2)]


def test_steps_that_were_missed_come_in_one_call_per_request(clock: VirtualClock) -> None:
    host = EngineHost(ScriptedEngine(), speed=1.0, clock=clock)
    got: dict[str, list[list[EngineEvent]]] = {"a": [], "b": []}
    for request_id, calls in got.items():
        host.submit(request(request_id, 9), calls.append)
    late = clock.next_at_s()
    assert late is not None
    clock._now_s += 5.0
    clock.fire_next()
    assert [len(calls) for calls in got.values()] == [1, 1]
    assert [event.at_s for event in got["a"][0]] == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_a_cancelled_request_is_not_heard_of_again(clock: VirtualClock) -> None:
    engine = ScriptedEngine()
    host = EngineHost(engine, speed=1.0, clock=clock)
    got: list[list[EngineEvent]] = []
    host.submit(request("a", 5), got.append)
    clock.fire_next()
    host.cancel("a")
    drain(clock)
    assert len(got) == 1
    assert engine.left == {}


def test_cancel_after_the_end_does_not_reach_the_engine(clock: VirtualClock) -> None:
    engine = ScriptedEngine()
    host = EngineHost(engine, speed=1.0, clock=clock)
    host.submit(request("a", 1), lambda _: None)
    drain(clock)
    host.cancel("a")
    assert "cancel" not in {call for call, _ in engine.calls}


def test_an_idle_engine_needs_no_timer(clock: VirtualClock) -> None:
    host = EngineHost(ScriptedEngine(), speed=1.0, clock=clock)
    assert not host.release_held("a")
    assert host.release_held("held")
    assert clock.next_at_s() is None


@pytest.mark.parametrize("speed", [0.3, 1.0, 7.0, 1000.0])
def test_a_timer_always_reaches_the_event_it_was_set_for(clock: VirtualClock, speed: float) -> None:
    """However the division by the speed rounds, one firing per step is enough."""
    host = EngineHost(ScriptedEngine(), speed=speed, clock=clock)
    got: list[list[EngineEvent]] = []
    host.submit(request("a", 50), got.append)
    for _ in range(50):
        clock.fire_next()
    assert len(got) == 50
    assert clock.next_at_s() is None
