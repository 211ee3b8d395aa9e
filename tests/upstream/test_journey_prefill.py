"""What follows when the prefill leg goes wrong: another prefill worker, then the decode worker itself."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from gateway.core.events import PrefillLost
from gateway.core.types import OutcomeKind, Path, Reason, WorkerId
from gateway.upstream.errors import ErrorKind
from gateway.upstream.held import MAX_HELD_ANSWER_BYTES
from tests.upstream.journey_lab import (
    DONE,
    KV_PARAMS,
    PREFILL_SECRET,
    Lab,
    Leg,
    chat_body,
    chunk,
    prefill_answer,
)

Act = Callable[[Leg], object]

FAILURES = [
    pytest.param(lambda leg: leg.fail(ErrorKind.CONNECT_REFUSED), "connect", id="refused"),
    pytest.param(lambda leg: leg.fail(ErrorKind.CONNECT_TIMEOUT), "connect", id="connect-timeout"),
    pytest.param(lambda leg: leg.fail(ErrorKind.FIRST_BYTE_TIMEOUT), "timeout", id="timeout"),
    pytest.param(lambda leg: leg.fail(ErrorKind.CLOSED_BEFORE_HEAD), "broken", id="closed"),
    pytest.param(lambda leg: leg.fail(ErrorKind.MALFORMED), "protocol", id="malformed"),
    pytest.param(lambda leg: leg.answer(500, b"{}"), "server_error", id="500"),
    pytest.param(lambda leg: leg.answer(502, b"{}"), "server_error", id="502"),
]
OVERLOADS = [
    pytest.param(lambda leg: leg.fail(ErrorKind.POOL_TIMEOUT), id="pool-timeout"),
    pytest.param(lambda leg: leg.answer(429, b"{}"), id="429"),
    pytest.param(lambda leg: leg.answer(503, b"{}"), id="503"),
]


def serve(leg: Leg) -> None:
    """The decode worker does its part."""
    leg.stream(chunk("a"), DONE)


@pytest.mark.parametrize(("fail", "label"), FAILURES)
def test_another_prefill_worker_takes_over(fail: Act, label: str) -> None:
    lab = Lab()
    call = lab.call()
    failed = lab.leg.worker
    fail(lab.leg)
    assert lab.leg.worker in {"p0", "p1"} - {failed}
    assert lab.core.decisions[1].attempt == 2
    assert lab.leg.header(b"x-request-id") != lab.pool.legs[0].header(b"x-request-id")
    lab.leg.answer(200, prefill_answer())
    serve(lab.leg)
    assert call.sink.body == chunk("a") + DONE
    assert call.sink.header(b"x-tidegate-decision-id") == lab.core.decisions[1].decision_id.encode()
    assert lab.core.blamed == [failed]
    assert lab.failures() == {failed: 1.0}
    assert lab.count("upstream_errors_total", worker=failed, kind=label) == 1
    assert lab.count("retries_total", cause=label) == lab.count("retries_total") == 1
    assert lab.outcome().kind is OutcomeKind.OK
    lab.check_settled()


@pytest.mark.parametrize("overload", OVERLOADS)
def test_an_overloaded_prefill_worker_is_passed_over_without_blame(overload: Act) -> None:
    lab = Lab()
    lab.call()
    failed = lab.leg.worker
    overload(lab.leg)
    assert lab.leg.worker in {"p0", "p1"} - {failed}
    lab.leg.answer(200, prefill_answer())
    serve(lab.leg)
    assert lab.count("upstream_errors_total", worker=failed, kind="overloaded") == 1
    assert lab.core.blamed == []
    assert lab.failures() == {}
    lab.check_settled()


def test_without_a_further_prefill_worker_the_request_is_routed_anew_and_local() -> None:
    lab = Lab()
    body = chat_body(stream_options={"include_usage": True})
    call = lab.call(body)
    lab.leg.fail(ErrorKind.CONNECT_REFUSED)
    lab.leg.fail(ErrorKind.CONNECT_REFUSED)
    assert lab.leg.body == body
    last = lab.core.decisions[-1]
    assert (last.path, last.reason, last.attempt) == (Path.LOCAL, Reason.RULE_NO_PREFILLER, 3)
    serve(lab.leg)
    assert call.sink.header(b"x-tidegate-path") == b"local"
    assert sorted(lab.core.blamed) == ["p0", "p1"]
    lab.check_settled()


@pytest.mark.parametrize("limits", [{"max_attempts": 1}, {"retry_reserve": 0}], ids=["attempts", "budget"])
@pytest.mark.parametrize(("fail", "label"), FAILURES)
def test_without_a_retry_left_the_decode_worker_prefills(limits: dict[str, Any], fail: Act, label: str) -> None:
    lab = Lab(**limits)
    body = chat_body()
    call = lab.call(body)
    failed = lab.leg.worker
    fail(lab.leg)
    decision = lab.core.decisions[0]
    assert lab.leg.worker == decision.decode_worker
    assert lab.leg.body == body
    (lost,) = [event for event in lab.core.events if isinstance(event, PrefillLost)]
    assert lost.blame == failed
    serve(lab.leg)
    assert call.sink.body == chunk("a") + DONE
    assert lab.failures() == {failed: 1.0}
    assert lab.router.health.get(failed).requests == 1.0  # and no success beside the failure
    assert lab.count("upstream_errors_total", kind=label) == 1
    assert lab.count("retries_total") == 0
    assert len(lab.core.decisions) == 1
    lab.check_settled()


@pytest.mark.parametrize("overload", OVERLOADS)
def test_a_lost_prefill_by_overload_blames_nobody(overload: Act) -> None:
    lab = Lab(max_attempts=1)
    lab.call()
    overload(lab.leg)
    serve(lab.leg)
    assert lab.core.blamed == []
    assert lab.failures() == {}
    lab.check_settled()


def test_a_prefill_that_breaks_off_inside_its_answer_is_not_sent_elsewhere() -> None:
    lab = Lab()
    lab.call()
    failed = lab.leg.worker
    lab.leg.head(200).send(prefill_answer()[:50]).fail(ErrorKind.TRUNCATED)
    assert lab.leg.worker == lab.core.decisions[0].decode_worker
    assert len(lab.core.decisions) == 1
    assert lab.core.blamed == [failed]
    serve(lab.leg)
    lab.check_settled()


@pytest.mark.parametrize(
    "answer",
    [
        prefill_answer(b"null"),
        prefill_answer(b"{}"),
        prefill_answer(b'"text"'),
        b'{"choices":[]}',
        b"not json",
        b"",
    ],
    ids=["null", "empty", "text", "missing", "junk", "nothing"],
)
def test_without_transfer_parameters_the_decode_worker_prefills_and_it_is_counted(answer: bytes) -> None:
    lab = Lab()
    body = chat_body()
    call = lab.call(body)
    prefill = lab.leg
    prefill.answer(200, answer)
    assert lab.leg.worker == lab.core.decisions[0].decode_worker
    assert lab.leg.body == body
    assert [type(event).__name__ for event in lab.core.events] == ["Dispatched", "PrefillLost"]
    assert lab.count("upstream_errors_total", worker=prefill.worker, kind="protocol") == 1
    serve(lab.leg)
    assert PREFILL_SECRET.encode() not in call.sink.body
    assert lab.core.blamed == []
    assert lab.failures() == {}
    assert lab.outcome().kind is OutcomeKind.OK
    lab.check_settled()


def test_an_answer_of_exactly_the_bound_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.upstream.held.MAX_HELD_ANSWER_BYTES", len(prefill_answer()))
    lab = Lab()
    lab.call()
    lab.leg.answer(200, prefill_answer())
    assert lab.leg.json["kv_transfer_params"] == json.loads(KV_PARAMS)
    serve(lab.leg)
    lab.check_settled()


def test_an_answer_too_large_to_hold_counts_as_one_without_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(prefill_answer()) < MAX_HELD_ANSWER_BYTES
    monkeypatch.setattr("gateway.upstream.held.MAX_HELD_ANSWER_BYTES", 64)
    lab = Lab()
    lab.call()
    lab.leg.head(200).send(prefill_answer()[:60], prefill_answer()[60:]).end()
    assert "kv_transfer_params" not in lab.leg.json
    serve(lab.leg)
    lab.check_settled()


def test_an_error_answer_too_large_to_hold_is_502(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.upstream.held.MAX_HELD_ANSWER_BYTES", 64)
    lab = Lab()
    call = lab.call()
    lab.leg.answer(400, b"x" * 65)
    assert call.sink.status == 502
    assert "too large" in call.sink.error()["message"]
    lab.check_settled()


def test_parameters_pass_as_the_bytes_that_they_are() -> None:
    lab = Lab()
    lab.call()
    lab.leg.answer(200, prefill_answer())
    assert b'"kv_transfer_params":' + KV_PARAMS in lab.leg.body


def test_the_prefill_work_moves_with_the_request() -> None:
    lab = Lab(prefill=1, decode=1, max_attempts=1)
    lab.call()
    at_prefill, at_decode = (lab.router.ledger.tally(WorkerId(name)) for name in ("p0", "d0"))
    assert at_prefill.prefill_tokens > 0
    assert at_decode.prefill_tokens == 0
    lab.leg.fail(ErrorKind.CONNECT_REFUSED)
    assert lab.router.ledger.tally(WorkerId("p0")).requests == 0
    assert lab.router.ledger.tally(WorkerId("d0")).prefill_tokens > 0
    serve(lab.leg)
    lab.check_settled()


def test_the_time_of_the_prefill_leg_is_that_of_the_last_attempt() -> None:
    lab = Lab()
    lab.call()
    lab.clock.advance(5.0)
    lab.leg.answer(500, b"{}")
    lab.clock.advance(0.25)
    lab.leg.answer(200, prefill_answer())
    lab.clock.advance(1.0)
    serve(lab.leg)
    assert lab.count("prefill_leg_seconds_count") == 1
    assert lab.count("prefill_leg_seconds_sum") == 0.25


def test_a_lost_prefill_leg_has_no_time() -> None:
    lab = Lab(max_attempts=1)
    lab.call()
    lab.clock.advance(5.0)
    lab.leg.answer(500, b"{}")
    serve(lab.leg)
    assert lab.count("prefill_leg_seconds_count") == 0


def test_json_of_the_decode_leg_without_parameters_is_the_clients() -> None:
    lab = Lab(max_attempts=1)
    body = chat_body(max_tokens=7, min_tokens=3, stream_options={"include_usage": True})
    lab.call(body)
    lab.leg.answer(500, b"{}")
    assert lab.leg.json == json.loads(body)
