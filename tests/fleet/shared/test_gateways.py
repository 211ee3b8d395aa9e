"""Two gateways and one Redis: a conversation's turns stay together, whichever gateway they come to."""

import asyncio
from pathlib import Path

import pytest

from gateway.app import Gateway
from gateway.core.conversation.shared_key import key_of
from gateway.core.types import WorkerId
from gateway.wire.journal import read_pairs
from loadtest.replay import replay
from tests.fleet.shared.gateways_lab import ROLES, Answered, Client, gateways, home_of, named, page, told
from tests.fleet.shared.redis_lab import LabServer, Place, needs_server
from tests.fleet.shared.shared_waiting import until

pytestmark = [pytest.mark.e2e, needs_server]

TURNS = 6
MODES = [{"mode": "conserve"}, {"mode": "affinity", "pinning": "load"}]


def workers_of(answers: list[Answered]) -> set[bytes | None]:
    return {answer.worker for answer in answers}


async def asked(gateway: Gateway) -> int:
    """How many requests have asked where their conversation lives."""
    lines = [line for line in (await page(gateway)).splitlines() if line.startswith("tidegate_shared_calls_total")]
    assert len(lines) == 3
    return round(sum(float(line.split()[-1]) for line in lines))


def agrees(gateway: Gateway, place: Place) -> bool:
    """Whether it knows every conversation to be where its pin is."""
    pins = place.stored().pins
    known = {key_of(one): one.worker_id for one in gateway.router.conversations.book}
    return all(key in pins and pins[key][0] == worker_id for key, worker_id in known.items())


@pytest.mark.parametrize("client", [named("a"), Client("nameless")], ids=["named", "nameless"])
async def test_turns_that_alternate_between_gateways_stay_on_one_worker_with_one_transfer(
    place: Place, client: Client
) -> None:
    async with gateways(place) as both:
        for number in range(TURNS):
            await client.turn(both[number % 2])
        assert [answer.status for answer in client.answered] == [200] * TURNS
        assert [answer.path for answer in client.answered] == [b"remote", *[b"local"] * (TURNS - 1)]
        assert len(workers_of(client.answered)) == 1
        (home,) = workers_of(client.answered)
        await until(lambda: [worker.encode() for worker, _, _ in place.stored().pins.values()] == [home], "one pin")
        place.stored().check()


@pytest.mark.parametrize("rules", MODES, ids=["conserve", "load"])
async def test_first_calls_at_both_at_once_land_together(place: Place, rules: dict[str, str]) -> None:
    async with gateways(place, **rules) as both:
        for number in range(5):
            clients = [named(f"at once {number}") for _ in range(4)]
            started = [client.start(both[index % 2]) for index, client in enumerate(clients)]
            await asyncio.gather(*(client.task for client in started))
            answers = [told(client) for client in started]
            assert [answer.status for answer in answers] == [200] * 4
            assert len(workers_of(answers)) == 1
    place.stored().check()


async def test_turns_at_one_gateway_ask_once_and_those_without_a_name_never(place: Place) -> None:
    async with gateways(place) as (one, other):
        name, nameless = named("a"), Client("nameless")
        for _ in range(3):
            await name.turn(one)
            await nameless.turn(one)
        assert await asked(one) == 1
        await nameless.turn(other)
        assert await asked(other) == 1


async def test_without_a_server_nothing_fails_and_when_it_is_back_all_agree(own_server: LabServer) -> None:
    place = Place(own_server)
    async with gateways(place) as both:
        before, begun, later = named("before"), named("begun"), Client("later")
        await before.turn(both[0])
        await later.turn(both[0])
        own_server.kill()
        for number in range(4):
            await begun.turn(both[number % 2])
            await before.turn(both[number % 2])
            await later.turn(both[number % 2])
        own_server.start()
        await until(lambda: len(place.stored().pins) >= 3 and all(agrees(gateway, place) for gateway in both))
        for client in (before, begun, later):
            ended = [await client.turn(both[number % 2]) for number in range(4)]
            assert len(workers_of(ended)) == 1
            assert [answer.path for answer in ended] == [b"local"] * 4
            assert {answer.status for answer in client.answered} == {200}
        place.stored().check()


async def test_a_lost_decoder_moves_a_conversation_once_and_both_know(place: Place) -> None:
    async with gateways(place) as (one, other):
        client = named("a")
        first = await client.turn(one)
        await client.turn(other)
        assert first.worker is not None
        lost = WorkerId(first.worker.decode())
        one.registry.remove(lost, force=True)
        moved = await client.turn(one)
        assert moved.worker != first.worker
        await until(lambda: home_of(other).worker_id == home_of(one).worker_id, "the other hears of it")
        calls = await asked(other)
        rest = [await client.turn(gateway) for gateway in (other, one, other)]
        assert await asked(other) == calls
        assert workers_of(rest) == {moved.worker}
        paths = [answer.path for answer in client.answered]
        assert paths == [b"remote", b"local", b"remote", b"local", b"local", b"local"]
        assert {answer.status for answer in client.answered} == {200}


async def test_a_decoder_that_both_have_lost_is_left_for_one_other(place: Place) -> None:
    async with gateways(place) as both:
        client = named("a")
        first = await client.turn(both[0])
        await client.turn(both[1])
        assert first.worker is not None
        for gateway in both:
            gateway.registry.remove(WorkerId(first.worker.decode()), force=True)
        started = [client.start(gateway) for gateway in both]
        await asyncio.gather(*(request.task for request in started))
        assert len(workers_of([told(request) for request in started])) == 1
        assert home_of(both[0]).worker_id == home_of(both[1]).worker_id


async def test_the_last_turn_gives_the_room_back_everywhere(place: Place) -> None:
    async with gateways(place) as both:
        client = named("a")
        for gateway in both:
            await client.turn(gateway)
        client.headers.append((b"x-dynamo-session-final", b"true"))
        await client.turn(both[0])
        await until(lambda: not place.stored().pins, "it is closed")
        await until(lambda: not len(both[1].router.conversations.book), "the other has heard")


async def test_both_journals_give_the_same_bytes_again(place: Place, tmp_path: Path) -> None:
    async with gateways(place, journals=tmp_path) as both:
        clients = [named("a"), Client("nameless")]
        for number in range(TURNS):
            await asyncio.gather(*(client.turn(both[number % 2]) for client in clients))
        lost = WorkerId((clients[0].answered[0].worker or b"").decode())
        for gateway in both:
            gateway.registry.remove(lost, force=True)
        for client in clients:
            await client.turn(both[0])
    told_by = []
    for number in range(2):
        journal = tmp_path / f"{number}.jsonl"
        report = replay(journal)
        assert report.mismatches == []
        with journal.open("rb") as lines:
            told_by.append({type(call.payload).__name__ for call, _ in read_pairs(lines)})
    for names in told_by:
        assert {"ConversationTold", "ConversationClosed", "KvPinned", "LoadsElsewhere"} <= names


async def test_gateways_tell_each_other_what_they_have_in_flight(place: Place) -> None:
    async with gateways(place) as (one, other):
        client = named("a")
        turn = client.start(one)

        def load_elsewhere() -> int:
            return sum(other.router.fleet.elsewhere.tally(WorkerId(name)).requests for name in ROLES)

        await until(lambda: load_elsewhere() > 0, "the other has heard that it runs")
        assert not len(other.router.ledger)
        await turn.task
        await until(lambda: load_elsewhere() == 0, "the other has heard that it ended")
        scraped = await page(other)
        assert "tidegate_shared_replicas 2.0" in scraped
        assert "tidegate_shared_load_failures_total 0.0" in scraped
