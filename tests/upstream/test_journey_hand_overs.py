"""What follows when the hand-over between the legs goes wrong, or its decode worker goes down under the prefill."""

from collections.abc import Callable
from typing import Any

import pytest

from gateway.core.events import WorkerDown, WorkerProbed
from gateway.core.types import Decision, OutcomeKind, Path, Reason, WorkerId
from gateway.upstream.errors import ErrorKind
from tests.upstream.journey_lab import (
    DONE,
    JSON_HEAD,
    Call,
    Lab,
    chat_body,
    chunk,
    prefill_answer,
    whole_answer,
)

LOST = b'data: {"error": {"message": "KV is lost"}}\n\n'


def prefilled(lab: Lab) -> tuple[WorkerId, WorkerId]:
    """A prefill leg ends well; the two workers of the hand-over."""
    prefill = lab.leg.worker
    lab.leg.answer(200, prefill_answer())
    return prefill, lab.leg.worker


@pytest.mark.parametrize("status", [500, 502, 504])
def test_after_a_failed_hand_over_neither_worker_is_asked_again_or_blamed(status: int) -> None:
    lab = Lab()
    call = lab.call()
    first = prefilled(lab)
    lab.leg.answer(status, b"{}")
    second = prefilled(lab)
    assert not {*first} & {*second}
    lab.leg.stream(chunk("a"), DONE)
    assert call.sink.body == chunk("a") + DONE
    assert (lab.core.blamed, lab.failures()) == ([], {})
    assert lab.count("upstream_errors_total", worker=first[1], kind="server_error") == 1
    lab.check_settled()


def test_where_nobody_else_prefills_the_next_decode_worker_does() -> None:
    lab = Lab(prefill=1)
    call = lab.call()
    _, failed = prefilled(lab)
    lab.leg.answer(500, b"{}")
    assert lab.leg.worker != failed
    assert "kv_transfer_params" not in lab.leg.json
    lab.leg.stream(chunk("a"), DONE)
    assert call.sink.header(b"x-tidegate-path") == b"local"
    lab.check_settled()


def test_the_only_decode_worker_is_asked_again_without_the_prefill_worker() -> None:
    lab = Lab(prefill=1, decode=1)
    call = lab.call()
    prefilled(lab)
    lab.leg.answer(500, b"{}")
    assert lab.leg.worker == "d0"
    assert "kv_transfer_params" not in lab.leg.json
    lab.leg.answer(500, b'{"again":1}')
    assert (call.sink.status, call.sink.body) == (500, b'{"again":1}')
    assert lab.core.blamed == ["d0"]  # for the second: it was asked for nothing but its own work
    assert lab.core.decisions[-1].attempt == 2
    lab.check_settled()


def test_an_overloaded_decode_worker_says_nothing_of_its_prefill_worker() -> None:
    lab = Lab(prefill=1)
    lab.call()
    first, _ = prefilled(lab)
    lab.leg.answer(503, b"{}")
    assert lab.leg.worker == first
    prefilled(lab)
    lab.leg.stream(chunk("a"), DONE)
    lab.check_settled()


def test_a_decode_worker_that_breaks_off_behind_a_hand_over_is_to_blame_itself() -> None:
    lab = Lab(prefill=1)
    lab.call()
    first, failed = prefilled(lab)
    lab.leg.fail(ErrorKind.CLOSED_BEFORE_HEAD)
    assert lab.leg.worker == first
    prefilled(lab)
    lab.leg.stream(chunk("a"), DONE)
    assert lab.core.blamed == [failed]
    lab.check_settled()


def test_the_worker_that_keeps_failing_with_others_is_blamed() -> None:
    lab = Lab(prefill=1)
    for _ in range(2):
        lab.call()
        prefilled(lab)
        lab.leg.answer(500, b"{}")
        lab.leg.stream(chunk("a"), DONE)
    decoders = [decision.decode_worker for decision in lab.core.decisions if decision.path is Path.REMOTE]
    assert lab.core.blamed == (["p0"] if decoders[0] != decoders[1] else [])
    lab.check_settled()


@pytest.mark.parametrize("body", [chat_body(stream=False), chat_body()], ids=["whole", "stream"])
def test_a_hand_over_that_did_well_clears_both(body: bytes) -> None:
    lab = Lab(prefill=1, decode=1, max_attempts=1)

    def fail() -> None:
        lab.call(body)
        prefilled(lab)
        lab.leg.answer(500, b"{}")

    fail()
    lab.services.hand_overs.failed(WorkerId("p0"), WorkerId("another"))
    lab.call(body)
    prefilled(lab)
    if body == chat_body():
        lab.leg.stream(chunk("a"), DONE)
    else:
        lab.leg.answer(200, whole_answer())
    fail()
    assert lab.core.blamed == []
    lab.check_settled()


def test_a_stream_that_begins_with_an_error_behind_a_hand_over_proves_nothing() -> None:
    lab = Lab()
    lab.call()
    prefilled(lab)
    lab.leg.stream(LOST, DONE)
    assert lab.core.blamed == []
    assert lab.outcome().kind is OutcomeKind.UPSTREAM_ERROR
    lab.check_settled()


def test_a_stream_that_fails_after_content_is_the_decode_workers_fault() -> None:
    lab = Lab()
    lab.call()
    _, decode = prefilled(lab)
    lab.leg.stream(chunk("a"), LOST, DONE)
    assert lab.core.blamed == [decode]
    lab.check_settled()


@pytest.mark.parametrize("attempts", [1, 3])
def test_an_error_that_nobody_else_would_answer_otherwise_is_judged_the_same(attempts: int) -> None:
    lab = Lab(max_attempts=attempts)
    call = lab.call()
    prefilled(lab)
    lab.leg.answer(501, b"{}")
    assert call.sink.status == 501
    assert lab.core.blamed == []
    lab.check_settled()


# --- the decode worker goes down under the prefill leg ------------------------------------------------------------


def takes_down(lab: Lab, worker: WorkerId) -> None:
    for _ in range(3):
        lab.core.observe(WorkerProbed(at_s=lab.clock(), worker_id=worker, healthy=False))


def forces_out(lab: Lab, worker: WorkerId) -> None:
    lab.router.observe(WorkerDown(at_s=lab.clock(), worker_id=worker))


def check(lab: Lab) -> None:
    lab.services.pending.check(lab.router.health.is_down)


GOES = pytest.mark.parametrize("goes", [takes_down, forces_out], ids=["probes fail", "forced out"])
Goes = Callable[[Lab, WorkerId], None]


def begin(**fleet: Any) -> tuple[Lab, Call, WorkerId]:
    lab = Lab(**fleet)
    call = lab.call()
    return lab, call, lab.core.decisions[-1].decode_worker


@GOES
def test_the_prefill_leg_is_stopped_and_the_request_goes_elsewhere(goes: Goes) -> None:
    lab, call, lost = begin()
    first = lab.leg
    goes(lab, lost)
    check(lab)
    assert first.aborted
    again = lab.core.decisions[-1]
    assert (again.attempt, again.decode_worker) == (2, "d1" if lost == "d0" else "d0")
    prefilled(lab)
    lab.leg.stream(chunk("a"), DONE)
    assert call.sink.body == chunk("a") + DONE
    assert lab.core.blamed == []
    assert lab.count("retries_total", cause="connect") == 1
    assert lab.count("upstream_errors_total") == 0
    lab.check_settled()


@GOES
@pytest.mark.parametrize("fleet", [{"decode": 1}, {"max_attempts": 1}, {"retry_reserve": 0}], ids=str)
def test_with_nobody_else_to_ask_it_is_503(goes: Goes, fleet: dict[str, int]) -> None:
    lab, call, lost = begin(**fleet)
    goes(lab, lost)
    check(lab)
    assert (call.sink.status, call.sink.header(b"retry-after")) == (503, b"1")
    assert lab.leg.aborted
    assert lab.outcome().kind is OutcomeKind.UPSTREAM_ERROR
    lab.check_settled()


def test_a_prefill_for_a_worker_that_is_there_goes_on() -> None:
    lab, _, decode = begin()
    takes_down(lab, WorkerId("d1" if decode == "d0" else "d0"))
    check(lab)
    assert not lab.leg.aborted
    prefilled(lab)
    lab.leg.stream(chunk("a"), DONE)
    lab.check_settled()


@pytest.mark.parametrize(
    "moves_on",
    [
        lambda lab, call: call.journey.client_gone(),
        lambda lab, call: lab.leg.answer(200, prefill_answer()),
        lambda lab, call: lab.leg.answer(400, b"{}"),
    ],
    ids=["client left", "prefilled", "answered"],
)
def test_nobody_waits_once_the_prefill_leg_is_over(moves_on: Callable[[Lab, Call], object]) -> None:
    lab, call, decode = begin()
    moves_on(lab, call)
    legs = len(lab.pool.legs)
    takes_down(lab, decode)
    check(lab)
    assert len(lab.pool.legs) == legs
    call.journey.client_gone()
    lab.check_settled()


def test_all_that_wait_for_a_worker_are_told() -> None:
    lab = Lab(decode=2)
    calls = [lab.call(request_id=f"r{number}") for number in range(6)]
    lost = lab.core.decisions[0].decode_worker
    waiting = sum(decision.decode_worker == lost for decision in lab.core.decisions)
    takes_down(lab, lost)
    check(lab)
    assert sum(leg.aborted for leg in lab.pool.legs) == waiting > 1
    assert {decision.decode_worker for decision in lab.core.decisions[6:]} == {"d0", "d1"} - {lost}
    for call in calls:
        call.journey.client_gone()
    lab.check_settled()


def test_a_decode_worker_that_only_panic_picked_gets_no_prefill_made_for_it() -> None:
    lab = Lab(decode=1)
    for _ in range(5):
        lab.router.health.failed(WorkerId("d0"), lab.clock())
    call = lab.call()
    assert lab.leg.worker == "d0"
    assert lab.core.decisions[-1].reason is Reason.RULE_DECODE_EJECTED
    lab.leg.stream(chunk("a"), DONE)
    assert call.sink.header(b"x-tidegate-path") == b"local"
    lab.check_settled()


# --- what is said of a lost prefill -------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [lambda lab: lab.leg.answer(500, b"{}"), lambda lab: lab.leg.answer(200, b"{}")])
def test_a_prefill_that_the_decode_worker_did_is_called_local_everywhere(answer: Callable[[Lab], object]) -> None:
    lab = Lab(max_attempts=1)
    call = lab.call()
    prefill = lab.leg.worker
    answer(lab)
    lab.leg.answer(200, whole_answer(), JSON_HEAD)
    assert call.sink.header(b"x-tidegate-path") == b"local"
    ((decision, _, _, _),) = lab.records.kept
    assert isinstance(decision, Decision)
    assert (decision.path, decision.prefill_worker, decision.reason) == (Path.LOCAL, None, Reason.PREFILL_LOST)
    assert prefill in decision.words
    assert lab.count("requests_total", path="local") == lab.count("path_total", path="local") == 1
    lab.check_settled()
