"""A client that leaves, or reads slowly, at every point of its request's way."""

from collections.abc import Callable

import pytest

from gateway.core.types import OutcomeKind
from gateway.upstream.errors import ErrorKind
from tests.upstream.journey_lab import (
    DONE,
    JSON_HEAD,
    Lab,
    chat_body,
    chunk,
    prefill_answer,
    whole_answer,
)

Step = Callable[[Lab], object]

REMOTE_STREAM: list[Step] = [
    lambda lab: lab.leg.head(200, JSON_HEAD),
    lambda lab: lab.leg.send(prefill_answer()),
    lambda lab: lab.leg.end(),
    lambda lab: lab.leg.head(),
    lambda lab: lab.leg.send(chunk("Hel")),
    lambda lab: lab.leg.send(chunk("lo")[:12]),
    lambda lab: lab.leg.send(chunk("lo")[12:]),
    lambda lab: lab.leg.send(DONE),
    lambda lab: lab.leg.end(),
]
RETRIED_WHOLE: list[Step] = [
    lambda lab: lab.leg.fail(ErrorKind.CONNECT_REFUSED),
    lambda lab: lab.leg.answer(200, prefill_answer()),
    lambda lab: lab.leg.head(500, JSON_HEAD),
    lambda lab: lab.leg.send(b"{}"),
    lambda lab: lab.leg.end(),
    # Both prefill workers are out by now, one of them on suspicion: the last attempt is local.
    lambda lab: lab.leg.head(200, JSON_HEAD),
    lambda lab: lab.leg.send(whole_answer()),
    lambda lab: lab.leg.end(),
]
WAYS = [
    pytest.param(steps, after, id=f"{name}-after-{after}")
    for name, steps in (("remote-stream", REMOTE_STREAM), ("retried-whole", RETRIED_WHOLE))
    for after in range(len(steps) + 1)
]


@pytest.mark.parametrize(("steps", "after"), WAYS)
def test_a_client_may_leave_at_every_point(steps: list[Step], after: int) -> None:
    lab = Lab(max_attempts=3)
    call = lab.call(chat_body(stream=steps is REMOTE_STREAM))
    for step in steps[:after]:
        step(lab)
    was_over = after == len(steps)
    leg, legs = lab.leg, len(lab.pool.legs)
    sent = call.sink.body
    call.journey.client_gone()
    call.journey.client_gone()
    assert leg.aborted is not was_over
    assert len(lab.pool.legs) == legs
    assert call.sink.body == sent
    assert call.sink.ended is was_over
    outcome = lab.outcome()
    assert outcome.kind is (OutcomeKind.OK if was_over else OutcomeKind.CANCELLED)
    assert outcome.status == (200 if was_over else 499)
    lab.check_settled()


def test_a_client_that_leaves_blames_no_worker() -> None:
    lab = Lab.local()
    call = lab.call()
    lab.leg.head().send(chunk("a"))
    call.journey.client_gone()
    assert lab.core.blamed == []
    assert lab.router.health.get(lab.leg.worker).requests == 0
    assert lab.count("upstream_errors_total") == 0


def test_a_client_that_leaves_after_a_failure_was_told_changes_nothing() -> None:
    lab = Lab.local(decode=1)
    call = lab.call()
    lab.leg.fail(ErrorKind.CONNECT_REFUSED)
    call.journey.client_gone()
    assert lab.outcome().kind is OutcomeKind.UPSTREAM_ERROR
    lab.check_settled()


def test_pause_and_resume_reach_the_exchange_in_flight() -> None:
    lab = Lab()
    call = lab.call()
    prefill = lab.leg
    prefill.answer(200, prefill_answer())
    decode = lab.leg.head()
    call.journey.pause()
    assert (prefill.paused, decode.paused) == (False, True)
    call.journey.resume()
    assert not decode.paused
    decode.send(chunk("a"), DONE).end()
    call.journey.pause()
    call.journey.resume()
    assert not decode.paused
    lab.check_settled()


def test_other_requests_go_on_when_one_client_leaves() -> None:
    lab = Lab.local(decode=1)
    leaving, staying = lab.call(request_id="leaves"), lab.call(request_id="stays")
    of_leaving, of_staying = lab.pool.legs
    of_staying.head().send(chunk("a"))
    leaving.journey.client_gone()
    assert of_leaving.aborted
    assert not of_staying.aborted
    assert lab.count("inflight_requests") == 1
    assert len(lab.router.ledger) == 1
    of_staying.send(DONE).end()
    assert staying.sink.body == chunk("a") + DONE
    lab.check_settled()
