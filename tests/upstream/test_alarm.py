from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.upstream.alarm import Alarm
from tests.upstream.upstream_fakes import FakeScheduler


class Rung:
    """A clock, an alarm on it and when it rang."""

    def __init__(self) -> None:
        self.clock = FakeScheduler()
        self.at_s: list[float] = []
        self.alarm = Alarm(self.clock, lambda: self.at_s.append(self.clock.now_s))


@pytest.fixture
def rung() -> Rung:
    return Rung()


def test_rings_once_at_its_deadline(rung: Rung) -> None:
    rung.alarm.set(5)
    rung.clock.advance(20)
    assert rung.at_s == [5]


def test_moving_the_deadline_later_costs_no_timer(rung: Rung) -> None:
    for _ in range(100):
        rung.alarm.set(5)
        rung.clock.advance(0.01)
    assert rung.clock.scheduled == 1
    rung.clock.advance(20)
    assert rung.at_s == [pytest.approx(5.99)]


def test_moving_the_deadline_earlier_rings_earlier(rung: Rung) -> None:
    rung.alarm.set(60)
    rung.alarm.set(5)
    rung.clock.advance(100)
    assert rung.at_s == [5]


def test_cleared_alarm_is_silent_and_can_be_set_again(rung: Rung) -> None:
    rung.alarm.set(5)
    rung.alarm.clear()
    rung.clock.advance(4)
    rung.alarm.set(3)
    rung.clock.advance(20)
    assert rung.at_s == [7]


def test_closed_alarm_leaves_no_timer(rung: Rung) -> None:
    rung.alarm.set(5)
    rung.alarm.close()
    assert rung.clock.pending == 0


def test_set_by_never_delays(rung: Rung) -> None:
    rung.alarm.set_by(5)
    rung.alarm.set_by(9)
    rung.alarm.set_by(3)
    rung.clock.advance(20)
    assert rung.at_s == [3]


Step = tuple[str, int]
steps = st.lists(st.tuples(st.sampled_from(["set", "set_by", "clear", "advance"]), st.integers(0, 9)))


@given(steps)
def test_rings_exactly_as_a_naive_timer_would(script: list[Step]) -> None:
    rung = Rung()
    due: int | None = None
    now = 0
    expected: list[float] = []
    for action, amount in [*script, ("advance", 20)]:
        if action == "set":
            due = now + amount
        elif action == "set_by":
            due = now + amount if due is None else min(due, now + amount)
        elif action == "clear":
            due = None
        else:
            now += amount
            if due is not None and due <= now:
                expected.append(due)
                due = None
        run: dict[str, Callable[[int], None]] = {
            "set": rung.alarm.set,
            "set_by": lambda seconds: rung.alarm.set_by(rung.clock.now_s + seconds),
            "clear": lambda _: rung.alarm.clear(),
            "advance": rung.clock.advance,
        }
        run[action](amount)
    assert rung.at_s == expected
