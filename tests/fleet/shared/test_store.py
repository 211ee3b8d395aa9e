"""The task beside the request path: what goes together, who waits how long, and what happens when it cannot go on."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from gateway.core.conversation.identity import ConversationId
from gateway.core.types import WorkerId
from gateway.fleet.shared import store
from gateway.fleet.shared.codec import Op
from gateway.fleet.shared.pins import Claim, Pin
from tests.fleet.shared.shared_alone import NOW_S, OTHER, TALK, WORKER, Alone, alone, pin_at, started
from tests.fleet.shared.shared_waiting import at_once, until

# -- what goes together --------------------------------------------------------------------------------------------


async def test_a_claim_that_nothing_stands_in_the_way_of_stands() -> None:
    async with started() as one:
        one.server.occupancy = {WORKER: 300, WorkerId("elsewhere"): 7}
        claim = await one.shared.claim(1, pin_at(), workers=[WORKER, OTHER])
        assert claim == Claim(pin=pin_at(), occupancy={WORKER: 300, OTHER: 0}, is_new=True)
        assert one.server.asked_for[-1] == (WORKER, OTHER)


async def test_a_claim_is_answered_by_the_pin_that_stands() -> None:
    async with started() as one:
        one.server.answers[1] = pin_at(OTHER)
        claim = await one.shared.claim(1, pin_at(WORKER))
        assert claim == Claim(pin=pin_at(OTHER), occupancy={}, is_new=False)


async def test_what_comes_while_a_call_is_under_way_goes_together_in_the_next_with_calls_first() -> None:
    async with started(batch_steps=8) as one:
        one.server.held.clear()
        first = asyncio.create_task(one.shared.claim(0, pin_at()))
        await one.server.waiting.wait()
        one.shared.touch(100, pin_at())
        later = [asyncio.create_task(one.shared.claim(number, pin_at())) for number in range(1, 11)]
        await asyncio.sleep(0)
        one.server.held.set()
        await asyncio.gather(first, *later)
        await until(lambda: not one.shared.stats.queued)
        claims = [(Op.CLAIM, number) for number in range(1, 11)]
        assert one.server.taken[1:3] == [claims[:8], [*claims[8:], (Op.PUT, 100)]]


async def test_a_made_response_is_told_soon_and_anothers_is_found() -> None:
    async with started() as one:
        kept = replace(pin_at(OTHER), part_of=TALK)
        one.server.answers[9] = kept
        one.shared.made(7, pin_at())
        assert await one.shared.find(9) == kept
        assert await one.shared.find(8) is None
        await until(lambda: not one.shared.stats.queued)
        assert sorted(one.server.flat()) == [(Op.FIND, 8), (Op.FIND, 9), (Op.MADE, 7)]
        assert one.shared.stats.answered == 2


async def test_nobody_waits_for_a_response_while_the_server_is_away_and_what_was_made_is_told_later() -> None:
    one = alone()
    one.server.fault = ConnectionError("away")
    await one.shared.start()
    assert at_once(one.shared.find(9)) is None
    one.shared.made(7, pin_at())
    one.server.fault = None
    await until(lambda: one.server.flat() == [(Op.MADE, 7)], "it is told")
    await one.shared.stop()


async def test_a_made_response_that_was_lost_on_its_way_is_told_again() -> None:
    async with started() as one:
        one.server.fault = ConnectionError("lost")
        one.shared.made(7, pin_at())
        await until(lambda: one.shared.stats.downs == 1)
        one.server.fault = None
        await until(lambda: one.shared.stats.is_up and not one.shared.stats.queued)
        assert one.server.flat()[-1] == (Op.MADE, 7)


async def test_more_calls_than_go_together_follow_at_once() -> None:
    async with started(batch_steps=4, flush_s=60.0) as one:
        claims = await asyncio.gather(*(one.shared.claim(number, pin_at()) for number in range(10)))
        assert None not in claims
        assert [len(call) for call in one.server.taken] == [4, 4, 2]


async def test_only_the_newest_state_of_a_conversation_is_sent() -> None:
    one = alone()
    one.shared.touch(1, pin_at(WORKER))
    one.shared.touch(1, pin_at(OTHER))
    one.shared.close(2)
    one.shared.touch(2, pin_at())
    one.shared.touch(3, pin_at())
    one.shared.close(3)
    await one.shared.start()
    await one.shared.stop()
    assert one.server.flat() == [(Op.PUT, 1), (Op.PUT, 2), (Op.CLOSE, 3)]


async def test_a_conversation_that_is_claimed_again_is_not_closed() -> None:
    async with started(flush_s=60.0) as one:
        one.shared.close(1)
        await one.shared.claim(1, pin_at())
        one.shared.close(2)
        await one.shared.move(2, WORKER, pin_at(OTHER))
    assert one.server.flat() == [(Op.CLAIM, 1), (Op.MOVE, 2)]


async def test_a_full_queue_drops_what_has_waited_longest() -> None:
    one = alone(max_queued=3)
    for number in range(5):
        one.shared.touch(number, pin_at())
        assert one.shared.stats.queued <= 3
    assert one.shared.stats.dropped == 2
    await one.shared.start()
    await one.shared.stop()
    assert [conversation for _, conversation in one.server.flat()] == [2, 3, 4]


async def test_an_answer_that_is_there_counts_even_after_the_deadline() -> None:
    async with started(deadline_s=0.05) as one:
        one.server.during = lambda: time.sleep(0.1)  # the whole process pauses
        assert await one.shared.claim(1, pin_at()) is not None


async def test_a_caller_that_leaves_is_not_sent_for() -> None:
    async with started() as one:
        one.server.held.clear()
        first = asyncio.create_task(one.shared.claim(0, pin_at()))
        await one.server.waiting.wait()
        leaving = asyncio.create_task(one.shared.claim(1, pin_at()))
        await asyncio.sleep(0)
        leaving.cancel()
        one.server.held.set()
        assert await first is not None
        assert await one.shared.claim(2, pin_at()) is not None
        assert leaving.cancelled()
        assert one.server.flat() == [(Op.CLAIM, 0), (Op.CLAIM, 2)]


# -- what is told --------------------------------------------------------------------------------------------------


async def test_what_others_move_and_close_is_passed_on_and_a_listener_that_raises_ends_nothing() -> None:
    one = alone()

    def moved(conversation: ConversationId, to: Pin | None) -> None:
        one.moves.append((conversation, to))
        raise RuntimeError("a bug")

    one.shared._moved = moved
    one.server.news = [(1, pin_at(OTHER)), (TALK, None)]
    with capture_logs() as logs:
        await one.shared.start()
        await until(lambda: len(one.moves) == 2)
    assert [line["event"] for line in logs].count("shared.listener_failed") == 2
    assert one.moves == [(1, pin_at(OTHER)), (TALK, None)]
    assert one.shared.stats.moved == 2
    assert await one.shared.claim(1, pin_at()) is not None
    assert one.shared.stats.downs == 0
    await one.shared.stop()


async def test_what_the_server_knows_better_is_passed_on_unless_it_was_changed_since() -> None:
    async with started() as one:
        one.server.answers = {1: pin_at(OTHER), 2: pin_at(OTHER)}
        one.server.held.clear()
        one.shared.touch(1, pin_at())
        one.shared.touch(2, pin_at())
        await one.server.waiting.wait()
        one.shared.touch(2, pin_at())  # so the answer to this one counts
        one.server.held.set()
        await until(lambda: one.shared.stats.sent == 3)
        assert one.moves == [(1, pin_at(OTHER)), (2, pin_at(OTHER))]


async def test_the_occupancy_of_all_is_read_now_and_then_and_at_once_where_more_is_to_be_swept() -> None:
    async with started(refresh_s=60.0) as one:
        assert one.occupancies == [{}]
        one.server.occupancy = {WORKER: 5}
        one.server.sweeps = [store.SWEEP_ON_REFRESH, store.SWEEP_ON_REFRESH, 1]
        one.advance(60.0)
        await until(lambda: len(one.occupancies) == 4)
        one.advance(59.0)
        await one.shared.claim(1, pin_at())
        assert len(one.occupancies) == 4
        assert one.server.asked_for[-4:] == [None, None, None, ()]
        assert one.shared.stats.swept == 2 * store.SWEEP_ON_REFRESH + 1


# -- who waits how long --------------------------------------------------------------------------------------------


async def test_nobody_waits_longer_than_the_deadline_and_an_unanswered_move_is_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(store, "SLOW_CALLS", 10_000)
    async with started(deadline_s=0.05) as one:
        one.server.held.clear()
        assert await one.shared.claim(1, pin_at()) is None
        assert await one.shared.move(2, WORKER, pin_at(OTHER)) is None
        assert one.shared.stats.timed_out == 2
        one.server.held.set()
        await until(lambda: (Op.PUT, 2) in one.server.flat())
        assert one.shared.stats.answered == 0


def takes(one: Alone, took_s: float) -> Callable[[], None]:
    return lambda: one.advance(took_s)


async def test_three_slow_calls_in_a_row_are_a_server_that_is_down() -> None:
    async with started() as one:
        for took_s in (21.0, 21.0, 1.0, 21.0, 21.0):
            one.server.during = takes(one, took_s)
            assert await one.shared.claim(1, pin_at()) is not None
        assert one.shared.stats.downs == 0
        assert await one.shared.claim(1, pin_at()) is not None
        await until(lambda: not one.shared.stats.is_up)
        assert at_once(one.shared.claim(1, pin_at())) is None
        # As slow as before it is not taken back; quick it is.
        await until(lambda: one.shared.stats.errors.get("TooSlow", 0) >= 3)
        assert not one.shared.stats.is_up
        one.server.during = takes(one, 0.0)
        await until(lambda: one.shared.stats.is_up)
        assert one.shared.stats.downs == 1


async def test_a_call_that_is_never_answered_takes_the_server_down() -> None:
    async with started(deadline_s=0.02) as one:
        one.server.held.clear()
        claims = [asyncio.create_task(one.shared.claim(number, pin_at())) for number in range(3)]
        await until(lambda: one.shared.stats.downs == 1)
        assert [await claim for claim in claims] == [None, None, None]
        assert one.shared.stats.errors["TimeoutError"] >= 1


# -- down and up again ---------------------------------------------------------------------------------------------


async def test_a_server_that_breaks_off_is_told_everything_when_it_is_back() -> None:
    async with started() as one:
        one.known.update({number: pin_at() for number in range(200)})
        one.server.fault = ConnectionError("reset")
        assert await one.shared.claim(TALK, pin_at()) is None
        await until(lambda: not one.shared.stats.is_up)
        one.shared.close(0)
        one.known[1] = pin_at(OTHER)
        one.shared.touch(1, pin_at(OTHER))
        refused = one.shared.stats.refused
        assert at_once(one.shared.claim(TALK, pin_at())) is None
        assert one.shared.stats.refused == refused + 1
        one.server.taken.clear()
        del one.known[0]
        one.server.fault = None
        await until(lambda: one.shared.stats.is_up and not one.shared.stats.queued)
        expected = {(Op.CLOSE, 0)} | {(Op.PUT, number) for number in range(1, 200)}
        assert sorted(one.server.flat()) == sorted(expected)
        assert max(map(len, one.server.taken)) <= 64
        assert one.shared.stats.downs == 1


async def test_a_lost_subscription_is_a_lost_server() -> None:
    async with started() as one:
        one.known[TALK] = pin_at()
        one.server.lost.set()
        await until(lambda: (Op.PUT, TALK) in one.server.flat())
        assert one.shared.stats.downs == 1
        assert one.shared.stats.errors == {"ConnectionError": 1}


async def test_what_a_broken_call_took_along_is_sent_again() -> None:
    async with started() as one:
        one.server.fault = ConnectionError("reset")
        one.shared.close(TALK)
        await until(lambda: not one.shared.stats.is_up)
        one.server.taken.clear()
        one.server.fault = None
        await until(lambda: (Op.CLOSE, TALK) in one.server.flat())


async def test_whatever_the_library_raises_is_a_fault_of_the_server() -> None:
    async with started() as one:
        one.server.fault = RuntimeError("unable to perform operation on <TCPTransport closed=True>")
        assert await one.shared.claim(1, pin_at()) is None
        await until(lambda: not one.shared.stats.is_up)
        one.server.fault = None
        await until(lambda: one.shared.stats.is_up)
        assert await one.shared.claim(1, pin_at()) is not None
        assert one.shared.stats.errors["RuntimeError"] >= 1


async def test_a_snapshot_that_raises_delays_nothing() -> None:
    one = alone()
    one.shared._snapshot = lambda: 1 / 0  # type: ignore[assignment, return-value]
    with capture_logs() as logs:
        await one.shared.start()
    assert "shared.listener_failed" in [line["event"] for line in logs]
    assert await one.shared.claim(1, pin_at()) is not None
    await one.shared.stop()


async def test_before_the_start_and_after_the_end_nobody_knows() -> None:
    one = alone()
    assert at_once(one.shared.claim(1, pin_at())) is None
    await one.shared.start()
    await one.shared.stop()
    assert at_once(one.shared.claim(1, pin_at())) is None
    assert at_once(one.shared.move(1, WORKER, pin_at(OTHER))) is None
    assert not one.shared.stats.is_up


async def test_a_stop_does_not_wait_for_a_server_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "STOP_S", 0.01)
    one = alone()
    await one.shared.start()
    one.server.held.clear()
    waiting = asyncio.create_task(one.shared.claim(1, pin_at()))
    await one.server.waiting.wait()
    await one.shared.stop()
    assert await waiting is None


async def test_callers_times_are_counted() -> None:
    async with started() as one:
        for took_s in (0.0004, 0.003, 0.003, 1.0):
            one.server.during = takes(one, took_s)
            await one.shared.claim(1, pin_at())
        assert one.shared.stats.call_counts == [1, 0, 0, 2, 0, 0, 0, 0, 0, 1]
        assert one.shared.stats.call_seconds == pytest.approx(1.0064)
        assert one.now_s[0] > NOW_S


async def test_a_close_says_when_it_was_seen() -> None:
    async with started() as one:
        one.advance(50.0)
        one.shared.close(1, seen_s=NOW_S)
        one.shared.close(2)
        await until(lambda: len(one.server.flat()) == 2)
        assert one.server.closed_s == {1: NOW_S, 2: NOW_S + 50.0}
