"""Replicas that tell each other what they have in flight, by a real server and by one that is played."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from gateway.core.events import LoadsElsewhere, WorkerLoad
from gateway.core.loads_elsewhere import OtherLoads
from gateway.core.types import WorkerId
from gateway.fleet.shared.loads import (
    BELIEVED_INTERVALS,
    GONE_INTERVALS,
    LEAST_S_PER_REPLICA,
    LoadAnswer,
    SharedLoads,
)
from gateway.fleet.shared.loads_server import KEYS, RedisLoads
from gateway.fleet.shared.pins import SharedOptions
from tests.fleet.shared.redis_lab import A, B, C, LabServer, Place, needs_server
from tests.fleet.shared.shared_waiting import until

LOAD_S = 0.03


class Replica:
    """What one has in flight, and what it has heard of the others."""

    def __init__(self, options: SharedOptions, **server: Any) -> None:
        self.own: dict[WorkerId, WorkerLoad] = {}
        self.elsewhere = OtherLoads()
        self.events: list[LoadsElsewhere] = []
        self.shared = SharedLoads(
            RedisLoads(options, **server),
            options,
            clock=time.monotonic,
            loads=lambda: [*self.own.values()],
            heard=self._heard,
        )

    def has(self, worker_id: WorkerId, *numbers: int) -> None:
        self.own[worker_id] = WorkerLoad(worker_id, *numbers)

    def _heard(self, event: LoadsElsewhere) -> None:
        self.events.append(event)
        self.elsewhere.told(event)

    def others(self, worker_id: WorkerId) -> tuple[int, int, int]:
        tally = self.elsewhere.tally(worker_id)
        return tally.requests, tally.prefill_tokens, tally.kv_tokens

    async def hears(self, worker_id: WorkerId, *numbers: int) -> None:
        await until(lambda: self.others(worker_id) == numbers, f"{numbers} at {worker_id}: {self.others(worker_id)}")


@asynccontextmanager
async def replicas(
    place: Place, count: int = 2, *, load_s: float = LOAD_S, **server: Any
) -> AsyncIterator[list[Replica]]:
    options = replace(place.options, load_s=load_s)
    started = [Replica(options, **server) for _ in range(count)]
    for replica in started:
        replica.shared.start()
    try:
        yield started
    finally:
        await asyncio.gather(*(replica.shared.stop() for replica in started))


@needs_server
class TestServer:
    async def test_each_hears_the_sum_of_all_others(self, place: Place) -> None:
        async with replicas(place, 3) as (one, two, three):
            one.has(A, 1, 1000, 1200)
            two.has(A, 2, 300, 600)
            two.has(B, 1, 0, 50, 1, 50)
            await one.hears(A, 2, 300, 600)
            await one.hears(B, 1, 0, 50)
            await two.hears(A, 1, 1000, 1200)
            await two.hears(B, 0, 0, 0)
            await three.hears(A, 3, 1300, 1800)
            assert three.elsewhere.tally(B).awaited_requests == 1
            assert three.elsewhere.tally(B).awaited_kv_tokens == 50
            await until(lambda: one.shared.stats.replicas == 3)

    async def test_what_ends_is_heard_too(self, place: Place) -> None:
        async with replicas(place) as (one, two):
            one.has(A, 5, 900, 1000)
            one.has(B, 1, 0, 70)
            await two.hears(A, 5, 900, 1000)
            one.has(A, 4, 0, 800)
            del one.own[B]
            await two.hears(A, 4, 0, 800)
            await two.hears(B, 0, 0, 0)

    async def test_only_changes_are_told_after_the_first_time(self, place: Place) -> None:
        async with replicas(place) as (one, two):
            one.has(A, 1, 10, 10)
            await two.hears(A, 1, 10, 10)
            first, begin = two.events[0], len(two.events)
            one.has(B, 2, 20, 20)
            await two.hears(B, 2, 20, 20)
            named = {load.worker_id for event in two.events[begin:] for load in event.loads}
            assert (first.is_whole, named) == (True, {B})
            assert not any(event.is_whole for event in two.events[1:])

    async def test_a_replica_that_dies_has_nothing_in_flight_within_a_second(self, place: Place) -> None:
        async with replicas(place) as (one, two):
            async with replicas(place, 1) as (dies,):
                dies.has(A, 9, 9000, 9000)
                one.has(A, 1, 0, 10)
                await two.hears(A, 10, 9000, 9010)
            began_s = time.monotonic()
            await two.hears(A, 1, 0, 10)
            assert time.monotonic() - began_s >= (GONE_INTERVALS - 2) * LOAD_S
            await until(lambda: two.shared.stats.replicas == 2)

    async def test_one_that_was_taken_for_gone_tells_everything_anew(self, place: Place) -> None:
        async with replicas(place) as (one, two):
            one.has(A, 3, 30, 300)
            await two.hears(A, 3, 30, 300)
            with place.server.client() as client:
                names: Any = client.zrange(place.key("loads:alive"), 0, -1)
                for name in names:
                    client.zadd(place.key("loads:alive"), {name: 1.0})
            await until(lambda: sum(event.is_whole for event in one.events) > 1, "it began anew")
            await two.hears(A, 3, 30, 300)
            await one.hears(A, 0, 0, 0)

    @pytest.mark.parametrize("lost", ["log", "whole", "marks", "state", "alive"])
    async def test_a_server_that_lost_a_key_is_told_everything_anew(self, place: Place, lost: str) -> None:
        async with replicas(place) as (one, two):
            one.has(A, 3, 30, 300)
            two.has(A, 1, 1, 1)
            await two.hears(A, 3, 30, 300)
            with place.server.client() as client:
                client.delete(place.key(f"loads:{lost}"))
            one.has(B, 1, 1, 1)
            await two.hears(B, 1, 1, 1)
            await two.hears(A, 3, 30, 300)
            await one.hears(A, 1, 1, 1)
            await one.hears(B, 0, 0, 0)

    async def test_nothing_is_left_of_what_was_and_keys_expire(self, place: Place) -> None:
        async with replicas(place) as (one, two):
            for worker_id in (A, B, C):
                one.has(worker_id, 1, 2, 3)
            await two.hears(C, 1, 2, 3)
            one.own.clear()
            await two.hears(A, 0, 0, 0)
            await two.hears(C, 0, 0, 0)
            async with replicas(place, 1) as (later,):
                await until(lambda: bool(later.events), "it has joined")
                assert not any(any(load[1:]) for load in later.events[0].loads)
            with place.server.client() as client:
                left_ms = [client.pttl(place.key(f"loads:{name}")) for name in KEYS]
            assert all(0 < left <= 60_000 for left in left_ms)

    async def test_what_all_have_told_since_is_cut_off_the_log(self, place: Place) -> None:
        async with replicas(place, 3, log_bytes=2000) as (one, two, three):
            ends = []
            for number in range(1, 120):
                one.has(A, number, number, number)
                two.has(B, number, 0, 0)
                await three.hears(A, number, number, number)
                with place.server.client() as client:
                    ends.append(client.strlen(place.key("loads:log")))
            assert 1000 < max(ends) < 4000
            assert min(ends[20:]) < max(ends[20:])
            async with replicas(place, 1, log_bytes=2000) as (later,):
                await later.hears(A, 119, 119, 119)
                await later.hears(B, 119, 0, 0)

    async def test_a_number_that_the_log_does_not_hold_is_not_answered(self, place: Place) -> None:
        server = RedisLoads(place.options)
        await server.open()
        joined = await server.exchange("", 0, [WorkerLoad(A, 1)], gone_after_s=60.0)
        assert joined.number is not None
        for number in (joined.number + 1, -1):
            assert (await server.exchange(joined.epoch, number, [], gone_after_s=60.0)).number is None
        assert (await server.exchange("another", joined.number, [], gone_after_s=60.0)).number is None
        assert (await server.exchange(joined.epoch, joined.number, [], gone_after_s=60.0)).number == joined.number
        await server.close()

    async def test_each_says_itself_when_it_counts_as_gone(self, place: Place) -> None:
        slow, quick = RedisLoads(place.options), RedisLoads(place.options)
        for server in (slow, quick):
            await server.open()
        await slow.exchange("", 0, [WorkerLoad(A, 1)], gone_after_s=60.0)
        first = await quick.exchange("", 0, [], gone_after_s=0.001)
        await asyncio.sleep(0.05)
        assert (await quick.exchange(first.epoch, first.number or 0, [], gone_after_s=0.001)).number is None
        again = await quick.exchange("", 0, [], gone_after_s=60.0)
        assert (again.others, again.replicas) == ([WorkerLoad(A, 1)], 2)
        for server in (slow, quick):
            await server.close()

    async def test_a_cluster_takes_it_all_in_one_slot(self, cluster_node: LabServer) -> None:
        for is_cluster in (True, False):
            async with replicas(Place(cluster_node, is_cluster=is_cluster)) as (one, two):
                one.has(A, 3, 30, 300)
                await two.hears(A, 3, 30, 300)
                del one.own[A]
                await two.hears(A, 0, 0, 0)
                assert one.shared.stats.failures == 0

    async def test_a_server_that_dies_is_believed_no_longer_and_found_again(self, own_server: LabServer) -> None:
        async with replicas(Place(own_server)) as (one, two):
            one.has(A, 3, 30, 300)
            await two.hears(A, 3, 30, 300)
            own_server.kill()
            await until(lambda: not two.shared.stats.is_up, "it is down")
            now_s = time.monotonic()
            assert two.events[-1].until_s < now_s + BELIEVED_INTERVALS * LOAD_S
            one.has(A, 4, 40, 400)
            own_server.start()
            await two.hears(A, 4, 40, 400)
            assert two.shared.stats.failures > 0
            assert two.shared.stats.is_up


class PlayedServer:
    """Gives what it was told to give, and keeps what it was told."""

    def __init__(self, *answers: LoadAnswer | Exception) -> None:
        self.answers = [*answers]
        self.asked: list[tuple[str, int, tuple[WorkerLoad, ...]]] = []
        self.gone_after_s: list[float] = []
        self.opened = self.closed = 0

    async def open(self) -> None:
        self.opened += 1

    async def exchange(
        self, epoch: str, number: int, changed: Sequence[WorkerLoad], *, gone_after_s: float
    ) -> LoadAnswer:
        self.gone_after_s.append(gone_after_s)
        self.asked.append((epoch, number, tuple(changed)))
        if not self.answers:
            await asyncio.Event().wait()
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def close(self) -> None:
        self.closed += 1


def answer(number: int | None, *others: WorkerLoad, replicas: int = 2) -> LoadAnswer:
    return LoadAnswer(epoch="e", number=number, replicas=replicas, others=others)


async def played(server: PlayedServer, *, calls: int, fails: bool = False) -> list[LoadsElsewhere]:
    """What a replica with one request at A hears."""
    heard: list[LoadsElsewhere] = []

    def listen(event: LoadsElsewhere) -> None:
        heard.append(event)
        if fails:
            raise ValueError("a listener's fault")

    options = SharedOptions(url="redis://nowhere", load_s=0.005, retry_s=0.001)
    own = [WorkerLoad(A, 1, 10, 10)]
    shared = SharedLoads(server, options, clock=lambda: 7.0, loads=lambda: own, heard=listen)
    shared.start()
    await until(lambda: len(server.asked) >= calls)
    await shared.stop()
    return heard


class TestSharedLoads:
    async def test_it_says_what_it_has_once_it_knows_the_epoch_and_then_what_changed(self) -> None:
        server = PlayedServer(answer(None), answer(4, WorkerLoad(A, 2, 20, 30), WorkerLoad(B, 1)), answer(5))
        heard = await played(server, calls=4)
        load = WorkerLoad(A, 1, 10, 10)
        assert server.asked[:3] == [("", 0, (load,)), ("e", 0, (load,)), ("e", 4, ())]
        assert heard[0].loads == (WorkerLoad(A, 2, 20, 30), WorkerLoad(B, 1))
        assert [event.is_whole for event in heard] == [True, False]
        assert heard[0].at_s == 7.0
        assert heard[0].until_s == pytest.approx(7.0 + BELIEVED_INTERVALS * 0.005)

    async def test_after_a_fault_it_begins_anew(self) -> None:
        server = PlayedServer(answer(None), answer(4), OSError("lost"), answer(None), answer(9), answer(10))
        heard = await played(server, calls=7)
        assert (server.opened, server.closed >= 2) == (2, True)
        assert [number for _, number, _ in server.asked[:6]] == [0, 0, 4, 0, 0, 9]
        assert [epoch for epoch, _, _ in server.asked[:5]] == ["", "e", "e", "", "e"]
        assert [event.is_whole for event in heard] == [True, True, False]

    async def test_a_server_that_never_knows_it_is_a_fault(self) -> None:
        server = PlayedServer(answer(None), answer(None), answer(None), answer(1))
        assert len(await played(server, calls=5)) == 1
        assert server.opened == 2

    async def test_the_epoch_is_known_from_any_answer(self) -> None:
        server = PlayedServer(answer(4), answer(5))
        await played(server, calls=3)
        assert [(epoch, number) for epoch, number, _ in server.asked[:3]] == [("", 0), ("e", 4), ("e", 5)]

    async def test_among_many_replicas_it_calls_less_often_and_is_believed_and_waited_for_longer(self) -> None:
        many = 100
        server = PlayedServer(answer(4, replicas=many), answer(5, replicas=many), answer(6, replicas=1), answer(7))
        heard = await played(server, calls=5)
        paced_s = many * LEAST_S_PER_REPLICA
        assert paced_s > 0.005
        assert [event.until_s - 7.0 for event in heard[:4]] == pytest.approx(
            [BELIEVED_INTERVALS * each for each in (paced_s, paced_s, 0.005, 0.005)]
        )
        assert server.gone_after_s[:5] == pytest.approx(
            [GONE_INTERVALS * each for each in (0.005, paced_s, paced_s, 0.005, 0.005)]
        )

    async def test_a_listeners_fault_is_not_the_servers(self) -> None:
        server = PlayedServer(answer(None), answer(1), answer(2))
        assert len(await played(server, calls=4, fails=True)) == 2
        assert server.opened == 1


@pytest.mark.parametrize("load_s", [0.0, -1.0])
def test_an_interval_is_longer_than_nothing(load_s: float) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        SharedOptions(url="redis://nowhere", load_s=load_s)
