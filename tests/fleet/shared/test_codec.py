"""Writing steps and reading answers, without a server."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.conversation.identity import ConversationId
from gateway.core.types import WorkerId
from gateway.fleet.shared.codec import Op, Step, arguments, message_of, read, reply_of, step_of, written
from gateway.fleet.shared.pins import SharedOptions
from tests.fleet.shared.shared_alone import NOW_S, OTHER, TALK, WORKER, pin_at


@given(st.integers(0, 2**64 - 1))
def test_a_conversation_is_read_as_it_was_written(conversation: ConversationId) -> None:
    assert len(written(conversation)) == 16
    assert read(written(conversation)) == conversation


def test_steps_are_written_with_ages_in_the_place_of_times() -> None:
    steps = [
        step_of(Op.MOVE, 255, pin_at(OTHER, kv_tokens=7, last_seen_s=NOW_S - 1.5), WORKER),
        Step(op=Op.CLOSE, conversation=TALK, seen_s=NOW_S + 5.0),
    ]
    assert list(arguments(steps, workers=[WORKER], now_s=NOW_S)) == [
        *(1, "decode-0"),
        *("move", b"00000000000000ff", "decode-1", 7, 1, 1500, "decode-0"),
        *("close", b"ffffffffffffffff", "", 0, 0, 0, ""),
    ]
    assert list(arguments([], workers=None, now_s=NOW_S)) == [-1]
    assert list(arguments([], workers=[], now_s=NOW_S)) == [0]


def test_a_response_is_written_with_its_conversation_and_read_again() -> None:
    made = step_of(Op.MADE, 9, replace(pin_at(kv_tokens=7), part_of=255))
    alone = step_of(Op.MADE, 9, pin_at(kv_tokens=7))
    (_, *with_one), (_, *without) = (arguments([step], workers=(), now_s=NOW_S) for step in (made, alone))
    assert with_one == ["made", b"0000000000000009", "decode-0", 7, 1, 0, b"00000000000000ff"]
    assert without == [*with_one[:-1], ""]
    raw: list[object] = [[b"decode-0", 7, 1, 0, b"00000000000000ff"], [b"decode-0", 7, 1, 0, b""], None]
    assert list(reply_of([0, [], raw], NOW_S).answers) == [made.pin(), alone.pin(), None]


def test_a_number_below_nothing_is_nothing() -> None:
    (_, *step) = arguments([step_of(Op.PUT, 1, pin_at(kv_tokens=-5))], workers=(), now_s=NOW_S)
    assert step[3] == 0


def test_a_reply_is_read_with_times_of_this_clock() -> None:
    reply = reply_of([3, [b"decode-0", b"120", b"", b"9"], [None, [b"decode-1", 50, 2, 2500]]], NOW_S)
    assert reply.swept == 3
    assert reply.occupancy == {WORKER: 120}
    nothing, stands = reply.answers
    assert nothing is None
    assert stands is not None
    assert (stands.worker_id, stands.kv_tokens, stands.turns, stands.last_seen_s) == (OTHER, 50, 2, NOW_S - 2.5)


def test_messages_of_others_are_read_and_ones_own_are_not() -> None:
    move = b"them\ndecode-0\n40\n2\n0000000000000007"
    assert message_of(move, caller=b"us", now_s=NOW_S) == (7, _pin(WORKER, 40, 2))
    assert message_of(b"them\n\n0\n0\n00000000000000ff", caller=b"us", now_s=NOW_S) == (255, None)
    assert message_of(move, caller=b"them", now_s=NOW_S) is None


def _pin(worker_id: WorkerId, kv_tokens: int, turns: int) -> object:
    step = Step(op=Op.PUT, conversation=0, seen_s=NOW_S, worker_id=worker_id, kv_tokens=kv_tokens, turns=turns)
    return step.pin()


@pytest.mark.parametrize(
    "wrong",
    [
        {"prefix": ""},
        {"max_responses": 0},
        {"response_ttl_s": 0.0},
        {"prefix": "a}b"},
        {"deadline_s": 0.0},
        {"flush_s": -1.0},
        {"batch_steps": 0},
    ],
)
def test_options_that_cannot_be_used_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        SharedOptions(url="redis://localhost", **wrong)  # type: ignore[arg-type]
