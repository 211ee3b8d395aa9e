"""Answers that stop short: a stream without its end, and an answer that broke off while it was held."""

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

FINISHED = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'


@pytest.mark.parametrize("hide_usage", [False, True])
def test_a_stream_that_ends_amid_its_content_ends_with_an_error_event(hide_usage: bool) -> None:
    lab = Lab.local()
    call = lab.call(hide_usage=hide_usage)
    lab.leg.stream(chunk("a"), b'data: {"choi')
    *kept, error, done, rest = call.sink.body.split(b"\n\n")
    assert kept[0] + b"\n\n" == chunk("a")
    assert json.loads(error.removeprefix(b"data: "))["error"]["code"] == "bad_gateway"
    assert (done, rest) == (b"data: [DONE]", b"")
    assert call.sink.finished
    assert lab.outcome().kind is OutcomeKind.UPSTREAM_ERROR
    assert len(lab.core.blamed) == 1
    lab.check_settled()


@pytest.mark.parametrize("pieces", [(), (FINISHED,), (chunk("a"), FINISHED), (chunk("a"), DONE)])
def test_a_stream_that_tells_its_end_or_nothing_at_all_passes_as_it_is(pieces: tuple[bytes, ...]) -> None:
    lab = Lab.local()
    call = lab.call()
    lab.leg.stream(*pieces)
    assert call.sink.body == b"".join(pieces)
    assert lab.outcome().kind is OutcomeKind.OK
    assert lab.core.blamed == []
    lab.check_settled()


def test_a_stream_declares_no_length_to_the_client_for_it_may_end_in_an_error() -> None:
    lab = Lab.local()
    call = lab.call()
    lab.leg.head(200, [*SSE_HEAD, (b"content-length", b"999")])
    assert call.sink.header(b"content-length") is None


@pytest.mark.parametrize("kind", [ErrorKind.TRUNCATED, ErrorKind.IDLE_TIMEOUT, ErrorKind.MALFORMED])
def test_a_whole_answer_that_breaks_off_behind_a_prefill_leg_is_asked_for_anew(kind: ErrorKind) -> None:
    lab = Lab.on(Path.REMOTE)
    call = lab.call(chat_body(stream=False))
    lab.leg.answer(200, prefill_answer())
    failed = lab.leg.worker
    lab.leg.head(200, JSON_HEAD).send(whole_answer()[:20]).fail(kind)
    assert call.sink.status is None
    lab.leg.answer(200, prefill_answer())
    assert lab.leg.worker != failed
    lab.leg.answer(200, whole_answer("again"))
    assert json.loads(call.sink.body)["choices"][0]["message"]["content"] == "again"
    assert lab.outcome().kind is OutcomeKind.OK
    assert lab.core.blamed == [failed]
    lab.check_settled()


def test_an_error_answer_that_breaks_off_while_it_is_held_is_another_workers_to_give() -> None:
    lab = Lab.local()
    call = lab.call(chat_body(stream=False))
    lab.leg.head(500, JSON_HEAD).send(b'{"err').fail(ErrorKind.TRUNCATED)
    lab.leg.answer(200, whole_answer())
    assert (call.sink.status, call.sink.body) == (200, whole_answer())
    lab.check_settled()


def test_a_held_answer_that_breaks_off_as_the_gateway_stops_is_not_asked_for_anew() -> None:
    lab = Lab.on(Path.REMOTE)
    call = lab.call(chat_body(stream=False))
    lab.leg.answer(200, prefill_answer())
    lab.leg.head(200, JSON_HEAD).send(whole_answer()[:20])
    lab.pool.close()
    assert (call.sink.status, len(lab.core.decisions)) == (503, 1)
    lab.check_settled()
