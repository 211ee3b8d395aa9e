"""The loads of all replicas, told and heard by one task beside the request path.

The rule of this module: nobody waits for it. A replica tells what changed at its workers and hears, with the same call,
what changed at all others'; where the server is silent or away, what was heard is soon believed no longer and the
replica goes by itself. After any fault it begins anew, for nobody knows what of the last call was taken.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from gateway.core.events import LoadsElsewhere, WorkerLoad
from gateway.core.types import WorkerId
from gateway.fleet.shared.pins import SharedOptions
from gateway.fleet.shared.stats import LoadStats

BELIEVED_INTERVALS = 10
"""So many answers may be missing before the last one is believed no longer."""
LEAST_S_PER_REPLICA = 0.00025
"""The interval is this long for each replica where that is more than `load_s`: the server has no more calls than 4,000
a second, however many they are."""
GONE_INTERVALS = 40
"""A replica that has been silent for so long counts as gone, and has nothing in flight; no call may take longer."""
LEAST_PAUSE_SHARE = 0.25
"""Of an interval: a server that is slow is not asked without a pause."""
STOP_S = 0.2
"""At the end, for the call that is under way."""
UNKNOWN = ""
"""The epoch of a replica that has not been told one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadAnswer:
    """What a call came to."""

    epoch: str
    number: int | None
    """Of the call, to be said with the next one; None: nothing was taken, and everything is to be told."""
    replicas: int
    """Those that have called of late, this one among them."""
    others: Sequence[WorkerLoad]
    """Sums over all other replicas, of each worker where that has changed since the call whose number was said."""


class LoadServer(Protocol):
    """Who passes them on; whatever goes wrong is raised."""

    async def open(self) -> None:
        """Connect anew."""

    async def exchange(
        self, epoch: str, number: int, changed: Sequence[WorkerLoad], *, gone_after_s: float
    ) -> LoadAnswer:
        """Tell what has changed since the last call, and hear what has.

        Args:
            epoch: as last told.
            number: of the last call; 0: `changed` is all there is, and all sums are wanted.
            changed: loads at workers; all zeros where none is left.
            gone_after_s: without another call this replica counts as gone then.
        """

    async def close(self) -> None:
        """Disconnect."""


class SharedLoads:
    """One replica's side.

    Args:
        server: who passes them on.
        options: how often, and how patiently; `load_s` must be set.
        clock: seconds; the core's clock.
        loads: what this replica has in flight, of each worker where it has anything.
        heard: what the others have; told about once in an interval.
    """

    def __init__(
        self,
        server: LoadServer,
        options: SharedOptions,
        *,
        clock: Callable[[], float],
        loads: Callable[[], Iterable[WorkerLoad]],
        heard: Callable[[LoadsElsewhere], None],
    ) -> None:
        assert options.load_s is not None
        self._server = server
        self._load_s = self._interval_s = options.load_s
        self._retry_s = options.retry_s
        self._clock = clock
        self._loads = loads
        self._heard = heard
        self._told: Mapping[WorkerId, WorkerLoad] = {}
        self._epoch, self._number = UNKNOWN, 0
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._log = structlog.get_logger()
        self.stats = LoadStats()
        """What happened so far (live: read it, never change it)."""

    def start(self) -> None:
        """Begin; the server need not be there."""
        self._task = asyncio.create_task(self._keep())

    async def stop(self) -> None:
        """End; the others soon take this one for gone."""
        self._stopping.set()
        if self._task is None:
            return
        await asyncio.wait({self._task}, timeout=STOP_S)
        while not self._task.done():
            # A cancellation amid a call may be lost in the library, which may be closing a connection for another end.
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=STOP_S)
        await self._disconnect()

    async def _keep(self) -> None:
        while not self._stopping.is_set():
            try:
                async with asyncio.timeout(GONE_INTERVALS * self._interval_s):
                    await self._server.open()
                await self._go_on()
            except Exception as error:  # noqa: BLE001 (whatever it is, requests go on and the next try may succeed)
                self._fail(error)
            await self._disconnect()
            await self._pause(self._retry_s)

    async def _go_on(self) -> None:
        while not self._stopping.is_set():
            began_s = self._clock()
            async with asyncio.timeout(GONE_INTERVALS * self._interval_s):
                await self._exchange()
            left_s = began_s + self._interval_s - self._clock()
            await self._pause(max(LEAST_PAUSE_SHARE * self._interval_s, left_s))

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    async def _exchange(self) -> None:
        began_s = self._clock()
        own = {load.worker_id: load for load in self._loads()}
        answer = await self._call(_changed(self._told, own))
        if answer.number is None:
            self._begin_anew(answer.epoch)
            own = {load.worker_id: load for load in self._loads()}
            answer = await self._call([*own.values()])
        if answer.number is None:
            raise ConnectionError("the server does not keep what it is told")
        is_whole, self._epoch, self._number, self._told = self._number == 0, answer.epoch, answer.number, own
        self.stats.exchange(answer.replicas)
        self._interval_s = max(self._load_s, LEAST_S_PER_REPLICA * answer.replicas)
        self._tell(
            LoadsElsewhere(
                at_s=self._clock(),
                until_s=began_s + BELIEVED_INTERVALS * self._interval_s,
                loads=tuple(answer.others),
                is_whole=is_whole,
            )
        )

    async def _call(self, changed: Sequence[WorkerLoad]) -> LoadAnswer:
        gone_after_s = GONE_INTERVALS * self._interval_s
        return await self._server.exchange(self._epoch, self._number, changed, gone_after_s=gone_after_s)

    def _tell(self, event: LoadsElsewhere) -> None:
        try:
            self._heard(event)
        except Exception:  # noqa: BLE001 (a listener's fault is not the server's)
            self._log.exception("shared.listener_failed")

    def _fail(self, error: BaseException) -> None:
        if self.stats.is_up or not self.stats.failures:
            self._log.warning("shared.loads_down", error=repr(error))
        self.stats.fail()
        self._begin_anew(UNKNOWN)

    def _begin_anew(self, epoch: str) -> None:
        self._epoch, self._number, self._told = epoch, 0, {}

    async def _disconnect(self) -> None:
        with contextlib.suppress(Exception):
            async with asyncio.timeout(GONE_INTERVALS * self._interval_s):
                await self._server.close()


def _changed(told: Mapping[WorkerId, WorkerLoad], own: Mapping[WorkerId, WorkerLoad]) -> list[WorkerLoad]:
    """What is not as it was told; those that nothing is left of come last."""
    changed = [load for worker_id, load in own.items() if told.get(worker_id) != load]
    return changed + [WorkerLoad(worker_id) for worker_id in told if worker_id not in own]
