"""A server that goes away, hangs, comes back empty or takes no writes: nobody waits for it, and nothing is lost."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import pytest

from gateway.fleet.shared import store
from gateway.fleet.shared.pins import SharedOptions
from tests.fleet.shared.redis_lab import (
    TALK,
    A,
    B,
    LabServer,
    Place,
    Replica,
    needs_server,
    pin,
    replicas,
)
from tests.fleet.shared.shared_waiting import PATIENCE_S, at_once, until

pytestmark = [pytest.mark.e2e]

DEADLINE_S = 0.05
CROWDED_S = 10.0
"""What a crowded machine may add to a deadline."""


@contextlib.asynccontextmanager
async def silent_server() -> AsyncIterator[str]:
    """The URL of one that accepts, reads and never answers."""

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while await reader.read(4096):
                pass
        writer.close()

    server = await asyncio.start_server(swallow, "127.0.0.1", 0)
    async with server:
        yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_a_server_that_never_answers_delays_nothing_but_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "OPEN_S", 0.2)
    async with silent_server() as url, replicas(SharedOptions(url=url, retry_s=0.05), 1, is_there=False) as (one,):
        assert at_once(one.shared.claim(1, pin(A))) is None
        assert at_once(one.shared.move(1, A, pin(B))) is None
        one.shared.touch(2, pin(A))
        one.shared.close(3)
        await until(lambda: one.shared.stats.errors.get("TimeoutError", 0) >= 2, "it has tried again")
        assert not one.shared.stats.is_up
        assert one.shared.stats.downs == 1
        assert one.shared.stats.refused == 2
        assert one.shared.stats.queued == 3


async def test_no_server_at_all_stops_no_start() -> None:
    with contextlib.closing(await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)) as gone:
        port = gone.sockets[0].getsockname()[1]
    async with replicas(SharedOptions(url=f"redis://127.0.0.1:{port}"), 1, is_there=False) as (one,):
        assert await one.shared.claim(1, pin(A)) is None
        assert one.shared.stats.errors == {"ConnectionError": 1}


@needs_server
async def test_a_server_that_hangs_is_waited_for_no_longer_than_the_deadline_and_then_not_at_all(
    own_server: LabServer,
) -> None:
    place = Place(own_server, deadline_s=DEADLINE_S, refresh_s=60.0)
    async with replicas(place.options, 1) as (one,):
        with own_server.hanging():
            began_s = time.monotonic()
            assert await asyncio.wait_for(one.shared.claim(1, pin(A)), DEADLINE_S + CROWDED_S) is None
            assert time.monotonic() - began_s > DEADLINE_S / 2
            await one.is_down()
            assert at_once(one.shared.claim(1, pin(A))) is None
        await one.is_up()
        await _until_claimed(one)


@needs_server
async def test_a_server_that_comes_back_empty_is_told_everything(own_server: LabServer) -> None:
    place = Place(own_server)
    async with replicas(place.options, 2) as everyone:
        for number, replica in enumerate(everyone):
            for conversation in range(number * 100, number * 100 + 100):
                replica.known[conversation] = pin(A if number else B, 10)
                assert await replica.shared.claim(conversation, replica.known[conversation]) is not None
        own_server.kill()
        await asyncio.gather(*(replica.is_down() for replica in everyone))
        assert at_once(everyone[0].shared.claim(1000, pin(A))) is None
        assert at_once(everyone[0].shared.move(0, B, pin(A, 50))) is None
        everyone[0].known[0] = pin(A, 50)
        everyone[1].shared.close(100)
        del everyone[1].known[100]
        own_server.start()
        await asyncio.gather(*(replica.is_up() for replica in everyone))
        await asyncio.gather(*(replica.has_sent() for replica in everyone))
        stored = place.stored()
        stored.check()
        assert stored.pins.keys() == everyone[0].known.keys() | everyone[1].known.keys()
        assert stored.sums == {A: 50 + 99 * 10, B: 99 * 10}
        await until(lambda: everyone[0].occupancy == stored.sums, "the occupancy is that of the new server")


@needs_server
async def test_what_ended_meanwhile_is_closed_when_the_server_is_back(own_server: LabServer) -> None:
    place = Place(own_server, deadline_s=0.1)
    async with replicas(place.options, 1) as (one,):
        await _until_claimed(one)
        with own_server.hanging():
            await one.is_down()
            one.shared.close(1)
        await one.is_up()
        await until(lambda: place.stored().pins == {}, "it is closed")


@needs_server
async def test_a_server_that_takes_no_writes_is_as_good_as_none(own_server: LabServer) -> None:
    place = Place(own_server)
    async with replicas(place.options, 1) as (one,):
        with own_server.client() as client:
            client.replicaof("127.0.0.1", "1")
            await one.is_down()
            assert at_once(one.shared.claim(1, pin(A))) is None
            assert one.shared.stats.errors.get("ReadOnlyError")
            client.replicaof("NO", "ONE")
        await one.is_up()
        await _until_claimed(one)
    assert one.shared.stats.downs == 1


@needs_server
async def test_a_lost_subscription_alone_has_everything_told_once_more(own_server: LabServer) -> None:
    place = Place(own_server)
    async with replicas(place.options, 1) as (one,):
        one.known[TALK] = pin(A, 5)
        with own_server.client() as client:
            client.client_kill_filter(_type="pubsub")
        await until(lambda: place.stored().sums == {A: 5}, "it was told")
        assert one.shared.stats.downs == 1


async def _until_claimed(replica: Replica) -> None:
    """Claim until it is answered: a crowded machine may miss a short deadline now and then."""
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        if await replica.shared.claim(1, pin(A)) is not None:
            return
        await asyncio.sleep(0.02)
    raise AssertionError("no claim was answered")
