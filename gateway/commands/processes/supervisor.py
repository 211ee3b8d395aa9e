"""Keeping several processes alive.

The rule of this module: it starts, awaits, restarts and ends processes, and knows nothing of what they do. The first is
started alone, so that what would stop all of them is said once. One that dies is started again, later each time where
it dies at once. That ends the whole where no other serves; where some do, they serve on.
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import structlog

LEAST_LIFE_S: Final = 5.0
"""A process that has lived for less, or has not come to serve, has died at once."""
MAX_EARLY_DEATHS: Final = 4
"""In a row."""
FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 30.0
REFUSED_STATUS: Final = 2
"""Of a process that says itself why it cannot start."""


class Child(Protocol):
    """A process."""

    @property
    def pid(self) -> int:
        """Its id."""

    async def wait(self) -> int:
        """Its exit status, once it has ended; negative: the signal that ended it."""

    def send(self, number: int) -> None:
        """Send a signal; nothing, where it has ended."""


Spawn = Callable[[int, int], Awaitable[Child]]
"""Start the process of a number and a generation; raises OSError."""


class Supervisor:
    """Keeps `count` processes.

    Args:
        count: how many.
        spawn: starts one.
        ended: is told the number of each that has ended.
        clock: seconds.
        sleep: waits so many seconds.
        patience_s: how long processes may take to stop.
    """

    def __init__(
        self,
        count: int,
        spawn: Spawn,
        *,
        ended: Callable[[int], None],
        clock: Callable[[], float],
        patience_s: float,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.restarts = 0
        """How often a process was started again."""
        self._count = count
        self._spawn = spawn
        self._ended = ended
        self._clock = clock
        self._sleep = sleep
        self._patience_s = patience_s
        self._children: dict[int, Child] = {}
        self._serving: set[int] = set()
        self._may_start = asyncio.Event()
        """The first has come to serve, or nothing is to start any more."""
        self._stopping = asyncio.Event()
        self._failed = False
        self._log = structlog.get_logger()

    async def run(self) -> int:
        """Until all have been stopped: 0; or until one cannot be kept and no other serves: 1."""
        ending = asyncio.create_task(self._end_the_patient())
        try:
            await asyncio.gather(*map(self._keep, range(self._count)))
        finally:
            ending.cancel()
        return 1 if self._failed else 0

    def serves(self, number: int) -> None:
        """The process of this number has come to serve."""
        self._serving.add(number)
        self._may_start.set()

    def stop(self) -> None:
        """Let all drain; called again, let them end at once."""
        if not self._stopping.is_set():
            self._stopping.set()
            self._may_start.set()
            self._log.info("processes.stopping", processes=len(self._children))
            self._send_all(signal.SIGTERM)
        else:
            self._log.warning("processes.ended_at_once")
            for number, child in self._children.items():
                child.send(signal.SIGINT if number in self._serving else signal.SIGKILL)

    async def _keep(self, number: int) -> None:
        if number > 0:
            await self._may_start.wait()
        generation = early = 0
        while not self._stopping.is_set():
            began_s = self._clock()
            status = await self._live(number, generation)
            if self._stopping.is_set():
                return
            has_served = number in self._serving
            self._serving.discard(number)
            died_at_once = not has_served or self._clock() - began_s < LEAST_LIFE_S
            early = early + 1 if died_at_once else 0
            if self._must_give_up(status, early):
                self._give_up(number, status)
                return
            pause_s = pause_after(early)
            self._log.error("process.died", number=number, status=status, restart_in_s=pause_s)
            await self._pause(pause_s)
            generation += 1
            self.restarts += 1

    async def _live(self, number: int, generation: int) -> int:
        """Start a process and await its end: its exit status."""
        try:
            child = await self._spawn(number, generation)
        except OSError as error:
            self._log.error("process.not_started", number=number, error=str(error))
            return REFUSED_STATUS
        self._log.info("process.started", number=number, pid=child.pid)
        self._children[number] = child
        if self._stopping.is_set():
            child.send(signal.SIGTERM)
        try:
            return await child.wait()
        finally:
            del self._children[number]
            self._ended(number)

    def _must_give_up(self, status: int, early: int) -> bool:
        if self._serving:
            return False
        return early >= MAX_EARLY_DEATHS or (status == REFUSED_STATUS and not self._may_start.is_set())

    def _give_up(self, number: int, status: int) -> None:
        self._log.error("processes.given_up", number=number, status=status, words="it dies as soon as it is started")
        self._failed = True
        self.stop()

    async def _pause(self, seconds: float) -> None:
        waits = {asyncio.ensure_future(self._sleep(seconds)), asyncio.ensure_future(self._stopping.wait())}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _end_the_patient(self) -> None:
        await self._stopping.wait()
        await self._sleep(self._patience_s)
        self._log.error("processes.killed", numbers=sorted(self._children))
        self._send_all(signal.SIGKILL)

    def _send_all(self, number: int) -> None:
        for child in self._children.values():
            child.send(number)


def pause_after(early_deaths: int) -> float:
    """How long to wait before a process is started again, in seconds."""
    if not early_deaths:
        return 0.0
    return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** (early_deaths - 1))
