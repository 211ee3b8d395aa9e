"""The loads of one gateway's processes: what the parent keeps, and the same over its socket."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.core.events import WorkerLoad
from gateway.core.loads_elsewhere import OtherLoads
from gateway.core.types import WorkerId
from gateway.fleet.shared.loads import SharedLoads
from gateway.fleet.shared.loads_local import Heard, LoadHub, LocalLoads, Told, loads_passed_on, shared_locally
from tests.fleet.shared.shared_waiting import until

A, B = WorkerId("a"), WorkerId("b")
GONE_S = 1.0


class Hub:
    """A hub with a clock of its own, and processes that call it by their names."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.hub = LoadHub(lambda: self.now_s)
        self.numbers: dict[int, int] = {}

    def call(self, name: int, *changed: WorkerLoad) -> Heard:
        told = Told(self.numbers.get(name, 0), GONE_S, [[*load] for load in changed])
        heard = self.hub.exchange(name, told)
        if heard.number is not None:
            self.numbers[name] = heard.number
        return heard


def load(worker_id: WorkerId, *numbers: int) -> WorkerLoad:
    return WorkerLoad(worker_id, *numbers)


# -- what the parent keeps -------------------------------------------------------------------------------------------


def test_each_hears_the_sum_of_all_others() -> None:
    hub = Hub()
    hub.call(1, load(A, 1, 1000, 1200, 1, 1200))
    hub.call(2, load(A, 2, 300, 600), load(B, 1, 0, 50))
    assert hub.call(1).others == [["a", 2, 300, 600, 0, 0], ["b", 1, 0, 50, 0, 0]]
    assert hub.call(3).others == [["a", 3, 1300, 1800, 1, 1200], ["b", 1, 0, 50, 0, 0]]
    assert hub.call(3).replicas == 3


def test_only_what_has_changed_is_heard_again() -> None:
    hub = Hub()
    hub.call(1, load(A, 1), load(B, 1))
    hub.call(2)
    hub.call(1, load(A, 1), load(B, 2))
    assert hub.call(2).others == [["b", 2, 0, 0, 0, 0]]
    assert hub.call(2).others == []


def test_what_ends_is_heard_as_zeros() -> None:
    hub = Hub()
    hub.call(1, load(A, 5))
    hub.call(2)
    hub.call(1, load(A))
    assert hub.call(2).others == [["a", 0, 0, 0, 0, 0]]


def test_one_that_leaves_has_nothing_in_flight() -> None:
    hub = Hub()
    hub.call(1, load(A, 5))
    hub.call(2, load(A, 1))
    hub.call(3)
    hub.hub.leave(1)
    assert hub.call(3).others == [["a", 1, 0, 0, 0, 0]]
    assert hub.call(2).others == [["a", 0, 0, 0, 0, 0]]


def test_one_that_is_silent_has_nothing_in_flight_and_must_tell_everything_anew() -> None:
    hub = Hub()
    hub.call(1, load(A, 5))
    hub.now_s = 0.9
    assert hub.call(2).others == [["a", 5, 0, 0, 0, 0]]
    hub.now_s = 1.1
    assert hub.call(2).others == [["a", 0, 0, 0, 0, 0]]
    assert hub.call(1, load(B, 1)).number is None
    assert hub.call(2).others == []
    hub.numbers[1] = 0
    assert hub.call(1, load(A, 6), load(B, 1)).number == 1
    assert hub.call(2).others == [["a", 6, 0, 0, 0, 0], ["b", 1, 0, 0, 0, 0]]


def test_one_that_begins_anew_has_only_what_it_says() -> None:
    hub = Hub()
    hub.call(1, load(A, 5))
    hub.call(2)
    hub.numbers[1] = 0
    hub.call(1, load(B, 1))
    assert hub.call(2).others == [["a", 0, 0, 0, 0, 0], ["b", 1, 0, 0, 0, 0]]


# -- over the socket -------------------------------------------------------------------------------------------------


class Process:
    """What one has in flight, and what it has heard of the others."""

    def __init__(self, path: Path) -> None:
        self.own: list[WorkerLoad] = []
        self.elsewhere = OtherLoads()
        self.shared: SharedLoads = shared_locally(
            path, 0.01, clock=time.monotonic, loads=lambda: self.own, heard=self.elsewhere.told
        )

    def requests(self, worker_id: WorkerId) -> int:
        return self.elsewhere.tally(worker_id).requests


@asynccontextmanager
async def processes(path: Path, count: int) -> AsyncIterator[list[Process]]:
    started = [Process(path) for _ in range(count)]
    for process in started:
        process.shared.start()
    try:
        yield started
    finally:
        await asyncio.gather(*(process.shared.stop() for process in started))


async def test_processes_hear_each_other_by_their_parent(tmp_path: Path) -> None:
    path = tmp_path / "loads"
    async with loads_passed_on(path, time.monotonic), processes(path, 2) as (one, two):
        one.own = [load(A, 3, 30, 300)]
        await until(lambda: two.requests(A) == 3)
        async with processes(path, 1) as (late,):
            late.own = [load(A, 1)]
            await until(lambda: late.requests(A) == 3)
            await until(lambda: two.requests(A) == 4)
        await until(lambda: two.requests(A) == 3)
        one.own = []
        await until(lambda: two.requests(A) == 0)
        assert two.shared.stats.replicas >= 2
        assert one.shared.stats.failures == 0


async def test_a_parent_that_comes_later_is_found(tmp_path: Path) -> None:
    path = tmp_path / "loads"
    async with processes(path, 2) as (one, two):
        one.own = [load(A, 3)]
        await until(lambda: one.shared.stats.failures > 0)
        async with loads_passed_on(path, time.monotonic):
            await until(lambda: two.requests(A) == 3)


async def test_what_is_no_message_ends_the_connection_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "loads"
    async with loads_passed_on(path, time.monotonic), processes(path, 2) as (one, two):
        for nonsense in (b"\xff\xff\xff\xff", b"\x00\x00\x00\x01\xc0", b"\x00"):
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(nonsense)
            writer.write_eof()
            assert await reader.read() == b""
            writer.close()
        one.own = [load(A, 3)]
        await until(lambda: two.requests(A) == 3)


async def test_a_lost_parent_is_told_to_whoever_calls(tmp_path: Path) -> None:
    path = tmp_path / "loads"
    server = LocalLoads(path)
    async with loads_passed_on(path, time.monotonic):
        await server.open()
        assert (await server.exchange("", 0, [], gone_after_s=GONE_S)).replicas == 1
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await server.exchange("", 1, [], gone_after_s=GONE_S)
    await server.close()
