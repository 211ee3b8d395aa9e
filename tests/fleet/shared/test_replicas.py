"""Several replicas on one server: they agree, they hear of each other, and their sums are those of the pins."""

import asyncio
import random
import time

import pytest

from gateway.core.conversation.identity import ConversationId
from gateway.core.types import WorkerId
from gateway.fleet.shared.pins import Pin
from tests.fleet.shared.redis_lab import TALK, A, B, C, Place, Replica, needs_server, pin, replicas
from tests.fleet.shared.shared_waiting import PATIENCE_S, until

pytestmark = [pytest.mark.e2e, needs_server]

WORKERS = (A, B, C)


async def test_claims_of_one_conversation_at_once_land_together(place: Place) -> None:
    async with replicas(place.options, 4) as everyone:
        for conversation in range(50):
            workers = random.Random(conversation).choices(WORKERS, k=len(everyone))
            claims = await asyncio.gather(
                *(
                    replica.shared.claim(conversation, pin(worker, 10), workers=WORKERS)
                    for replica, worker in zip(everyone, workers, strict=True)
                )
            )
            assert [replica.shared.stats.timed_out for replica in everyone] == [0, 0, 0, 0]
            answered = [claim for claim in claims if claim is not None]
            assert len(answered) == len(everyone)
            (standing,) = {claim.pin.worker_id for claim in answered}
            assert standing in workers
            assert all(claim.occupancy[standing] >= 10 for claim in answered)
    stored = place.stored()
    stored.check()
    assert len(stored.pins) == 50


async def test_two_that_move_at_once_agree(place: Place) -> None:
    async with replicas(place.options, 2) as (one, other):
        for conversation in range(30):
            await one.shared.claim(conversation, pin(A))
            pins = await asyncio.gather(
                one.shared.move(conversation, A, pin(B, 200)), other.shared.move(conversation, A, pin(C, 300))
            )
            standing = {moved.worker_id for moved in pins if moved is not None}
            assert len(standing) == 1
            assert (place.stored().pins[conversation][0],) == tuple(standing)
    place.stored().check()


async def test_a_move_from_where_it_is_not_any_more_is_told_where_it_is(place: Place) -> None:
    async with replicas(place.options, 1) as (one,):
        await one.shared.claim(1, pin(A))
        assert (await one.shared.move(1, A, pin(B, 250))) is not None
        late = await one.shared.move(1, A, pin(C))
    assert late is not None
    assert (late.worker_id, late.kv_tokens) == (B, 250)


async def test_the_others_hear_of_a_move_and_of_an_end_and_nobody_of_what_it_did_itself(place: Place) -> None:
    async with replicas(place.options, 3) as (one, other, third):
        await one.shared.claim(TALK, pin(A))
        await one.shared.move(TALK, A, pin(B))
        other.shared.close(TALK)
        await until(lambda: len(third.moves) == 2, "the third hears of both")
        await until(lambda: len(one.moves) == 1, "the first hears of the end")
        assert third.moves == [(TALK, B), (TALK, None)]
        assert one.moves == [(TALK, None)]
        assert other.moves == [(TALK, B)]
    assert place.stored().pins == {}


async def test_a_touch_is_seen_by_the_next_claim_and_in_everybodys_occupancy(place: Place) -> None:
    async with replicas(place.options, 2) as (one, other):
        await one.shared.claim(1, pin(A, 100))
        one.shared.touch(1, pin(A, 5000, turns=3))
        await until(lambda: other.occupancy == {A: 5000}, "the other knows the occupancy")
        claim = await other.shared.claim(1, pin(B), workers=[A, B])
    assert claim is not None
    assert (claim.pin.worker_id, claim.pin.kv_tokens, claim.pin.turns) == (A, 5000, 3)
    assert claim.occupancy == {A: 5000, B: 0}


async def test_a_stale_touch_moves_nothing_and_its_replica_is_put_right(place: Place) -> None:
    async with replicas(place.options, 1) as (one,):
        await one.shared.claim(1, pin(A))
        one.shared.touch(1, pin(B, idle_s=30.0))
        await until(lambda: one.moves == [(1, A)], "it is put right")
    assert place.stored().pins == {1: (A, 100, 1)}


async def test_a_pin_that_nobody_touches_goes_and_leaves_no_tokens_behind(place: Place) -> None:
    short = Place(place.server, idle_ttl_s=0.5)
    async with replicas(short.options, 2) as (one, other):
        for number in range(60):
            one.shared.touch(number, pin(A, 1000))
        await one.has_sent()
        until_s = time.monotonic() + PATIENCE_S
        while short.stored().pins.keys() - {TALK} or other.occupancy.get(A):
            assert time.monotonic() < until_s
            short.stored().check()
            other.shared.touch(TALK, pin(B, 3))  # without it, all keys would go as a whole
            await asyncio.sleep(0.02)
        short.stored().check()


async def test_the_sums_hold_while_everybody_does_everything_at_once(place: Place) -> None:
    async def live(replica: Replica, rng: random.Random) -> None:
        for _ in range(80):
            conversation, worker = rng.randrange(12), rng.choice(WORKERS)
            proposed = pin(worker, rng.randrange(50_000), turns=rng.randrange(9), idle_s=rng.choice([0.0, 5.0]))
            match rng.randrange(4):
                case 0:
                    assert await replica.shared.claim(conversation, proposed) is not None
                case 1:
                    assert await replica.shared.move(conversation, rng.choice(WORKERS), proposed) is not None
                case 2:
                    replica.shared.touch(conversation, proposed)
                case _:
                    replica.shared.close(conversation)

    async with replicas(place.options, 3) as everyone:
        await asyncio.gather(*(live(replica, random.Random(number)) for number, replica in enumerate(everyone)))
        await asyncio.gather(*(replica.has_sent() for replica in everyone))
    place.stored().check()


async def test_what_is_queued_is_sent_before_the_end(place: Place) -> None:
    slow = Place(place.server, flush_s=60.0)
    async with replicas(slow.options, 1) as (one,):
        for number in range(200):
            one.shared.touch(number, pin(A, 1))
    assert slow.stored().sums == {A: 200}
    assert await one.shared.claim(1, pin(A)) is None  # and then nobody knows


def known(*pins: tuple[int, WorkerId, float]) -> dict[ConversationId, Pin]:
    """ConversationId, worker, and how long ago its last turn was."""
    return {ConversationId(conversation): pin(worker, idle_s=idle_s) for conversation, worker, idle_s in pins}


async def test_what_two_replicas_know_is_merged_by_who_saw_it_last(place: Place) -> None:
    async with replicas(place.options, 1) as (one,):
        for conversation, there in known((1, A, 60.0), (2, A, 10.0), (4, A, 10.0)).items():
            one.shared.touch(conversation, there)
        await one.has_sent()
        late = Replica(place.options)
        late.known = known((1, B, 10.0), (2, B, 60.0), (3, B, 300.0), (5, B, 601.0))
        await late.shared.start()
        await late.has_sent()
        await until(lambda: bool(one.moves), "the other hears what was moved")
        await late.shared.stop()
        assert one.moves == [(1, B)]
    assert late.moves == [(2, A)]
    stored = place.stored()
    stored.check()
    assert {conversation: worker for conversation, (worker, _, _) in stored.pins.items()} == {1: B, 2: A, 3: B, 4: A}
