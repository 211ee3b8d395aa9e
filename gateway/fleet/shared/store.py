"""The pins that all replicas share, kept by one task beside the request path.

The rule of this module: only the task talks to the server, with one call at a time; requests leave what they want and
wait for it no longer than their deadline. A server that breaks off, or is slower than the deadline three times in a
row, counts as down: then nobody waits at all, until the task has reached it again and has begun to tell it everything
that this replica knows.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ParamSpec, Protocol

import structlog

from gateway.core.conversation.identity import ConversationId
from gateway.core.types import WorkerId
from gateway.fleet.shared.codec import Op, Reply, Step, step_of
from gateway.fleet.shared.outbox import Outbox
from gateway.fleet.shared.pins import Claim, Pin, SharedOptions, SharedState
from gateway.fleet.shared.stats import SharedStats

OPEN_S = 2.0
"""To connect, TLS and all: nobody waits for it."""
STOP_S = 1.0
"""For what is queued to be sent at the end."""
SLOW_CALLS = 3
"""So many calls in a row slower than the deadline, or one that takes as long as they, and the server counts as down."""
SWEEP = 20
"""Expired pins that a call removes, while somebody waits for it."""
SWEEP_ON_REFRESH = 200
BUSY_PAUSE_S = 0.005
"""Between two full batches of what nobody waits for, so that they do not take all of the loop or of the server."""

_P = ParamSpec("_P")


class TooSlow(TimeoutError):  # noqa: N818 (it says what is the case)
    """The server answers, but too late."""


class Server(Protocol):
    """What is asked of the server; whatever goes wrong is raised."""

    async def open(self) -> None:
        """Connect anew and subscribe."""

    async def run(self, steps: Sequence[Step], *, workers: Sequence[WorkerId] | None, sweep: int) -> Reply:
        """Do the steps; read the occupancy of these workers, or of all."""

    async def listen(self, heard: Callable[[ConversationId, Pin | None], None]) -> None:
        """Pass on what the other replicas move and close."""

    async def close(self) -> None:
        """Disconnect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """A step that somebody waits for."""

    step: Step
    workers: Sequence[WorkerId]
    answer: asyncio.Future[Claim | None]

    def settle(self, claim: Claim | None) -> None:
        if not self.answer.done():
            self.answer.set_result(claim)


class SharedPins(SharedState):
    """Shared pins on a server.

    Args:
        server: who keeps the pins.
        options: how patient to be.
        clock: seconds; the clock of the pins' `last_seen_s`.
        snapshot: all live pins of this replica; asked whenever the server is back.
        moved: another replica moved a conversation to a pin, or closed it (None): whoever has another pin for it
            takes this one, and whoever does not know the conversation need not care.
        occupancy: KV tokens pinned at each worker over all replicas, about once in `refresh_s`; a worker without
            pins is left out.
    """

    def __init__(
        self,
        server: Server,
        options: SharedOptions,
        *,
        clock: Callable[[], float],
        snapshot: Callable[[], Mapping[ConversationId, Pin]],
        moved: Callable[[ConversationId, Pin | None], None],
        occupancy: Callable[[Mapping[WorkerId, int]], None],
    ) -> None:
        self._server = server
        self._options = options
        self._clock = clock
        self._snapshot = snapshot
        self._moved = moved
        self._occupancy = occupancy
        self._stats = SharedStats()
        self._outbox = Outbox(options.max_queued)
        self._calls: deque[_Call] = deque()
        self._called = asyncio.Event()
        self._tried = asyncio.Event()
        self._stopping = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._refresh_at_s = 0.0
        self._slow_calls = 0
        self._log = structlog.get_logger()

    @property
    def stats(self) -> SharedStats:
        """What happened so far (live: read it, never change it)."""
        self._stats.queued, self._stats.dropped = len(self._outbox), self._outbox.dropped
        return self._stats

    async def start(self) -> None:
        """Begin, and wait until the server has been tried once: up or down, the gateway can start."""
        self._keeper = asyncio.create_task(self._keep())
        await self._tried.wait()

    async def stop(self) -> None:
        """Send what is queued, if the server takes it in time, and end."""
        self._stopping.set()
        self._called.set()
        if self._keeper is not None:
            await asyncio.wait({self._keeper}, timeout=STOP_S if self._stats.is_up else 0)
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
            await self._disconnect()  # it may have been cancelled amid that
        self._give_up()

    # -- on the request path -----------------------------------------------------------------------------------

    async def claim(
        self, conversation: ConversationId, proposed: Pin, *, workers: Sequence[WorkerId] = ()
    ) -> Claim | None:
        """See `SharedState.claim`."""
        self._outbox.reopen(conversation)
        return await self._ask(step_of(Op.CLAIM, conversation, proposed), workers)

    async def move(self, conversation: ConversationId, from_worker: WorkerId, to: Pin) -> Pin | None:
        """See `SharedState.move`."""
        self._outbox.reopen(conversation)
        claim = await self._ask(step_of(Op.MOVE, conversation, to, from_worker))
        if claim is None:
            self._outbox.put(conversation, to)
            return None
        return claim.pin

    def touch(self, conversation: ConversationId, pin: Pin) -> None:
        """See `SharedState.touch`."""
        self._outbox.put(conversation, pin)

    def close(self, conversation: ConversationId, *, seen_s: float | None = None) -> None:
        """See `SharedState.close`."""
        self._outbox.close(conversation, self._clock() if seen_s is None else seen_s)

    def made(self, end: int, pin: Pin) -> None:
        """See `SharedState.made`."""
        self._outbox.made(end, pin)

    async def find(self, end: int) -> Pin | None:
        """See `SharedState.find`."""
        claim = await self._ask(Step(op=Op.FIND, conversation=ConversationId(end), seen_s=self._clock()))
        return None if claim is None or claim.is_new else claim.pin

    async def _ask(self, step: Step, workers: Sequence[WorkerId] = ()) -> Claim | None:
        if not self._stats.is_up:
            self._stats.refused += 1
            return None
        call = _Call(step=step, workers=workers, answer=asyncio.get_running_loop().create_future())
        self._calls.append(call)
        self._called.set()
        began_s = self._clock()
        try:
            await asyncio.wait([call.answer], timeout=self._options.deadline_s)
        finally:
            call.answer.cancel()  # has no effect on one that is there, which after a long pause of the process counts
        if call.answer.cancelled():
            self._stats.time_out(self._clock() - began_s)
            return None
        claim = call.answer.result()
        if claim is None:
            self._stats.refused += 1
        else:
            self._stats.answer(self._clock() - began_s)
        return claim

    # -- the task ----------------------------------------------------------------------------------------------

    async def _keep(self) -> None:
        while not self._stopping.is_set():
            try:
                await self._live_once()
            except Exception as error:  # noqa: BLE001 (whatever it is, the requests go on and the next try may succeed)
                self._go_down(error)
            finally:
                self._give_up()
                await self._disconnect()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._options.retry_s):
                    await self._stopping.wait()

    async def _live_once(self) -> None:
        """From a new connection to its loss."""
        async with asyncio.timeout(OPEN_S):
            await self._server.open()
            await self._server.run((), workers=(), sweep=SWEEP)  # loads the script
        self._slow_calls = self._refresh_at_s = 0
        await self._run((), workers=(), sweep=SWEEP)
        if self._slow_calls:
            raise TooSlow("the first call took longer than a request may wait")
        async with asyncio.TaskGroup() as group:
            listening = group.create_task(self._server.listen(self._heard))
            self._come_up()
            await self._serve()
            listening.cancel()

    async def _serve(self) -> None:
        """Send what there is, calls at once and the rest together, until all is sent and we stop."""
        while not self._stopping.is_set() or len(self._outbox):
            self._called.clear()
            await self._send()
            if not self._calls and not self._stopping.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._pause_s()):
                        await self._called.wait()

    def _pause_s(self) -> float:
        """Until the next batch, unless somebody asks."""
        if len(self._outbox) >= self._options.batch_steps:
            return BUSY_PAUSE_S
        return max(BUSY_PAUSE_S, min(self._options.flush_s, self._refresh_at_s - self._clock()))

    async def _send(self) -> None:
        """One batch: those that are waited for first, then what is queued."""
        calls = self._take_calls()
        changes = self._outbox.take(self._options.batch_steps - len(calls))
        is_due = self._clock() >= self._refresh_at_s
        if not (calls or changes or is_due):
            return
        steps = [*(call.step for call in calls), *changes]
        workers = None if is_due else tuple(dict.fromkeys(worker for call in calls for worker in call.workers))
        sweep = SWEEP_ON_REFRESH if is_due and not calls else SWEEP
        try:
            reply = await self._run(steps, workers=workers, sweep=sweep)
        except BaseException:
            self._outbox.put_back(changes)
            for call in calls:
                call.settle(None)
            raise
        self._stats.sent += len(changes)
        self._settle(calls, reply)
        self._correct(changes, reply.answers[len(calls) :])
        if is_due:
            # As long as there is more to sweep, the sums are too high.
            self._refresh_at_s = self._clock() + (0 if reply.swept >= sweep else self._options.refresh_s)
            self._tell(self._occupancy, reply.occupancy)
        if self._slow_calls >= SLOW_CALLS:
            raise TooSlow(f"{SLOW_CALLS} calls in a row took longer than a request may wait")

    async def _run(self, steps: Sequence[Step], *, workers: Sequence[WorkerId] | None, sweep: int) -> Reply:
        """One call of the server, and whether it was a slow one."""
        began_s = self._clock()
        async with asyncio.timeout(SLOW_CALLS * self._options.deadline_s):
            reply = await self._server.run(steps, workers=workers, sweep=sweep)
        is_slow = self._clock() - began_s > self._options.deadline_s
        self._slow_calls = self._slow_calls + 1 if is_slow else 0
        self._stats.swept += reply.swept
        return reply

    def _take_calls(self) -> list[_Call]:
        """Those that are still waited for, as many as go into one batch."""
        calls: list[_Call] = []
        while self._calls and len(calls) < self._options.batch_steps:
            call = self._calls.popleft()
            if not call.answer.done():
                calls.append(call)
        return calls

    def _settle(self, calls: Sequence[_Call], reply: Reply) -> None:
        for call, pin in zip(calls, reply.answers, strict=False):  # the answers to what is queued come after theirs
            occupancy = {worker: reply.occupancy.get(worker, 0) for worker in call.workers}
            is_new, stands = pin is None, call.step.pin() if pin is None else pin
            call.settle(Claim(pin=stands, occupancy=occupancy, is_new=is_new))

    def _correct(self, changes: Sequence[Step], answers: Sequence[Pin | None]) -> None:
        """Pass on what the server knew better, unless this replica has changed it once more."""
        for step, pin in zip(changes, answers, strict=True):
            if pin is not None and step.conversation not in self._outbox:
                self._heard(step.conversation, pin)

    def _heard(self, conversation: ConversationId, pin: Pin | None) -> None:
        self._stats.moved += 1
        self._tell(self._moved, conversation, pin)

    def _tell(self, listener: Callable[_P, None], *args: _P.args, **kwargs: _P.kwargs) -> None:
        try:
            listener(*args, **kwargs)
        except Exception:  # noqa: BLE001 (a listener's fault is not the server's)
            self._log.exception("shared.listener_failed")

    # -- up and down -------------------------------------------------------------------------------------------

    def _come_up(self) -> None:
        self._stats.is_up = True
        self._tell(self._refill)
        self._log.info("shared.up", sent_anew=len(self._outbox))
        self._tried.set()

    def _refill(self) -> None:
        self._outbox.refill(self._snapshot())

    def _go_down(self, error: BaseException) -> None:
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        self._stats.fail(error)
        if self._stats.is_up or not self._tried.is_set():
            self._stats.downs += 1
            self._log.warning("shared.down", error=repr(error))
        self._tried.set()

    def _give_up(self) -> None:
        """Let nobody wait any longer."""
        self._stats.is_up = False
        while self._calls:
            self._calls.popleft().settle(None)

    async def _disconnect(self) -> None:
        with contextlib.suppress(Exception):
            async with asyncio.timeout(OPEN_S):
                await self._server.close()
