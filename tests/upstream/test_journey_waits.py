"""Requests that the core keeps waiting: called once, in their order, or gone before."""

from typing import Any

import pytest

from gateway.core.conversation.rules import ConversationRules, Mode
from gateway.core.events import WorkerDown
from gateway.core.types import OutcomeKind, WorkerId
from gateway.upstream.errors import ErrorKind
from tests.upstream.journey_lab import DONE, Call, Lab, chat_body, chunk

ONE_AT_A_TIME = ConversationRules(
    mode=Mode.CONSERVE, headroom_tokens=100_000, evict_after_s=None, max_wait_s=60.0, local_below_tokens=10_000
)
"""Every conversation is promised more than half of a worker's KV cache; prompts are prefilled at home."""


@pytest.fixture
def lab() -> Lab:
    return Lab(prefill=0, decode=1, conversation=ONE_AT_A_TIME, kv_total_blocks=10_000)


def call(lab: Lab, session: str, *, is_final: bool = True, **body: Any) -> Call:
    headers = [(b"x-session-id", session.encode())]
    if is_final:
        headers.append((b"x-dynamo-session-final", b"true"))
    return lab.call(chat_body(**body), headers=headers)


def serve(lab: Lab) -> None:
    """The leg that was started last streams an answer to its end."""
    lab.leg.head()
    lab.leg.send(chunk("Hello"))
    lab.leg.send(DONE)
    lab.leg.end()


def test_a_request_that_waits_is_routed_when_there_is_room(lab: Lab) -> None:
    first, second = call(lab, "a"), call(lab, "b")
    assert (len(lab.pool.legs), lab.calling.waiting) == (1, 1)
    serve(lab)
    assert first.sink.finished
    assert (len(lab.pool.legs), lab.calling.waiting) == (2, 0)
    assert not second.sink.ended
    serve(lab)
    assert second.sink.finished
    assert second.sink.status == 200
    lab.check_settled()


def test_its_latency_counts_from_when_it_came(lab: Lab) -> None:
    call(lab, "a")
    lab.clock.advance(1.0)
    call(lab, "b")
    lab.clock.advance(5.0)
    serve(lab)
    lab.clock.advance(0.5)
    serve(lab)
    (_, first, _, _), (_, second, _, _) = lab.records.kept
    assert (first.ttft_s, second.ttft_s) == (6.0, 5.5)


def test_they_are_called_in_their_order(lab: Lab) -> None:
    calls = [call(lab, name) for name in "abcd"]
    for each in calls:
        serve(lab)
        assert each.sink.finished
    lab.check_settled()


def test_a_client_that_leaves_while_it_waits_is_never_routed(lab: Lab) -> None:
    call(lab, "a")
    left, stays = call(lab, "b"), call(lab, "c")
    left.journey.client_gone()
    left.journey.client_gone()
    assert lab.calling.waiting == 1
    assert lab.outcome().kind is OutcomeKind.CANCELLED
    serve(lab)
    serve(lab)
    assert stays.sink.finished
    assert not left.sink.ended
    assert len(lab.core.decisions) == 2
    lab.check_settled()


def test_those_that_wait_are_refused_when_nobody_is_left_to_serve_them(lab: Lab) -> None:
    call(lab, "a")
    waits = call(lab, "b")
    lab.calling.observe(WorkerDown(at_s=lab.clock(), worker_id=WorkerId("d0")))
    assert waits.sink.status == 503
    assert waits.sink.finished
    assert lab.calling.waiting == 0


def test_one_that_fails_as_soon_as_it_is_called_makes_room_for_the_next(lab: Lab) -> None:
    call(lab, "a")
    fails, last = call(lab, "b"), call(lab, "c")
    serve(lab)
    for _ in range(3):
        if not fails.sink.ended:
            lab.leg.fail(ErrorKind.CONNECT_REFUSED)
    assert fails.sink.ended
    lab.calling.tick(lab.clock())
    serve(lab)
    assert last.sink.finished


def test_time_alone_calls_the_one_that_has_waited_too_long(lab: Lab) -> None:
    call(lab, "a")
    call(lab, "b")
    began_s = lab.clock()
    lab.calling.tick(began_s + 59.0)
    assert len(lab.pool.legs) == 1
    lab.calling.tick(began_s + 60.0)
    assert len(lab.pool.legs) == 2


def test_a_reader_may_pause_while_it_waits(lab: Lab) -> None:
    call(lab, "a")
    waits = call(lab, "b")
    waits.journey.pause()
    waits.journey.resume()
    assert lab.calling.waiting == 1
