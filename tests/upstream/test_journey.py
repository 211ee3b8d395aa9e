"""The ways on which all goes well, and those on which nothing may be sent at all."""

import json

import pytest

from gateway.core.events import Dispatched, Finished, FirstToken, Prefilled
from gateway.core.types import Endpoint, OutcomeKind, Path
from gateway.wire.dialects import ROUTES
from gateway.wire.disagg import nixl
from tests.upstream.journey_lab import (
    DECODE_LIMITS,
    DONE,
    JSON_HEAD,
    KV_PARAMS,
    MODEL,
    PREFILL_LIMITS,
    PREFILL_SECRET,
    Lab,
    chat_body,
    chunk,
    prefill_answer,
    usage_chunk,
    whole_answer,
)

TRICKY = chat_body(
    max_tokens=300,
    min_tokens=8,
    stream_options={"include_usage": True},
    seed=12345678901234567890123,
    temperature=0.30000000000000004,
    vendor={"b": 1, "a": [None, 2.50]},
)


def test_a_local_stream_reaches_the_client_byte_for_byte() -> None:
    lab = Lab.local()
    call = lab.call(TRICKY)
    pieces = [chunk("Hel"), chunk("lo")[:20], chunk("lo")[20:], usage_chunk(100, 2), DONE]
    lab.leg.stream(*pieces)
    assert call.sink.status == 200
    assert call.sink.body == b"".join(pieces)
    assert call.sink.finished
    assert lab.leg.body == TRICKY
    assert lab.leg.limits is DECODE_LIMITS
    assert lab.core.names() == ["Dispatched", "FirstToken", "Finished"]
    lab.check_settled()


def test_a_whole_local_answer_reaches_the_client_byte_for_byte() -> None:
    lab = Lab.local()
    call = lab.call(chat_body(stream=False))
    body = whole_answer(prompt=100, completion=5)
    lab.leg.head(200, JSON_HEAD).send(body[:30], body[30:]).end()
    assert call.sink.body == body
    assert call.sink.finished
    assert lab.core.names() == ["Dispatched", "FirstToken", "Finished"]
    assert (lab.outcome().input_tokens, lab.outcome().output_tokens) == (100, 5)
    lab.check_settled()


def test_a_completion_goes_to_its_own_route_with_its_query() -> None:
    lab = Lab.local()
    body = json.dumps({"model": MODEL, "prompt": "x" * 200}).encode()
    call = lab.call(body, endpoint=Endpoint.COMPLETIONS)
    assert lab.leg.target == b"/v1/completions"
    lab.leg.stream(b'data: {"choices":[{"index":0,"text":"hi","finish_reason":null}]}\n\n', DONE)
    assert call.sink.finished
    assert lab.outcome().ttft_s is not None
    lab.check_settled()


def test_a_remote_request_takes_two_legs_with_exact_bodies() -> None:
    lab = Lab()
    call = lab.call(TRICKY)
    prefill = lab.leg
    assert prefill.worker == lab.core.decisions[0].prefill_worker
    assert prefill.limits is PREFILL_LIMITS
    assert prefill.body == nixl.prefill_body(TRICKY, Endpoint.CHAT)
    asked = prefill.json
    assert (asked["max_tokens"], asked["max_completion_tokens"], asked["stream"]) == (1, 1, False)
    assert asked["kv_transfer_params"]["do_remote_decode"] is True
    assert not {"min_tokens", "stream_options"} & asked.keys()

    prefill.answer(200, prefill_answer())
    decode = lab.leg
    assert decode.worker == lab.core.decisions[0].decode_worker
    assert decode.limits is DECODE_LIMITS
    assert decode.body == nixl.decode_body(TRICKY, KV_PARAMS)
    assert decode.json == json.loads(TRICKY) | {"kv_transfer_params": json.loads(KV_PARAMS)}
    assert KV_PARAMS in decode.body

    pieces = [chunk("Hel"), chunk("lo"), DONE]
    decode.stream(*pieces)
    assert call.sink.body == b"".join(pieces)
    assert len(lab.pool.legs) == 2
    assert [type(event) for event in lab.core.events] == [Dispatched, Prefilled, FirstToken, Finished]
    assert lab.outcome().kind is OutcomeKind.OK
    assert lab.failures() == {}
    lab.check_settled()


def test_the_prefill_workers_text_is_never_shown() -> None:
    lab = Lab()
    call = lab.call(chat_body(stream=False))
    lab.leg.answer(200, prefill_answer())
    lab.leg.answer(200, whole_answer("the real answer"))
    assert PREFILL_SECRET.encode() not in call.sink.body
    assert call.sink.body == whole_answer("the real answer")


def test_both_legs_carry_the_same_id_which_is_unique_even_where_clients_repeat_theirs() -> None:
    lab = Lab()
    ids = []
    for _ in range(2):
        call = lab.call(request_id="same", headers=[(b"x-request-id", b"same")])
        lab.leg.answer(200, prefill_answer())
        lab.leg.stream(chunk("a"), DONE)
        assert call.sink.header(b"x-request-id") == b"same"
        of_prefill, of_decode = (leg.header(b"x-request-id") for leg in lab.pool.legs[-2:])
        assert of_prefill == of_decode
        ids += of_decode
    assert len(set(ids)) == 2
    assert all(found.startswith(b"same-") for found in ids)


def test_an_upstream_id_stays_within_what_engines_take() -> None:
    lab = Lab.local()
    lab.call(request_id="r" * 128)
    (sent,) = lab.leg.header(b"x-request-id")
    assert len(sent) == 128
    assert sent.endswith(lab.core.decisions[0].decision_id.encode())


def test_the_answer_says_how_it_was_routed() -> None:
    lab = Lab()
    call = lab.call(request_id="abc")
    lab.leg.answer(200, prefill_answer())
    lab.leg.stream(chunk("a"), DONE)
    decision = lab.core.decisions[0]
    assert call.sink.header(b"x-request-id") == b"abc"
    assert call.sink.header(b"x-tidegate-decision-id") == decision.decision_id.encode()
    assert call.sink.header(b"x-tidegate-path") == b"remote"
    assert call.sink.header(b"x-tidegate-worker") == decision.decode_worker.encode()
    assert call.sink.header(b"x-tidegate-policy") == b"remote"


def test_the_workers_headers_pass_except_those_of_one_hop_and_its_request_id() -> None:
    lab = Lab.local()
    call = lab.call(request_id="abc")
    head = [(b"x-worker", b"1"), (b"x-request-id", b"the-workers"), (b"connection", b"close"), (b"date", b"today")]
    lab.leg.answer(200, whole_answer(), head)
    assert call.sink.header(b"x-worker") == b"1"
    assert call.sink.header(b"x-request-id") == b"abc"
    assert call.sink.header(b"connection") is None
    assert call.sink.header(b"date") is None


def test_the_clients_authorization_reaches_the_worker() -> None:
    lab = Lab.local()
    lab.call(headers=[(b"authorization", b"Bearer key"), (b"host", b"gateway.local")])
    assert lab.leg.header(b"authorization") == [b"Bearer key"]
    assert lab.leg.header(b"host") == [lab.leg.origin.authority]


@pytest.mark.parametrize("status", [400, 401, 404, 413, 422])
def test_a_clients_mistake_is_relayed_byte_for_byte_from_the_decode_leg_and_blames_nobody(status: int) -> None:
    lab = Lab()
    call = lab.call()
    lab.leg.answer(200, prefill_answer())
    lab.leg.answer(status, b'{"error": {"message":  "too long"}}')
    assert call.sink.status == status
    assert call.sink.body == b'{"error": {"message":  "too long"}}'
    assert lab.outcome().kind is OutcomeKind.CLIENT_ERROR
    assert lab.outcome().attained is None
    assert len(lab.pool.legs) == 2
    assert lab.core.blamed == []
    assert lab.failures() == {}
    assert lab.count("upstream_errors_total") == 0
    lab.check_settled()


@pytest.mark.parametrize("status", [400, 404, 422])
def test_a_clients_mistake_is_relayed_byte_for_byte_from_the_prefill_leg(status: int) -> None:
    lab = Lab()
    call = lab.call()
    lab.leg.answer(status, b'{"error":{"message":"bad"}}')
    assert call.sink.status == status
    assert call.sink.body == b'{"error":{"message":"bad"}}'
    assert call.sink.header(b"x-worker") == b"yes"
    assert call.sink.finished
    assert len(lab.pool.legs) == 1
    assert lab.outcome().kind is OutcomeKind.CLIENT_ERROR
    assert lab.failures() == {}
    lab.check_settled()


def test_a_thousand_mistakes_of_clients_open_no_breaker() -> None:
    lab = Lab.local(decode=1)
    for _ in range(1000):
        lab.call()
        lab.leg.answer(400, b"{}")
    assert lab.router.health.routable([lab.leg.worker], may_panic=False) == [lab.leg.worker]
    lab.check_settled()


@pytest.mark.parametrize("route", [path for path, route in ROUTES.items() if route.endpoint is not Endpoint.AUDIO])
def test_no_dialect_lets_a_client_steer_transfers(route: str) -> None:
    lab = Lab.local()
    params = {"kv_transfer_params": {"a": 1}, "ec_transfer_params": {"a": 1}}
    body = json.dumps({"model": MODEL, "vllm_xargs": params, **params}).encode()
    lab.call(body, dialect=ROUTES[route], peeked=lab.peek(chat_body(), Endpoint.CHAT))
    assert lab.leg.json == {"model": MODEL, "vllm_xargs": {}}


@pytest.mark.parametrize("forged", [{"do_remote_prefill": True, "remote_block_ids": [7]}, "nonsense", [], 0])
def test_transfer_parameters_of_a_client_never_reach_a_worker(forged: object) -> None:
    body = chat_body(kv_transfer_params=forged)
    local = Lab.local()
    local.call(body)
    assert local.leg.json == json.loads(chat_body())

    remote = Lab()
    remote.call(body)
    assert remote.leg.json["kv_transfer_params"]["do_remote_decode"] is True
    remote.leg.answer(200, prefill_answer())
    assert remote.leg.json["kv_transfer_params"] == json.loads(KV_PARAMS)

    lost = Lab(prefill=1, max_attempts=1)
    lost.call(body)
    lost.leg.answer(500, b"{}")
    assert "kv_transfer_params" not in lost.leg.json


def test_an_unknown_model_is_404_and_starts_nothing() -> None:
    lab = Lab()
    call = lab.call(json.dumps({"model": "nobody", "messages": [{"role": "user", "content": "hi"}]}).encode())
    assert call.sink.status == 404
    assert call.sink.error()["code"] == "model_not_found"
    assert call.sink.header(b"x-request-id") == b"req-1"
    assert call.sink.header(b"x-tidegate-path") is None
    assert call.sink.header(b"content-length") == b"%d" % len(call.sink.body)
    assert lab.pool.legs == []
    assert lab.outcome().kind is OutcomeKind.REFUSED
    assert lab.count("refusals_total", reason="model_not_found") == 1
    assert lab.count("requests_total", model="other", path="none", outcome="refused") == 1
    lab.check_settled()


def test_a_fleet_without_a_decode_worker_is_503_with_a_retry_hint() -> None:
    lab = Lab(decode=0)
    call = lab.call()
    assert call.sink.status == 503
    assert call.sink.header(b"retry-after") == b"1"
    assert call.sink.error()["code"] == "no_worker_available"
    lab.check_settled()


def test_a_refused_request_stays_refused_when_its_client_leaves() -> None:
    lab = Lab(decode=0)
    call = lab.call()
    call.journey.client_gone()
    assert lab.outcome().kind is OutcomeKind.REFUSED
    lab.check_settled()


@pytest.mark.parametrize("path", list(Path))
def test_a_header_that_could_be_read_in_two_ways_is_400_and_sends_nothing(path: Path) -> None:
    lab = Lab.on(path)
    call = lab.call(headers=[(b"x-evil", b"a\r\nx-admin: yes")])
    assert call.sink.status == 400
    assert call.sink.error()["type"] == "invalid_request_error"
    assert lab.pool.legs == []
    assert lab.outcome().kind is OutcomeKind.CLIENT_ERROR
    assert lab.core.names() == ["Finished"]
    assert lab.failures() == {}
    lab.check_settled()


def test_a_closed_pool_is_503() -> None:
    lab = Lab()
    lab.pool.close()
    call = lab.call()
    assert call.sink.status == 503
    assert lab.outcome().kind is OutcomeKind.UPSTREAM_ERROR
    assert lab.failures() == {}
    lab.check_settled()


@pytest.mark.parametrize("path", list(Path))
def test_a_pool_that_closes_under_a_request_is_503_and_blames_nobody(path: Path) -> None:
    lab = Lab.on(path)
    call = lab.call()
    lab.pool.close()
    assert call.sink.status == 503
    assert call.sink.finished
    assert lab.failures() == {}
    lab.check_settled()


@pytest.mark.parametrize("path", list(Path))
def test_a_body_that_cannot_be_edited_is_400_and_holds_nothing(path: Path) -> None:
    lab = Lab.on(path)
    peeked = lab.peek(chat_body(kv_transfer_params={"a": 1}), Endpoint.CHAT)
    call = lab.call(b'{"kv_transfer_params":' + b"[" * 5000, peeked=peeked)
    assert call.sink.status == 400
    assert "nested" in call.sink.error()["message"]
    assert lab.pool.legs == []
    lab.check_settled()
