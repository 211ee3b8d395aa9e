"""The script, on a real server: one call after another, against a plain dictionary that keeps the same rules."""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace

import pytest

from gateway.core.conversation.identity import ConversationId
from gateway.core.types import WorkerId
from gateway.fleet.shared.codec import Op, Step, step_of
from gateway.fleet.shared.pins import Pin
from gateway.fleet.shared.server import RedisServer
from tests.fleet.shared.redis_lab import TALK, A, B, C, LabServer, Place, needs_server, pin
from tests.fleet.shared.shared_waiting import until

pytestmark = [pytest.mark.e2e, needs_server]

WORKERS = (A, B, C)
LONG_AGO_S = 7.0
"""Between two old states: more than a call takes, and more than the script's slack."""


@contextlib.asynccontextmanager
async def opened(place: Place) -> AsyncIterator[RedisServer]:
    server = RedisServer(place.options, clock=time.monotonic)
    try:
        await server.open()
        yield server
    finally:
        await server.close()


def close(conversation: ConversationId, *, idle_s: float = 0.0) -> Step:
    return Step(op=Op.CLOSE, conversation=conversation, seen_s=time.monotonic() - idle_s)


@dataclass
class Model:
    """What should be stored: per conversation worker, KV tokens, turns and when it was last seen."""

    pins: dict[ConversationId, tuple[WorkerId, int, int, float]] = field(default_factory=dict)

    def do(self, step: Step, at: float, seen: float) -> WorkerId | None:
        """Do one step of a call made `at`; the worker that stands in its way, if one does."""
        sent = (step.worker_id, step.kv_tokens, step.turns)
        stands = self.pins.get(step.conversation)
        other = stands[0] if stands is not None and stands[0] != step.worker_id else None
        match step.op:
            case Op.CLAIM if stands is not None:
                self.pins[step.conversation] = (*stands[:3], at)
                return stands[0]
            case Op.MOVE if stands is not None and stands[0] != step.from_worker:
                return stands[0]
            case Op.CLAIM | Op.MOVE:
                self.pins[step.conversation] = (*sent, at)
            case Op.PUT if stands is None or (other and seen > stands[3]):
                self.pins[step.conversation] = (*sent, seen)
            case Op.PUT if other:
                return other
            case Op.PUT if stands is not None and seen >= stands[3]:
                self.pins[step.conversation] = (*sent[:2], max(step.turns, stands[2]), seen)
            case Op.CLOSE if stands is not None and stands[3] > seen:
                return stands[0]
            case Op.CLOSE:
                self.pins.pop(step.conversation, None)
        return None


class Course:
    """Random steps, and when the conversation was last seen as the model counts it: calls from 1 on, the past below."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._began_s = time.monotonic()
        self._past = rng.sample(range(1, 80), 79)

    def steps(self, at: int) -> list[tuple[Step, float]]:
        return [self._step(at) for _ in range(self._rng.randint(1, 5))]

    def _step(self, at: int) -> tuple[Step, float]:
        op = self._rng.choice([Op.CLAIM, Op.PUT, Op.PUT, Op.PUT, Op.MOVE, Op.CLOSE])
        seen_s, seen = time.monotonic() + 1.0, float(at)
        if op in (Op.PUT, Op.CLOSE) and self._past and self._rng.random() < 0.3:
            seen = -float(self._past.pop())
            seen_s = self._began_s + seen * LONG_AGO_S
        is_close = op is Op.CLOSE
        step = Step(
            op=op,
            conversation=self._rng.randrange(8),
            seen_s=seen_s,
            worker_id=WorkerId("") if is_close else self._rng.choice(WORKERS),
            kv_tokens=0 if is_close else self._rng.choice([0, 1, 512, 20_000, 131_072]),
            turns=0 if is_close else self._rng.randint(1, 30),
            from_worker=self._rng.choice(WORKERS) if op is Op.MOVE else WorkerId(""),
        )
        return step, seen


@pytest.mark.parametrize("seed", range(3))
async def test_any_course_of_calls_leaves_what_the_model_has(place: Place, seed: int) -> None:
    rng = random.Random(seed)
    model, course = Model(), Course(rng)
    async with opened(place) as one, opened(place) as other:
        for at in range(1, 100):
            steps = course.steps(at)
            reply = await rng.choice([one, other]).run([step for step, _ in steps], workers=None, sweep=20)
            expected = [model.do(step, at, seen) for step, seen in steps]
            assert [None if answer is None else answer.worker_id for answer in reply.answers] == expected
            stored = place.stored()
            stored.check()
            assert dict(stored.pins) == {key: value[:3] for key, value in model.pins.items()}
            assert reply.occupancy == stored.sums
            await asyncio.sleep(0.002)  # the server's clock has to go on by a millisecond from call to call


async def test_expired_pins_are_swept_a_few_at_a_time_and_take_their_tokens_along(place: Place) -> None:
    async with opened(place) as server:
        old = [step_of(Op.CLAIM, number, pin(A, 1000)) for number in range(50)]
        await server.run(old, workers=(), sweep=0)
        place.age(by_s=700.0)
        replies = [await server.run([step_of(Op.PUT, TALK, pin(B, 7))], workers=None, sweep=20) for _ in range(4)]
    assert [reply.swept for reply in replies] == [20, 20, 10, 0]
    assert [reply.occupancy.get(A, 0) for reply in replies] == [30_000, 10_000, 0, 0]
    stored = place.stored()
    stored.check()
    assert stored.pins == {TALK: (B, 7, 1)}


async def test_an_expired_pin_does_not_stand_even_where_it_was_not_swept(place: Place) -> None:
    async with opened(place) as server:
        before = [step_of(Op.CLAIM, name, pin(A, 1000)) for name in range(1, 5)]
        await server.run(before, workers=(), sweep=0)
        place.age(by_s=700.0)
        after = [
            step_of(Op.CLAIM, 1, pin(B, 1)),
            step_of(Op.MOVE, 2, pin(B, 2), C),
            step_of(Op.PUT, 3, pin(B, 4, idle_s=500.0)),
            close(4, idle_s=500.0),
        ]
        reply = await server.run(after, workers=None, sweep=0)
    assert list(reply.answers) == [None, None, None, None]
    assert reply.occupancy == {B: 7}
    place.stored().check()


async def test_a_state_that_has_expired_on_its_way_is_not_stored(place: Place) -> None:
    async with opened(place) as server:
        reply = await server.run([step_of(Op.PUT, 1, pin(A, idle_s=601.0))], workers=None, sweep=20)
    assert reply.occupancy == {}
    assert place.stored().pins == {}


async def test_a_state_that_came_late_by_a_moment_counts_but_ages_nothing(place: Place) -> None:
    async with opened(place) as server:
        await server.run([step_of(Op.PUT, 1, pin(A, 100, turns=5))], workers=(), sweep=20)
        before = place.stored()
        await server.run([step_of(Op.PUT, 1, pin(A, 200, turns=4, idle_s=0.2))], workers=(), sweep=20)
    after = place.stored()
    assert after.pins == {1: (A, 200, 5)}
    assert after.seen_ms[1] >= before.seen_ms[1]


async def test_a_claim_is_answered_with_the_pin_as_it_was_and_keeps_it_alive(place: Place) -> None:
    async with opened(place) as server:
        await server.run([step_of(Op.PUT, 1, pin(A, 300, turns=4, idle_s=100.0))], workers=(), sweep=20)
        claims = [step_of(Op.CLAIM, 1, pin(B))]
        first = await server.run(claims, workers=[A, B], sweep=20)
        second = await server.run(claims, workers=[A, B], sweep=20)
        now_s = time.monotonic()
    (was,), (is_now,) = first.answers, second.answers
    assert was is not None
    assert is_now is not None
    assert (was.worker_id, was.kv_tokens, was.turns) == (A, 300, 4)
    assert now_s - was.last_seen_s == pytest.approx(100.0, abs=30.0)
    assert now_s - is_now.last_seen_s == pytest.approx(0.0, abs=30.0)
    assert first.occupancy == {A: 300, B: 0}


@pytest.mark.parametrize("lost", ["pins", "seen", "sums"])
async def test_a_server_that_lost_one_of_the_keys_begins_anew(place: Place, lost: str) -> None:
    async with opened(place) as server:
        await server.run([step_of(Op.CLAIM, number, pin(A)) for number in range(3)], workers=(), sweep=20)
        with place.server.client() as client:
            client.delete(place.key(lost))
        reply = await server.run([step_of(Op.PUT, 2, pin(B, 9))], workers=None, sweep=20)
    assert reply.occupancy == {B: 9}
    place.stored().check()


async def test_everything_goes_where_no_replica_is_left(place: Place) -> None:
    async with opened(place) as server:
        await server.run([step_of(Op.CLAIM, 1, pin(A))], workers=(), sweep=20)
    with place.server.client() as client:
        left_ms = [client.pttl(place.key(name)) for name in ("pins", "seen", "sums")]
    assert all(600_000 < left <= 1_200_000 for left in left_ms)


async def test_the_script_comes_back_where_the_server_forgot_it(place: Place) -> None:
    async with opened(place) as server:
        await server.run([step_of(Op.CLAIM, 1, pin(A))], workers=(), sweep=20)
        with place.server.client() as client:
            client.script_flush()
        reply = await server.run([step_of(Op.CLAIM, 1, pin(B))], workers=[A], sweep=20)
    assert reply.occupancy == {A: 100}


async def test_any_conversation_can_be_kept_and_heard(place: Place) -> None:
    conversations = [ConversationId(number) for number in (0, 1, 2**53 + 1, 2**63, 2**64 - 1)]
    heard: list[ConversationId] = []
    async with opened(place) as server, opened(place) as other:
        listening = asyncio.create_task(other.listen(lambda conversation, _: heard.append(conversation)))
        await server.run(
            [step_of(Op.CLAIM, conversation, pin(A)) for conversation in conversations], workers=(), sweep=20
        )
        assert place.stored().pins.keys() == set(conversations)
        await server.run([close(conversation) for conversation in conversations], workers=(), sweep=20)
        await until(lambda: len(heard) == len(conversations), "all were heard")
        listening.cancel()
    assert heard == conversations


def made(response: int, kept: Pin) -> Step:
    return step_of(Op.MADE, ConversationId(response), kept)


async def found(server: RedisServer, *responses: int) -> list[Pin | None]:
    steps = [Step(op=Op.FIND, conversation=ConversationId(end), seen_s=time.monotonic()) for end in responses]
    return list((await server.run(steps, workers=(), sweep=20)).answers)


async def test_a_made_response_is_found_as_it_was_and_is_no_pin(place: Place) -> None:
    kept = replace(pin(WorkerId("worker of 1"), 700, turns=3, idle_s=50.0), part_of=TALK)
    async with opened(place) as one, opened(place) as other:
        await one.run([made(1, kept), made(2, pin(B, 0, turns=0))], workers=(), sweep=20)
        first, second, unknown = await found(other, 1, 2, 3)
        reply = await other.run([], workers=None, sweep=20)
    assert first is not None
    assert second is not None
    assert (first.worker_id, first.kv_tokens, first.turns, first.part_of) == ("worker of 1", 700, 3, TALK)
    assert first.last_seen_s == pytest.approx(kept.last_seen_s, abs=30.0)
    assert (second.worker_id, second.part_of, unknown) == (B, None, None)
    assert (reply.occupancy, place.stored().pins) == ({}, {})


async def test_the_oldest_responses_are_forgotten_beyond_the_bound_and_after_their_time(
    shared_server: LabServer,
) -> None:
    place = Place(shared_server, max_responses=3, response_ttl_s=100.0)
    async with opened(place) as server:
        steps = [made(number, pin(A, idle_s=50.0 - number)) for number in range(5)]
        await server.run([*steps, made(9, pin(A, idle_s=101.0))], workers=(), sweep=20)
        assert [one is not None for one in await found(server, 0, 1, 2, 3, 4, 9)] == [
            False,
            False,
            True,
            True,
            True,
            False,
        ]
        with place.server.client() as client:
            assert client.hlen(place.key("responses")) == client.zcard(place.key("made")) == 3
            left_ms = [client.pttl(place.key(name)) for name in ("responses", "made")]
            client.zadd(place.key("made"), {b"%016x" % 2: 1.0})
        assert all(0 < left <= 100_000 for left in left_ms)
        assert [one is not None for one in await found(server, 2, 3)] == [False, True]


@pytest.mark.parametrize("lost", ["responses", "made"])
async def test_a_server_that_lost_a_key_of_responses_begins_anew_with_them(place: Place, lost: str) -> None:
    async with opened(place) as server:
        await server.run([made(1, pin(A)), step_of(Op.CLAIM, 1, pin(A))], workers=(), sweep=20)
        with place.server.client() as client:
            client.delete(place.key(lost))
        assert await found(server, 1) == [None]
        await server.run([made(2, pin(B))], workers=(), sweep=20)
        (old, new) = await found(server, 1, 2)
        with place.server.client() as client:
            assert client.hlen(place.key("responses")) == client.zcard(place.key("made")) == 1
    assert (old, new is not None, len(place.stored().pins)) == (None, True, 1)


async def test_a_cluster_takes_it_all_in_one_slot(cluster_node: LabServer) -> None:
    for is_cluster in (True, False):
        place = Place(cluster_node, is_cluster=is_cluster)
        async with opened(place) as server:
            reply = await server.run([step_of(Op.CLAIM, 1, pin(A)), made(7, pin(B))], workers=None, sweep=20)
            assert None not in await found(server, 7)
        assert reply.occupancy == {A: 100}
        place.stored().check()
