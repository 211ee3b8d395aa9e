"""What follows when the decode leg goes wrong: another worker before the first byte, the truth after it."""

import json

import pytest

from gateway.core.types import OutcomeKind, Path
from gateway.upstream.errors import ErrorKind
from tests.upstream.journey_lab import (
    DONE,
    JSON_HEAD,
    SSE_HEAD,
    Lab,
    chat_body,
    chunk,
    prefill_answer,
    whole_answer,
)

BEFORE_THE_HEAD = [
    (ErrorKind.CONNECT_REFUSED, "connect"),
    (ErrorKind.CONNECT_DNS, "connect"),
    (ErrorKind.CONNECT_TIMEOUT, "connect"),
    (ErrorKind.CONNECT_FAILED, "connect"),
    (ErrorKind.FIRST_BYTE_TIMEOUT, "timeout"),
    (ErrorKind.CLOSED_BEFORE_HEAD, "broken"),
    (ErrorKind.MALFORMED, "protocol"),
]
TIMEOUTS = {ErrorKind.CONNECT_TIMEOUT, ErrorKind.FIRST_BYTE_TIMEOUT, ErrorKind.IDLE_TIMEOUT}


@pytest.mark.parametrize(("kind", "label"), BEFORE_THE_HEAD)
def test_a_failure_before_the_head_goes_to_another_worker(kind: ErrorKind, label: str) -> None:
    lab = Lab.local()
    call = lab.call()
    failed = lab.leg.worker
    lab.leg.fail(kind)
    assert lab.leg.worker in {"d0", "d1"} - {failed}
    assert call.sink.status is None
    lab.leg.stream(chunk("a"), DONE)
    assert call.sink.body == chunk("a") + DONE
    assert lab.core.blamed == [failed]
    assert lab.count("upstream_errors_total", worker=failed, kind=label) == 1
    assert lab.count("retries_total", cause=label) == 1
    assert lab.core.decisions[1].attempt == 2
    lab.check_settled()


@pytest.mark.parametrize("status", [500, 502, 504])
def test_an_error_of_the_worker_is_held_and_another_workers_answer_shown(status: int) -> None:
    lab = Lab.local()
    call = lab.call()
    failed = lab.leg.worker
    lab.leg.head(status, JSON_HEAD).send(b'{"error":').send(b'"mine"}')
    assert call.sink.status is None
    lab.leg.end()
    lab.leg.stream(chunk("a"), DONE)
    assert call.sink.status == 200
    assert call.sink.body == chunk("a") + DONE
    assert lab.failures() == {failed: 1.0}
    assert lab.count("upstream_errors_total", worker=failed, kind="server_error") == 1
    lab.check_settled()


@pytest.mark.parametrize("status", [429, 503])
def test_an_overloaded_worker_is_passed_over_without_blame(status: int) -> None:
    lab = Lab.local()
    call = lab.call()
    lab.leg.answer(status, b"{}")
    lab.leg.stream(chunk("a"), DONE)
    assert call.sink.status == 200
    assert lab.core.blamed == []
    assert lab.failures() == {}
    assert lab.count("retries_total", cause="overloaded") == 1
    lab.check_settled()


def test_no_connection_in_time_is_passed_over_without_blame() -> None:
    lab = Lab.local()
    lab.call()
    lab.leg.fail(ErrorKind.POOL_TIMEOUT)
    lab.leg.stream(chunk("a"), DONE)
    assert lab.failures() == {}
    assert lab.count("retries_total", cause="overloaded") == 1
    lab.check_settled()


def test_after_a_failed_decode_leg_the_prompt_is_prefilled_anew_and_no_parameters_are_used_twice() -> None:
    lab = Lab()
    call = lab.call()
    first_prefill = lab.leg
    first_prefill.answer(200, prefill_answer(b'{"remote_block_ids":[1]}'))
    failed = lab.leg
    failed.fail(ErrorKind.CLOSED_BEFORE_HEAD)

    again = lab.leg
    assert again is not failed
    assert again.worker in {"p0", "p1"}
    assert again.json["kv_transfer_params"]["do_remote_decode"] is True
    again.answer(200, prefill_answer(b'{"remote_block_ids":[2]}'))
    decode = lab.leg
    assert decode.worker in {"d0", "d1"} - {failed.worker}
    assert decode.json["kv_transfer_params"] == {"remote_block_ids": [2]}
    decode.stream(chunk("a"), DONE)

    assert call.sink.body == chunk("a") + DONE
    used = [leg.json["kv_transfer_params"] for leg in (failed, decode)]
    assert used == [{"remote_block_ids": [1]}, {"remote_block_ids": [2]}]
    assert lab.core.blamed == [failed.worker]
    lab.check_settled()


def test_a_prefill_that_was_lost_is_not_lost_for_the_next_attempt() -> None:
    lab = Lab()
    lab.call()
    lab.leg.answer(200, prefill_answer(b"null"))
    lab.leg.fail(ErrorKind.CONNECT_REFUSED)
    assert lab.leg.worker in {"p0", "p1"}
    lab.leg.answer(200, prefill_answer())
    assert "kv_transfer_params" in lab.leg.json
    lab.leg.stream(chunk("a"), DONE)
    lab.check_settled()


@pytest.mark.parametrize("path", list(Path))
def test_the_attempts_are_counted_over_both_legs(path: Path) -> None:
    lab = Lab.on(path, decode=5, prefill=5, max_attempts=3)
    call = lab.call()
    for _ in range(3):
        if path is Path.REMOTE:
            lab.leg.answer(200, prefill_answer())
        lab.leg.fail(ErrorKind.CONNECT_REFUSED)
    assert call.sink.status == 502
    assert call.sink.error()["code"] == "bad_gateway"
    assert [decision.attempt for decision in lab.core.decisions] == [1, 2, 3]
    assert len({decision.decode_worker for decision in lab.core.decisions}) == 3
    assert lab.outcome().kind is OutcomeKind.UPSTREAM_ERROR
    assert lab.outcome().attained is False
    assert lab.count("retries_total") == 2
    lab.check_settled()


def test_the_budget_is_spent_by_retries_and_filled_by_requests() -> None:
    lab = Lab.local(decode=5, retry_reserve=1)
    first = lab.call()
    lab.leg.fail(ErrorKind.CONNECT_REFUSED)
    assert len(lab.pool.legs) == 2
    lab.leg.fail(ErrorKind.CONNECT_REFUSED)
    assert first.sink.status == 502
    second = lab.call()
    lab.leg.fail(ErrorKind.CONNECT_REFUSED)
    assert second.sink.status == 502
    lab.services.budget.ratio = 0.5
    lab.call().journey.client_gone()
    third = lab.call()
    lab.leg.fail(ErrorKind.CONNECT_REFUSED)
    assert third.sink.status is None
    lab.leg.stream(chunk("a"), DONE)
    assert third.sink.status == 200
    lab.check_settled()


@pytest.mark.parametrize("status", [500, 503])
def test_the_last_workers_own_error_is_relayed_byte_for_byte(status: int) -> None:
    lab = Lab.local(decode=2)
    call = lab.call()
    lab.leg.answer(status, b'{"error": {"message": "first"}}')
    lab.leg.answer(status, b'{"error": {"message": "second"}}')
    assert call.sink.status == status
    assert call.sink.body == b'{"error": {"message": "second"}}'
    assert call.sink.header(b"x-worker") == b"yes"
    assert call.sink.finished
    assert lab.outcome().kind is OutcomeKind.UPSTREAM_ERROR
    assert lab.count("upstream_errors_total") == 2
    assert len(lab.core.blamed) == (2 if status == 500 else 0)
    assert len(lab.core.refusals) == 1
    lab.check_settled()


@pytest.mark.parametrize("max_attempts", [1, 2])
@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_workers_error_counts_the_same_whether_it_was_held_or_relayed_at_once(max_attempts: int, status: int) -> None:
    lab = Lab.local(decode=1, max_attempts=max_attempts)
    call = lab.call()
    lab.leg.answer(status, b"why")
    assert (call.sink.status, call.sink.body, call.sink.finished) == (status, b"why", True)
    outcome = lab.outcome()
    assert (outcome.kind, outcome.status, outcome.attained) == (OutcomeKind.UPSTREAM_ERROR, status, False)
    assert lab.failures() == ({lab.leg.worker: 1.0} if status == 500 else {})
    assert lab.count("upstream_errors_total") == 1
    lab.check_settled()


def test_an_error_without_a_remedy_is_relayed_as_it_comes() -> None:
    lab = Lab.local()
    call = lab.call()
    lab.leg.head(501, JSON_HEAD).send(b"not ")
    assert call.sink.body == b"not "
    lab.leg.send(b"implemented").end()
    assert call.sink.status == 501
    assert lab.outcome().kind is OutcomeKind.UPSTREAM_ERROR
    assert lab.core.blamed == [lab.leg.worker]
    assert len(lab.pool.legs) == 1
    lab.check_settled()


def test_an_error_is_not_held_where_nobody_else_may_be_asked() -> None:
    lab = Lab.local(max_attempts=1)
    call = lab.call()
    lab.leg.head(500, JSON_HEAD).send(b"oh ")
    assert (call.sink.status, call.sink.body) == (500, b"oh ")
    lab.leg.send(b"no").end()
    assert call.sink.body == b"oh no"
    lab.check_settled()


def test_a_failed_retry_is_answered_by_its_own_kind() -> None:
    lab = Lab.local(decode=1)
    call = lab.call()
    lab.leg.fail(ErrorKind.FIRST_BYTE_TIMEOUT)
    assert call.sink.status == 504
    assert call.sink.error()["code"] == "gateway_timeout"
    assert lab.outcome().kind is OutcomeKind.TIMEOUT
    assert lab.core.blamed == [lab.leg.worker]
    lab.check_settled()


def test_a_refused_retry_costs_neither_budget_nor_a_decision() -> None:
    lab = Lab.local(decode=1, retry_reserve=1)
    lab.call()
    lab.leg.fail(ErrorKind.CONNECT_REFUSED)
    assert lab.services.budget.allows
    assert lab.count("retries_total") == 0
    assert lab.count("path_total") == 1
    lab.check_settled()


@pytest.mark.parametrize("kind", [ErrorKind.TRUNCATED, ErrorKind.IDLE_TIMEOUT, ErrorKind.MALFORMED])
def test_a_stream_that_fails_after_its_first_byte_ends_with_an_error_event(kind: ErrorKind) -> None:
    lab = Lab.local()
    call = lab.call()
    cut = chunk("lo")[:25]
    lab.leg.head().send(chunk("Hel"), cut).fail(kind)
    events = call.sink.body.removeprefix(chunk("Hel") + cut).split(b"\n\n")
    assert events[0] == b""
    assert json.loads(events[1].removeprefix(b"data: "))["error"]["type"] == "server_error"
    assert events[2:] == [b"data: [DONE]", b""]
    assert call.sink.finished
    assert call.sink.status == 200
    assert lab.outcome().kind is (OutcomeKind.TIMEOUT if kind in TIMEOUTS else OutcomeKind.UPSTREAM_ERROR)
    assert lab.outcome().ttft_s is not None
    assert lab.outcome().attained is False
    assert lab.core.blamed == [lab.leg.worker]
    assert len(lab.pool.legs) == 1
    lab.check_settled()


@pytest.mark.parametrize("kind", [ErrorKind.TRUNCATED, ErrorKind.IDLE_TIMEOUT])
def test_a_whole_answer_that_fails_after_its_head_is_broken_off(kind: ErrorKind) -> None:
    lab = Lab.local()
    call = lab.call(chat_body(stream=False))
    lab.leg.head(200, JSON_HEAD).send(whole_answer()[:40]).fail(kind)
    assert call.sink.body == whole_answer()[:40]
    assert call.sink.broken
    assert not call.sink.finished
    assert lab.outcome().kind is not OutcomeKind.OK
    lab.check_settled()


def test_a_stream_that_fails_between_its_head_and_its_first_event_ends_with_an_error_event() -> None:
    lab = Lab.local()
    call = lab.call()
    lab.leg.head().fail(ErrorKind.TRUNCATED)
    assert call.sink.body.endswith(DONE)
    assert b'"error"' in call.sink.body
    assert lab.outcome().ttft_s is None
    lab.check_settled()


def test_a_stream_that_was_done_and_then_broke_gets_no_second_end() -> None:
    lab = Lab.local()
    call = lab.call()
    lab.leg.head().send(chunk("a"), DONE).fail(ErrorKind.TRUNCATED)
    assert call.sink.body == chunk("a") + DONE
    assert call.sink.broken
    lab.check_settled()


def test_an_error_event_inside_a_stream_is_the_workers_failure() -> None:
    lab = Lab.local()
    call = lab.call()
    event = b'data: {"error": {"message": "KV cache lost", "code": 500}}\n\n'
    lab.leg.stream(chunk("a"), event, DONE)
    assert call.sink.status == 200
    assert call.sink.body == chunk("a") + event + DONE
    assert call.sink.finished
    assert lab.outcome().kind is OutcomeKind.UPSTREAM_ERROR
    assert lab.outcome().attained is False
    assert lab.count("upstream_errors_total", kind="server_error") == 1
    assert lab.core.blamed == [lab.leg.worker]
    lab.check_settled()


def test_an_error_event_without_its_closing_blank_line_is_still_seen() -> None:
    lab = Lab.local()
    lab.call()
    lab.leg.stream(chunk("a"), b'data: {"error": "lost"}')
    assert lab.outcome().kind is OutcomeKind.UPSTREAM_ERROR
    lab.check_settled()


def test_a_retried_request_is_one_request_with_one_record() -> None:
    lab = Lab.local()
    lab.call()
    lab.leg.fail(ErrorKind.CONNECT_REFUSED)
    lab.leg.stream(chunk("a"), DONE)
    ((decision, _, request_id, model),) = lab.records.kept
    assert decision is lab.core.decisions[1]
    assert (request_id, model) == ("req-1", "llama")
    assert lab.count("path_total") == 2
    assert lab.count("worker_selected_total") == 2
    lab.check_settled()


def test_the_content_type_alone_makes_a_stream() -> None:
    lab = Lab.local()
    streamed, whole = lab.call(request_id="streamed"), lab.call(request_id="whole")
    of_streamed, of_whole = lab.pool.legs
    of_streamed.head(200, [(b"server", b"vllm"), *SSE_HEAD]).send(chunk("a")).fail(ErrorKind.TRUNCATED)
    of_whole.head(200, [(b"x-like", b"text/event-stream")]).send(chunk("a")).fail(ErrorKind.TRUNCATED)
    assert streamed.sink.finished
    assert whole.sink.broken
