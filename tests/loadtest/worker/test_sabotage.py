"""Calls that a fault makes wait, on an application that only counts: they end with their client, or with the server."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from loadtest.worker.app import HttpCall, WorkerApp
from loadtest.worker.faults import Fault, FaultKind, FaultSwitches
from loadtest.worker.sabotage import Saboteur
from tests.loadtest.worker.worker_lab import CHAT, settle

A_DAY_S = 86_400.0
WAITS = [Fault(kind=FaultKind.HANG), Fault(kind=FaultKind.SLOW, delay_s=A_DAY_S)]


class Transport:
    def __init__(self, inbox: asyncio.Queue[dict[str, Any]]) -> None:
        self._inbox = inbox

    def close(self) -> None:
        self._inbox.put_nowait({"type": "http.disconnect"})


@dataclass
class OneCall:
    """A saboteur with one fault, and a call to it."""

    fault: Fault
    served: int = 0
    inbox: asyncio.Queue[dict[str, Any]] = field(default_factory=asyncio.Queue)
    sent: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        app = WorkerApp({CHAT: {"POST": self._serve}})
        self.saboteur = Saboteur(app, FaultSwitches([self.fault]), drop_kv=lambda _: False)
        self.inbox.put_nowait({"type": "http.request", "body": b"{}", "more_body": False})
        self.task = asyncio.create_task(self.saboteur(self._scope(), self.inbox.get, self._send))

    def _scope(self) -> dict[str, Any]:
        extensions = {"emulator.transport": {"transport": Transport(self.inbox)}}
        return {"type": "http", "method": "POST", "path": CHAT, "headers": [], "extensions": extensions}

    async def _serve(self, call: HttpCall) -> None:
        await call.body()
        self.served += 1

    async def _send(self, message: Any) -> None:
        self.sent.append(message)


@pytest.mark.parametrize("fault", WAITS, ids=lambda fault: fault.kind)
async def test_a_call_that_waits_ends_as_its_client_leaves(fault: Fault) -> None:
    call = OneCall(fault)
    await settle()
    assert not call.task.done()
    call.inbox.put_nowait({"type": "http.disconnect"})
    await settle()
    assert call.task.done()
    assert (call.served, call.sent) == (0, [])


@pytest.mark.parametrize("fault", WAITS, ids=lambda fault: fault.kind)
async def test_a_call_that_waits_ends_as_the_server_stops(fault: Fault) -> None:
    call = OneCall(fault)
    await settle()
    call.saboteur.break_off()
    await settle()
    assert call.task.done()
    assert (call.served, call.sent) == (0, [])


async def test_a_slow_call_is_served_once_its_delay_is_over() -> None:
    call = OneCall(Fault(kind=FaultKind.SLOW, delay_s=1e-3))
    await call.task
    assert call.served == 1
