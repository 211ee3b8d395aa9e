"""Keeping processes alive: played ones, and a clock that passes when somebody sleeps."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.commands.processes.supervisor import (
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    MAX_EARLY_DEATHS,
    REFUSED_STATUS,
    Supervisor,
    pause_after,
)
from tests.api.asgi_client import idle, settle

PATIENCE_S = 40.0


class Played:
    """A process: it ends when the test says so."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.signals: list[int] = []
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def wait(self) -> int:
        return await self._ended

    def send(self, number: int) -> None:
        self.signals.append(number)

    def end(self, status: int = -signal.SIGKILL) -> None:
        self._ended.set_result(status)


class World:
    """Two processes to keep, all that were started, and the time."""

    def __init__(self, count: int = 2) -> None:
        self.now_s = 0.0
        self.started: list[tuple[int, int]] = []
        self.children: dict[int, Played] = {}
        self.ended: list[int] = []
        self.slept: list[float] = []
        self.refuses = False
        self.supervisor = Supervisor(
            count,
            self._spawn,
            ended=self.ended.append,
            clock=lambda: self.now_s,
            patience_s=PATIENCE_S,
            sleep=self._sleep,
        )
        self.run: asyncio.Task[int]

    async def _spawn(self, number: int, generation: int) -> Played:
        if self.refuses:
            raise OSError(11, "no more processes")
        self.started.append((number, generation))
        self.children[number] = Played(pid=len(self.started))
        return self.children[number]

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if seconds == PATIENCE_S:
            await asyncio.Event().wait()  # its end is a test of its own
        self.now_s += seconds

    async def serve(self, *numbers: int) -> None:
        for number in numbers:
            await settle(lambda number=number: number in self.children)  # type: ignore[misc] # bound by its default
            self.supervisor.serves(number)
        await idle()

    async def die(self, number: int, status: int = -signal.SIGKILL) -> None:
        self.children.pop(number).end(status)
        await idle()


@asynccontextmanager
async def world(count: int = 2) -> AsyncIterator[World]:
    made = World(count)
    made.run = asyncio.create_task(made.supervisor.run())
    await idle()
    yield made
    made.run.cancel()
    await asyncio.gather(made.run, return_exceptions=True)


async def test_the_first_is_started_alone_and_the_others_once_it_serves() -> None:
    async with world(3) as at:
        assert at.started == [(0, 0)]
        await at.serve(0)
        assert at.started == [(0, 0), (1, 0), (2, 0)]


async def test_one_that_dies_after_a_while_is_started_again_at_once() -> None:
    async with world() as at:
        await at.serve(0, 1)
        at.now_s = 100.0
        await at.die(1)
        assert at.started[2:] == [(1, 1)]
        assert at.slept == [0.0]
        assert (at.ended, at.supervisor.restarts) == ([1], 1)


async def test_one_that_dies_at_once_again_and_again_is_waited_for_longer_each_time() -> None:
    async with world() as at:
        await at.serve(0, 1)
        at.now_s = 100.0
        for _ in range(10):
            await at.die(1)
        # The first had lived long; the other one serves, so nobody gives up.
        assert at.slept == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
        assert not at.run.done()
        await at.serve(1)
        at.now_s += 100.0
        await at.die(1)
        assert at.slept[-1] == 0.0


async def test_one_that_never_serves_ends_the_whole_where_no_other_does() -> None:
    async with world() as at:
        for _ in range(MAX_EARLY_DEATHS - 1):
            await at.die(0)
            assert not at.run.done()
        await at.die(0)
        assert await at.run == 1
        assert at.started == [(0, generation) for generation in range(MAX_EARLY_DEATHS)]


async def test_one_that_says_why_it_cannot_start_is_not_tried_again() -> None:
    async with world() as at:
        await at.die(0, REFUSED_STATUS)
        assert await at.run == 1
        assert at.started == [(0, 0)]


async def test_one_that_cannot_start_any_more_is_no_reason_to_end_those_that_serve() -> None:
    async with world() as at:
        await at.serve(0, 1)
        for _ in range(2 * MAX_EARLY_DEATHS):
            await at.die(1, REFUSED_STATUS)
        assert not at.run.done()
        assert at.children[0].signals == []


async def test_a_system_that_starts_no_process_ends_the_whole() -> None:
    made = World()
    made.refuses = True
    assert await made.supervisor.run() == 1


async def test_the_first_signal_drains_all_and_a_drained_one_is_not_started_again() -> None:
    async with world() as at:
        await at.serve(0, 1)
        at.supervisor.stop()
        assert [at.children[number].signals for number in (0, 1)] == [[signal.SIGTERM], [signal.SIGTERM]]
        await at.die(0, 0)
        await at.die(1, 0)
        assert await at.run == 0
        assert len(at.started) == 2


async def test_the_second_signal_ends_all_at_once() -> None:
    async with world() as at:
        await at.serve(0)
        at.supervisor.stop()
        at.supervisor.stop()
        # The other one has not come so far as to know what SIGINT is.
        assert at.children[0].signals == [signal.SIGTERM, signal.SIGINT]
        assert at.children[1].signals == [signal.SIGTERM, signal.SIGKILL]


async def test_a_signal_ends_the_wait_before_a_restart() -> None:
    async with world(1) as at:
        waits = asyncio.Event()
        at.supervisor._sleep = lambda _: waits.wait()  # type: ignore[assignment,return-value] # what it waits for
        await at.die(0)
        at.supervisor.stop()
        assert await at.run == 0
        assert at.started == [(0, 0)]


async def test_those_that_do_not_stop_are_killed() -> None:
    async with world() as at:
        await at.serve(0, 1)
        patience = asyncio.Event()
        at.supervisor._sleep = lambda _: patience.wait()  # type: ignore[assignment,return-value]
        at.supervisor.stop()
        await at.die(0, 0)
        patience.set()
        await idle()
        assert at.children[1].signals == [signal.SIGTERM, signal.SIGKILL]


@pytest.mark.parametrize(("deaths", "pause_s"), [(0, 0.0), (1, FIRST_PAUSE_S), (3, 2.0), (50, LONGEST_PAUSE_S)])
def test_pauses_double_up_to_a_bound(deaths: int, pause_s: float) -> None:
    assert pause_after(deaths) == pause_s
