"""Turns the faults of a process's workers on and off, by Python or over HTTP.

Every worker can be reached through every other one (`?worker=NAME`): one that refuses connections cannot be told
itself to take them again.
"""

from dataclasses import dataclass
from typing import Protocol

import msgspec

from loadtest.worker import bodies
from loadtest.worker.app import HttpCall, Routes
from loadtest.worker.errors import ApiError
from loadtest.worker.faults import FAULT, Fault, FaultKind, FaultSwitches

FAULTS_PATH = "/emulator/faults"


class UnknownWorker(LookupError):  # noqa: N818 - says what it is
    """No worker of this name is in the process."""


class Door(Protocol):
    """A worker's listening socket."""

    async def refuse(self) -> None:
        """Stop listening and end every connection."""

    async def listen(self) -> None:
        """Listen again, on the same port."""


@dataclass(frozen=True, slots=True)
class _Member:
    switches: FaultSwitches
    door: Door


class FleetControl:
    """The handle on the workers of one process; `serve_workers` fills it before it says that they are ready."""

    def __init__(self) -> None:
        self._members: dict[str, _Member] = {}

    def add(self, worker: str, switches: FaultSwitches, door: Door) -> None:
        """Take a worker in; raises ValueError for a second one of a name."""
        if worker in self._members:
            raise ValueError(f"there are two workers of the name {worker}")
        self._members[worker] = _Member(switches, door)

    async def turn_on(self, worker: str, fault: Fault) -> None:
        """Turn a fault on, in place of one of its kind; raises UnknownWorker."""
        self.switch(worker, fault)
        if fault.kind is FaultKind.REFUSE:
            await self.close_door(worker)

    def switch(self, worker: str, fault: Fault) -> None:
        """The same without closing the door; raises UnknownWorker."""
        self._member(worker).switches.turn_on(fault)

    async def close_door(self, worker: str) -> None:
        """Make good that the worker refuses; raises UnknownWorker."""
        await self._member(worker).door.refuse()

    async def clear(self, worker: str) -> None:
        """Turn every fault off, and listen again; raises UnknownWorker, or OSError if the port has been taken."""
        member = self._member(worker)
        if member.switches.refusing:
            await member.door.listen()
        member.switches.clear()

    async def begin(self) -> None:
        """Close the doors of workers that were configured to refuse."""
        for worker, member in self._members.items():
            if member.switches.refusing:
                await self.close_door(worker)

    def report(self, worker: str) -> dict[str, object]:
        """The worker's switches and how often each fired; raises UnknownWorker."""
        return {"worker": worker, "faults": self._member(worker).switches.report()}

    def _member(self, worker: str) -> _Member:
        try:
            return self._members[worker]
        except KeyError:
            raise UnknownWorker(worker) from None


class FaultRoutes:
    """One worker's routes to the control."""

    def __init__(self, control: FleetControl, worker: str) -> None:
        self._control = control
        self._worker = worker

    def routes(self) -> Routes:
        """GET, PUT and DELETE of /emulator/faults, each of which answers with the report."""
        return {FAULTS_PATH: {"GET": self._get, "PUT": self._put, "DELETE": self._delete}}

    async def _get(self, call: HttpCall) -> None:
        await call.reply(200, msgspec.json.encode(self._control.report(self._name(call))))

    async def _put(self, call: HttpCall) -> None:
        """One's own door closes after the answer has gone out."""
        fault = bodies.decode(FAULT, await call.body())
        worker = self._name(call)
        if worker == self._worker and fault.kind is FaultKind.REFUSE:
            self._control.switch(worker, fault)
            await self._get(call)
            await self._control.close_door(worker)
        else:
            await self._control.turn_on(worker, fault)
            await self._get(call)

    async def _delete(self, call: HttpCall) -> None:
        await self._control.clear(self._name(call))
        await self._get(call)

    def _name(self, call: HttpCall) -> str:
        worker = call.query("worker") or self._worker
        try:
            self._control.report(worker)
        except UnknownWorker:
            raise ApiError(404, f"there is no worker {worker} here", kind="NotFoundError", param="worker") from None
        return worker
