"""vLLM 0.32's recorded answers through a gateway: the client gets the worker's bytes, the worker the client's."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from gateway.core.types import OutcomeKind
from gateway.wire.usage_edit import inject_usage
from tests.recordings.exchanges import Exchange, Headers, Message, exchange, recorded
from tests.recordings.replay import ODD_WRITES, ReplayWorker, replay

pytestmark = [pytest.mark.shared_data, pytest.mark.e2e]

FOLDER = "tiny"
MODEL = "tiny-llama"
ASK_FOR_USAGE = b'"stream_options": {"include_usage": true}'
INJECTED = b',"stream_options":{"include_usage":true}}'
# What the gateway answers itself: it cannot route these, and says so with vLLM's own status.
UNREADABLE = {"err_bad_json", "err_bad_max_tokens", "err_empty_messages", "err_missing_messages", "err_missing_prompt"}
UNKNOWN_MODEL = {"err_bad_model", "err_bad_model_stream"}
# The head of an answer belongs to its hop in these, and x-request-id is the gateway's own.
OWN_HEADERS = {b"connection", b"transfer-encoding", b"date", b"server", b"x-request-id"}
GATEWAY_HEADERS = {
    b"x-tidegate-decision-id": b"gw-1",
    b"x-tidegate-path": b"local",
    b"x-tidegate-worker": b"w0",
    b"x-tidegate-policy": None,
}


def proxied(pair: Exchange) -> bool:
    return pair.is_routed and pair.name not in UNREADABLE | UNKNOWN_MODEL


def models_page() -> bytes:
    return exchange(FOLDER, "get_models").response.body


def passed(headers: Headers, *, reframed: bool = False) -> Headers:
    """Of an answer's headers those that go through the gateway, in their order."""
    own = OWN_HEADERS | ({b"content-length"} if reframed else set())
    return [(name, value) for name, value in headers if name not in own and not name.startswith(b"x-tidegate-")]


def hides_usage(body: bytes) -> bool:
    """Whether the gateway asks for a usage that the client does not get."""
    return b'"stream": true' in body and b'"include_usage": true' not in body


def without_usage_chunk(body: bytes) -> bytes:
    """The events of a stream but for the one that `include_usage` adds."""
    events = re.findall(rb".*?\n\n", body, re.DOTALL)
    return b"".join(event for event in events if not (b'"choices":[],' in event and b'"usage":{' in event))


def check_asked(asked: Message, request: Message, body: bytes) -> None:
    """The worker got the client's request."""
    assert asked.start == request.start
    assert asked.header(b"content-type") == request.header(b"content-type")
    if hides_usage(body):
        assert asked.body == body[:-1] + INJECTED
    else:
        assert asked.body == body


def check_answered(answer: Message, response: Message, *, reframed: bool, body: bytes) -> None:
    """The client got the worker's answer."""
    assert answer.status == response.status
    assert answer.body == body
    assert passed(answer.headers, reframed=reframed) == passed(response.headers, reframed=reframed)
    for name, value in GATEWAY_HEADERS.items():
        found = [given for key, given in answer.headers if key == name]
        assert len(found) == 1
        assert value is None or found == [value]
    assert [key for key, _ in answer.headers].count(b"x-request-id") == 1


@pytest.mark.parametrize("pair", recorded(FOLDER, proxied))
async def test_a_recorded_answer_passes_unchanged(pair: Exchange, tmp_path: Path) -> None:
    worker = ReplayWorker(pair.response_bytes)
    await check_passes(pair, worker, tmp_path)


@pytest.mark.parametrize("pair", recorded(FOLDER, lambda pair: proxied(pair) and pair.is_stream))
async def test_a_recorded_stream_in_odd_pieces_passes_unchanged(pair: Exchange, tmp_path: Path) -> None:
    worker = ReplayWorker(pair.response_bytes, write_sizes=ODD_WRITES)
    await check_passes(pair, worker, tmp_path)


async def check_passes(pair: Exchange, worker: ReplayWorker, tmp_path: Path) -> None:
    async with replay({"w0": worker}, log=tmp_path / "log", models_page=models_page()) as bench:
        answer = await bench.repeat(pair.request)
        await bench.check_settled(1)
        assert bench.failures("w0") == 0
    (asked,) = worker.asked
    check_asked(asked, pair.request, pair.request.body)
    reframed = pair.is_stream and hides_usage(pair.request.body)
    check_answered(answer, pair.response, reframed=reframed, body=pair.response.body)
    (record,) = bench.records()
    assert record.outcome.status == pair.response.status
    assert record.outcome.kind is (OutcomeKind.OK if pair.response.status == 200 else OutcomeKind.CLIENT_ERROR)


@pytest.mark.parametrize("write_sizes", [(), ODD_WRITES], ids=["whole", "odd"])
@pytest.mark.parametrize(
    "name", ["chat_stream_usage", "chat_stream_usage_continuous", "chat_n2_stream", "cmpl_stream_usage"]
)
async def test_a_usage_that_the_client_did_not_ask_for_is_all_that_is_taken_out(
    name: str, write_sizes: tuple[int, ...], tmp_path: Path
) -> None:
    pair = exchange(FOLDER, name)
    body = re.sub(rb', "stream_options": \{[^}]*\}', b"", pair.request.body)
    assert hides_usage(body)
    worker = ReplayWorker(pair.response_bytes, write_sizes=write_sizes)
    async with replay({"w0": worker}, log=tmp_path / "log", models_page=models_page()) as bench:
        answer = await bench.repeat(pair.request, body=body)
        await bench.check_settled(1)
    check_asked(worker.asked[0], pair.request, body)
    expected = without_usage_chunk(pair.response.body)
    assert expected != pair.response.body
    check_answered(answer, pair.response, reframed=True, body=expected)
    (record,) = bench.records()
    assert record.outcome.output_tokens is not None


def refused(pair: Exchange) -> bool:
    return pair.is_routed and not proxied(pair)


@pytest.mark.parametrize("pair", recorded(FOLDER, refused))
async def test_what_cannot_be_routed_is_refused_as_vllm_refuses_it(pair: Exchange, tmp_path: Path) -> None:
    worker = ReplayWorker(pair.response_bytes)
    async with replay({"w0": worker}, log=tmp_path / "log", models_page=models_page()) as bench:
        answer = await bench.repeat(pair.request)
        await bench.check_settled(1)
    assert worker.asked == []
    assert answer.status == pair.response.status == (404 if pair.name in UNKNOWN_MODEL else 400)
    check_openai_error(answer)
    (record,) = bench.records()
    assert record.decision is None
    assert record.outcome.status == answer.status


def check_openai_error(answer: Message) -> None:
    assert answer.header(b"content-type") == b"application/json"
    error = json.loads(answer.body)["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["message"]


# What the gateway answers itself, and with which status: it is no engine, and only tells of itself.
OWN = {
    "err_404": 404,
    "err_405": 405,
    "get_health": 200,
    "get_load": 404,
    "get_metrics": 200,
    "get_metrics_after": 200,
    "get_models": 200,
    "get_openapi": 200,
    "get_ping": 404,
    "get_tokenizer_info": 404,
    "get_version": 200,
    "reset_prefix_cache": 404,
}


@pytest.mark.parametrize("pair", recorded(FOLDER, lambda pair: not pair.is_routed))
async def test_all_other_routes_are_the_gateways_own(pair: Exchange, tmp_path: Path) -> None:
    worker = ReplayWorker(pair.response_bytes)
    async with replay({"w0": worker}, log=tmp_path / "log", models_page=models_page()) as bench:
        answer = await bench.repeat(pair.request)
    assert answer.status == OWN[pair.name]
    if answer.status >= 400:
        check_openai_error(answer)
    assert worker.asked == []


async def test_a_model_card_keeps_all_that_vllm_says(tmp_path: Path) -> None:
    pair = exchange(FOLDER, "get_models")
    async with replay({"w0": ReplayWorker()}, log=tmp_path / "log", models_page=models_page()) as bench:
        answer = await bench.repeat(pair.request)
    assert answer.header(b"content-type") == pair.response.header(b"content-type")
    assert json.loads(answer.body) == json.loads(pair.response.body)


def test_every_recording_is_replayed() -> None:
    exchange(FOLDER, "get_models")
    cases: list[Any] = [*recorded(FOLDER, proxied), *recorded(FOLDER, refused)]
    own = recorded(FOLDER, lambda pair: not pair.is_routed)
    assert {case.id for case in own} == OWN.keys()
    assert len(cases) + len(own) == len(recorded(FOLDER))


def test_the_injected_usage_is_the_documented_one() -> None:
    assert inject_usage(b'{"stream": true}') == b'{"stream": true' + INJECTED
