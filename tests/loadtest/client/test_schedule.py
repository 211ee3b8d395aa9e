import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from loadtest.client.runner import open_loop
from loadtest.traces.types import TraceRequest


@dataclass
class VirtualTime:
    """A clock that only sleeping, and what the test does, moves."""

    now_s: float = 0.0
    oversleep_s: float = 0.0
    started: list[tuple[int, float]] = field(default_factory=list)

    def clock(self) -> float:
        return self.now_s

    async def sleep(self, duration_s: float) -> None:
        assert duration_s >= 0
        off_s = self.oversleep_s if duration_s > abs(self.oversleep_s) else 0.0
        self.now_s += duration_s + off_s
        await asyncio.sleep(0)

    async def run(self, arrivals_s: list[float], prepare: Callable[[TraceRequest], None], speed: float = 1.0) -> None:
        start_s = self.now_s

        def starter(request: TraceRequest) -> Callable[[], None]:
            prepare(request)
            return lambda: self.started.append((request.index, self.now_s - start_s))

        requests = [
            TraceRequest(index=index, arrival_s=at_s, input_tokens=1, output_tokens=1)
            for index, at_s in enumerate(arrivals_s)
        ]
        await open_loop(requests, starter, start_s=start_s, speed=speed, clock=self.clock, sleep=self.sleep)


def nothing(request: TraceRequest) -> None:
    del request


async def test_each_request_starts_at_its_own_time() -> None:
    time = VirtualTime(now_s=100.0)
    await time.run([0.0, 0.5, 0.5, 2.0], nothing)
    assert time.started == [(0, 0.0), (1, 0.5), (2, 0.5), (3, 2.0)]


async def test_speed_compresses_the_schedule() -> None:
    time = VirtualTime()
    await time.run([0.0, 1.0, 3.0], nothing, speed=4.0)
    assert time.started == [(0, 0.0), (1, 0.25), (2, 0.75)]


async def test_a_late_start_does_not_push_the_following_ones() -> None:
    time = VirtualTime(oversleep_s=0.4)
    await time.run([1.0, 1.1, 3.0], nothing)
    assert time.started == [(0, 1.4), (1, 1.4), (2, 3.4)]


async def test_a_timer_that_rings_early_is_waited_out() -> None:
    time = VirtualTime(oversleep_s=-0.0004)
    await time.run([1.0, 1.1], nothing)
    assert [index for index, _ in time.started] == [0, 1]
    assert all(started_s >= arrival_s for (_, started_s), arrival_s in zip(time.started, [1.0, 1.1], strict=True))


async def test_preparing_is_done_before_the_wait() -> None:
    time = VirtualTime()

    def slow(request: TraceRequest) -> None:
        del request
        time.now_s += 0.3

    await time.run([1.0, 2.0], slow)
    assert time.started == [(0, 1.0), (1, 2.0)]


@given(
    gaps_s=st.lists(st.floats(0, 10), max_size=20),
    stalls_s=st.lists(st.floats(0, 30), min_size=20, max_size=20),
)
def test_no_request_starts_early_or_later_than_the_stalls_before_it_explain(
    gaps_s: list[float], stalls_s: list[float]
) -> None:
    time = VirtualTime()
    arrivals_s = [sum(gaps_s[: n + 1]) for n in range(len(gaps_s))]

    def stall(request: TraceRequest) -> None:
        time.now_s += stalls_s[request.index]

    asyncio.run(time.run(arrivals_s, stall))
    ready_s = 0.0
    assert [index for index, _ in time.started] == list(range(len(gaps_s)))
    for (_, started_s), arrival_s, stall_s in zip(time.started, arrivals_s, stalls_s, strict=False):
        ready_s = max(arrival_s, ready_s + stall_s)
        assert abs(started_s - ready_s) < 1e-6
