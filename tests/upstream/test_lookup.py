"""Stored responses: one worker has it, and it is found without a decision."""

import json
from typing import Any

import pytest

from gateway.core.types import OutcomeKind, RequestId, WorkerId
from gateway.upstream.errors import ErrorKind
from gateway.upstream.lookup import MAX_PASSED_OVER_BYTES, Lookup
from gateway.upstream.services import ClientRequest
from gateway.wire.dialects import RESPONSES
from gateway.wire.errors import response_not_found
from tests.upstream.journey_lab import DECODE_LIMITS, JSON_HEAD, SSE_HEAD, Lab, RecordingSink

TARGET = b"/v1/responses/resp_1?stream=true&starting_after=3"
NOT_KEPT = b'{"error":{"message":"no","type":"invalid_request_error","param":"response_id","code":404}}'
KEPT = b'{"id":"resp_1"}'


class Asked:
    """One request for a stored response, in a lab."""

    def __init__(self, *workers: str, known: bool = False, method: bytes = b"GET", body: bytes = b"") -> None:
        self.lab = Lab(prefill=0, decode=4)
        self.sink = RecordingSink()
        request = ClientRequest(
            request_id=RequestId("req-1"),
            method=method,
            target=TARGET,
            headers=[(b"accept", b"*/*"), (b"authorization", b"Bearer mine")],
            body=body,
            arrived_s=self.lab.clock(),
            dialect=RESPONSES,
            own_headers=((b"authorization", b"Bearer theirs"),),
        )
        self.lookup = Lookup(
            self.lab.services,
            request,
            self.sink,
            workers=[WorkerId(name) for name in workers],
            missing=None if known else response_not_found("resp_1"),
        )
        self.lookup.begin()

    @property
    def legs(self) -> list[Any]:
        return self.lab.pool.legs

    def asked(self) -> list[str]:
        return [leg.worker for leg in self.legs]

    def check_ended(self, kind: OutcomeKind, status: int) -> None:
        """One record and one metric, no decision, no reservation, and nothing runs on."""
        ((routed, outcome, request_id, model),) = self.lab.records.kept
        assert (routed, outcome.kind, outcome.status, request_id, model) == (None, kind, status, "req-1", None)
        assert self.lab.count("requests_total", outcome=kind.value) == self.lab.count("requests_total") == 1
        assert not self.lab.core.decisions
        assert not self.lab.core.events
        assert all(leg.over for leg in self.legs)


def test_a_known_response_takes_one_call_and_passes_untouched() -> None:
    asked = Asked("d2", known=True)
    leg = asked.lab.leg
    assert leg.sent_head.startswith(b"GET " + TARGET + b" HTTP/1.1\r\n")
    assert (leg.header(b"authorization"), leg.header(b"x-request-id")) == ([b"Bearer theirs"], [b"req-1"])
    assert leg.limits is not None
    assert leg.limits.first_byte_timeout_s == DECODE_LIMITS.first_byte_timeout_s
    asked.lab.clock.advance(2.0)
    leg.answer(200, KEPT)
    assert (asked.sink.status, asked.sink.body, asked.sink.finished) == (200, KEPT, True)
    assert asked.sink.header(b"x-tidegate-worker") == b"d2"
    assert asked.sink.header(b"x-request-id") == b"req-1"
    assert asked.sink.header(b"x-tidegate-decision-id") is None
    assert asked.asked() == ["d2"]
    assert asked.lab.outcome().duration_s == 2.0
    asked.check_ended(OutcomeKind.OK, 200)


@pytest.mark.parametrize(("status", "kind"), [(404, "client_error"), (405, "client_error"), (500, "upstream_error")])
def test_the_word_of_the_worker_that_keeps_it_counts(status: int, kind: str) -> None:
    asked = Asked("d0", known=True)
    asked.lab.leg.answer(status, NOT_KEPT)
    assert (asked.sink.status, asked.sink.body) == (status, NOT_KEPT)
    assert asked.lab.count("upstream_errors_total", worker="d0") == (status == 500)
    asked.check_ended(OutcomeKind(kind), status)


def test_workers_are_asked_in_turn_until_one_knows_it() -> None:
    asked = Asked("d0", "d1", "d2", "d3", method=b"POST", body=b"{}")
    asked.lab.leg.answer(404, NOT_KEPT)
    asked.lab.leg.answer(404, b'{"detail":"Not Found"}')
    assert asked.sink.status is None
    asked.lab.leg.answer(405, b'{"detail":"Method Not Allowed"}', [*JSON_HEAD, (b"allow", b"GET")])
    assert asked.asked() == ["d0", "d1", "d2"]
    assert (asked.sink.status, asked.sink.header(b"allow")) == (405, b"GET")
    assert [leg.body for leg in asked.legs] == [b"{}"] * 3
    asked.check_ended(OutcomeKind.CLIENT_ERROR, 405)


def test_nobody_knows_it() -> None:
    asked = Asked("d0", "d1")
    for _ in range(2):
        asked.lab.leg.answer(404, NOT_KEPT)
    assert asked.sink.status == 404
    assert asked.sink.error() == {
        "message": "Response with id 'resp_1' not found.",
        "type": "invalid_request_error",
        "param": "response_id",
        "code": "response_not_found",
    }
    asked.check_ended(OutcomeKind.CLIENT_ERROR, 404)


@pytest.mark.parametrize(
    ("kind", "status"),
    [(ErrorKind.CONNECT_REFUSED, 502), (ErrorKind.FIRST_BYTE_TIMEOUT, 504), (ErrorKind.POOL_TIMEOUT, 503)],
)
def test_one_that_could_not_say_might_have_it(kind: ErrorKind, status: int) -> None:
    asked = Asked("d0", "d1", "d2")
    asked.lab.leg.answer(404, NOT_KEPT)
    asked.lab.leg.fail(kind)
    asked.lab.leg.answer(404, NOT_KEPT)
    assert asked.sink.status == status
    assert asked.sink.error()["type"] == "server_error"
    assert asked.lab.count("upstream_errors_total", worker="d1") == 1
    timed_out = kind is ErrorKind.FIRST_BYTE_TIMEOUT
    asked.check_ended(OutcomeKind.TIMEOUT if timed_out else OutcomeKind.UPSTREAM_ERROR, status)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_an_error_of_one_worker_does_not_hide_what_another_keeps(status: int) -> None:
    asked = Asked("d0", "d1")
    asked.lab.leg.answer(status, b"oh")
    asked.lab.leg.answer(200, KEPT)
    assert (asked.sink.status, asked.sink.body) == (200, KEPT)
    asked.check_ended(OutcomeKind.OK, 200)


def test_the_worker_that_keeps_it_is_down() -> None:
    asked = Asked("d1", known=True)
    asked.lab.leg.fail(ErrorKind.CONNECT_REFUSED)
    assert (asked.sink.status, asked.sink.error()["code"]) == (502, "bad_gateway")
    assert asked.asked() == ["d1"]
    asked.check_ended(OutcomeKind.UPSTREAM_ERROR, 502)


@pytest.mark.parametrize("workers", [(), ("gone", "left")])
def test_nobody_is_there(workers: tuple[str, ...]) -> None:
    asked = Asked(*workers)
    assert asked.sink.status == 503
    assert asked.sink.header(b"retry-after") == b"1"
    asked.check_ended(OutcomeKind.UPSTREAM_ERROR, 503)


def test_one_that_left_meanwhile_is_passed_over() -> None:
    asked = Asked("gone", "d1")
    asked.lab.leg.answer(200, KEPT)
    assert asked.asked() == ["d1"]
    asked.check_ended(OutcomeKind.OK, 200)


def test_a_stream_passes_as_it_comes_and_waits_for_its_client() -> None:
    asked = Asked("d0", known=True)
    leg = asked.lab.leg.head(200, SSE_HEAD).send(b"event: a\n\n")
    assert asked.sink.body == b"event: a\n\n"
    asked.lookup.pause()
    assert leg.paused
    asked.lookup.resume()
    assert not leg.paused
    leg.send(b"event: b\n\n").end()
    assert asked.sink.finished
    asked.check_ended(OutcomeKind.OK, 200)


def test_a_stream_that_breaks_off_says_so() -> None:
    asked = Asked("d0", known=True)
    asked.lab.leg.head(200, SSE_HEAD).send(b"event: a\nda").fail(ErrorKind.TRUNCATED)
    *_, last = asked.sink.body.split(b"\n\nevent: error\ndata: ")
    assert json.loads(last)["code"] == "bad_gateway"
    assert asked.sink.finished
    asked.check_ended(OutcomeKind.UPSTREAM_ERROR, 200)


def test_a_whole_answer_that_breaks_off_is_never_ended() -> None:
    asked = Asked("d0", known=True)
    asked.lab.leg.head(200, JSON_HEAD).send(b'{"id"').fail(ErrorKind.TRUNCATED)
    assert asked.sink.broken
    asked.check_ended(OutcomeKind.UPSTREAM_ERROR, 200)


@pytest.mark.parametrize("head_seen", [False, True])
def test_a_client_that_leaves_stops_the_worker(head_seen: bool) -> None:
    asked = Asked("d0", "d1")
    asked.lab.leg.answer(404, NOT_KEPT)
    if head_seen:
        asked.lab.leg.head(200, SSE_HEAD)
    asked.lookup.client_gone()
    asked.lookup.client_gone()
    assert asked.lab.leg.aborted
    asked.check_ended(OutcomeKind.CANCELLED, 499)


def test_a_long_answer_is_not_waited_for_before_the_next_is_asked() -> None:
    asked = Asked("d0", "d1")
    asked.lab.leg.head(404, JSON_HEAD).send(b"x" * MAX_PASSED_OVER_BYTES, b"x")
    assert asked.legs[0].aborted
    asked.lab.leg.answer(200, KEPT)
    asked.check_ended(OutcomeKind.OK, 200)


def test_a_gateway_that_stops_says_so() -> None:
    asked = Asked("d0", "d1")
    asked.lab.pool.close()
    assert asked.sink.status == 503
    asked.check_ended(OutcomeKind.UPSTREAM_ERROR, 503)


def test_a_header_that_cannot_be_forwarded_is_the_clients_doing() -> None:
    lab, sink = Lab(prefill=0), RecordingSink()
    request = ClientRequest(
        request_id=RequestId("req-1"),
        method=b"GET",
        target=TARGET,
        headers=[(b"x", b"a\r\nb: c")],
        body=b"",
        arrived_s=lab.clock(),
        dialect=RESPONSES,
    )
    Lookup(lab.services, request, sink, workers=[WorkerId("d0")], missing=None).begin()
    assert sink.status == 400
    assert lab.outcome().kind is OutcomeKind.CLIENT_ERROR
