"""What waits to be sent: one entry per conversation, bounded, changes before what is sent anew."""

from gateway.fleet.shared.codec import Op, Step
from gateway.fleet.shared.outbox import Outbox
from tests.fleet.shared.shared_alone import NOW_S, OTHER, WORKER, pin_at


def steps(outbox: Outbox) -> list[tuple[Op, int | str]]:
    return [(step.op, step.conversation) for step in outbox.take(1000)]


def test_changes_go_before_what_is_sent_anew() -> None:
    outbox = Outbox(10)
    outbox.refill({1: pin_at(), 2: pin_at(), 3: pin_at()})
    outbox.put(4, pin_at())
    outbox.put(2, pin_at())
    assert len(outbox) == 4
    assert [step.conversation for step in outbox.take(3)] == [4, 2, 1]
    assert steps(outbox) == [(Op.PUT, 3)]
    assert len(outbox) == 0


def test_what_waits_is_newer_than_a_snapshot() -> None:
    outbox = Outbox(10)
    outbox.put(1, pin_at(OTHER))
    outbox.close(2, NOW_S)
    outbox.refill({1: pin_at(WORKER), 2: pin_at(), 3: pin_at()})
    taken = outbox.take(10)
    assert [(step.op, step.conversation) for step in taken] == [(Op.PUT, 1), (Op.CLOSE, 2), (Op.PUT, 3)]
    assert taken[0].worker_id == OTHER


def test_the_bound_is_for_changes_and_not_for_what_is_sent_anew() -> None:
    outbox = Outbox(2)
    outbox.refill({number: pin_at() for number in range(10)})
    for number in range(10, 13):
        outbox.put(number, pin_at())
    assert outbox.dropped == 1
    assert [step.conversation for step in outbox.take(4)] == [11, 12, 0, 1]
    assert len(outbox) == 8


def test_a_change_of_what_waits_already_drops_nothing() -> None:
    outbox = Outbox(1)
    outbox.put(1, pin_at(WORKER))
    outbox.put(1, pin_at(OTHER))
    assert outbox.dropped == 0


def test_closes_alone_are_put_back_and_undo_no_later_change() -> None:
    outbox = Outbox(10)
    outbox.put(1, pin_at())
    outbox.close(2, NOW_S)
    outbox.close(3, NOW_S)
    taken = outbox.take(10)
    outbox.put(3, pin_at())
    outbox.put_back(taken)
    assert steps(outbox) == [(Op.PUT, 3), (Op.CLOSE, 2)]


def test_a_made_response_is_put_back_for_no_snapshot_has_it() -> None:
    outbox = Outbox(10)
    outbox.made(7, pin_at())
    taken = outbox.take(10)
    assert len(outbox) == 0
    outbox.put_back(taken)
    outbox.refill({1: pin_at()})
    assert steps(outbox) == [(Op.MADE, 7), (Op.PUT, 1)]


def test_only_a_close_is_taken_back_when_a_conversation_goes_on() -> None:
    outbox = Outbox(10)
    outbox.put(1, pin_at())
    outbox.close(2, NOW_S)
    for conversation in (1, 2, 3):
        outbox.reopen(conversation)
    assert steps(outbox) == [(Op.PUT, 1)]


def test_nothing_is_taken_where_there_is_no_room() -> None:
    outbox = Outbox(10)
    outbox.put(1, pin_at())
    outbox.refill({2: pin_at()})
    assert outbox.take(0) == []
    assert outbox.take(-3) == []
    assert outbox.take(1) == [Step(op=Op.PUT, conversation=1, seen_s=NOW_S, worker_id=WORKER, kv_tokens=100, turns=1)]
