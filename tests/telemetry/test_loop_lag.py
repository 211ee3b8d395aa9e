"""The event loop's lateness, on a loop whose time the test sets."""

from collections.abc import Callable

import pytest

from gateway.telemetry.loop_lag import EWMA_WEIGHT, INTERVAL_S, LoopLag, LoopLagSampler


class FakeTimer:
    def __init__(self, due_s: float, callback: Callable[[], object]) -> None:
        self.due_s = due_s
        self.callback = callback
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class LateLoop:
    """Runs its one timer as late as it is told."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.timer: FakeTimer | None = None

    def time(self) -> float:
        return self.now_s

    def call_at(self, when: float, callback: Callable[[], object], /) -> FakeTimer:
        self.timer = FakeTimer(when, callback)
        return self.timer

    def run_timer(self, *, late_s: float) -> None:
        assert self.timer is not None
        self.now_s = self.timer.due_s + late_s
        self.timer.callback()


@pytest.fixture
def loop() -> LateLoop:
    return LateLoop()


@pytest.fixture
def sampler(loop: LateLoop) -> LoopLagSampler:
    sampler = LoopLagSampler(loop)
    sampler.start()
    return sampler


def test_nothing_is_known_before_the_first_sample(sampler: LoopLagSampler) -> None:
    assert sampler.take() is None


def test_the_first_sample_is_the_average(loop: LateLoop, sampler: LoopLagSampler) -> None:
    loop.run_timer(late_s=0.5)
    assert sampler.take() == LoopLag(ewma_s=0.5, max_s=0.5)


def test_later_samples_move_the_average(loop: LateLoop, sampler: LoopLagSampler) -> None:
    loop.run_timer(late_s=0.0)
    loop.run_timer(late_s=1.0)
    lag = sampler.take()
    assert lag is not None
    assert lag.ewma_s == pytest.approx(EWMA_WEIGHT)
    assert lag.max_s == 1.0


def test_the_maximum_begins_anew_at_each_reading(loop: LateLoop, sampler: LoopLagSampler) -> None:
    loop.run_timer(late_s=1.0)
    sampler.take()
    loop.run_timer(late_s=0.25)
    lag = sampler.take()
    assert lag is not None
    assert lag.max_s == 0.25


def test_a_clock_that_runs_early_is_no_negative_lag(loop: LateLoop, sampler: LoopLagSampler) -> None:
    loop.run_timer(late_s=-0.001)
    assert sampler.take() == LoopLag(ewma_s=0.0, max_s=0.0)


def test_a_late_timer_does_not_make_the_next_one_late(loop: LateLoop, sampler: LoopLagSampler) -> None:
    loop.run_timer(late_s=3.0)
    assert loop.timer is not None
    assert loop.timer.due_s == loop.now_s + INTERVAL_S


def test_stop_cancels_the_timer(loop: LateLoop, sampler: LoopLagSampler) -> None:
    sampler.stop()
    assert loop.timer is not None
    assert loop.timer.is_cancelled
