"""The id of a response on its way from the worker to the core."""

import json
from typing import Any

import pytest

from gateway.core.conversation.rules import ConversationRules, Mode
from gateway.core.events import Finished
from gateway.core.types import OutcomeKind, RequestId
from gateway.upstream.errors import ErrorKind
from gateway.wire.conversation_names import NAMELESS, ConversationReader
from gateway.wire.decision_record import DecisionRecord, decode_record, encode_record
from gateway.wire.dialects import RESPONSES
from gateway.wire.journal import decode_call, encode_call
from gateway.wire.peeked import Peeked
from tests.upstream.journey_lab import DONE, JSON_HEAD, MODEL, Call, Lab, chat_body, chunk

CREATED = b'event: response.created\ndata: {"type":"response.created","response":{"id":"resp_1"}}\n\n'
DELTA = b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"a"}\n\n'
COMPLETED = b'event: response.completed\ndata: {"type":"response.completed","response":{"id":"resp_1"}}\n\n'
WHOLE = b'{"id":"resp_1","object":"response","usage":{"input_tokens":5,"output_tokens":2}}'


def ask(lab: Lab, **fields: Any) -> Call:
    body = json.dumps({"model": MODEL, "input": "hi", **fields}).encode()
    found = RESPONSES.peek(body, request_id=RequestId("r"), conversation=ConversationReader(names=NAMELESS))
    assert isinstance(found, Peeked)
    return lab.call(body, peeked=found, dialect=RESPONSES)


def off() -> Lab:
    return Lab.local(decode=4, conversation=ConversationRules(mode=Mode.OFF))


@pytest.mark.parametrize(
    ("fields", "response_id"), [({}, "resp_1"), ({"store": True}, "resp_1"), ({"store": False}, None)]
)
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_is_kept_is_known_by_its_id(
    fields: dict[str, Any], response_id: str | None, stream: bool
) -> None:
    lab = off()
    ask(lab, **fields)
    if stream:
        lab.leg.stream(CREATED, DELTA, COMPLETED)
    else:
        lab.leg.answer(200, WHOLE)
    assert lab.outcome().response_id == response_id
    (told,) = [event for event in lab.core.events if isinstance(event, Finished)]
    assert told.outcome.response_id == response_id
    assert decode_call(encode_call("observe", 1.0, told)).payload == told
    routed, outcome, request_id, model = lab.records.kept[0]
    record = DecisionRecord(
        request_id=request_id,
        arrived_at_s=0.0,
        model=model,
        decision=routed,
        refusal=None,
        outcome=outcome,  # type: ignore[arg-type]
    )
    assert decode_record(encode_record(record)).outcome.response_id == response_id


def test_what_goes_on_from_it_goes_to_its_worker() -> None:
    lab = off()
    ask(lab)
    home = lab.leg.worker
    lab.leg.answer(200, WHOLE)
    for _ in range(6):
        ask(lab, previous_response_id="resp_1")
        assert lab.leg.worker == home
    ask(lab, previous_response_id="resp_2")


def test_where_its_worker_fails_nobody_else_is_asked() -> None:
    lab = off()
    ask(lab)
    lab.leg.answer(200, WHOLE)
    call = ask(lab, previous_response_id="resp_1")
    legs = len(lab.pool.legs)
    lab.leg.fail(ErrorKind.CONNECT_REFUSED)
    assert len(lab.pool.legs) == legs
    assert call.sink.status == 502


@pytest.mark.parametrize("status", [400, 404, 500])
def test_an_error_has_no_id(status: int) -> None:
    lab = Lab.local(decode=1)
    ask(lab)
    lab.leg.answer(status, b'{"error":{"message":"no"}}')
    assert lab.outcome().response_id is None


def test_a_stream_whose_client_left_may_be_kept() -> None:
    lab = off()
    call = ask(lab, background=True)
    lab.leg.head().send(CREATED)
    call.journey.client_gone()
    outcome = lab.outcome()
    assert (outcome.kind, outcome.response_id) == (OutcomeKind.CANCELLED, "resp_1")


def test_a_chat_has_none() -> None:
    lab = Lab.local()
    lab.call(chat_body(stream=False))
    lab.leg.answer(200, b'{"id":"chatcmpl-1","choices":[]}', JSON_HEAD)
    lab.call()
    lab.leg.stream(chunk("a"), DONE)
    assert [outcome.response_id for _, outcome, _, _ in lab.records.kept] == [None, None]
