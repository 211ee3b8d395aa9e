import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.types import Endpoint
from gateway.wire.disagg.nixl import PrefillAnswer, decode_body, parse_prefill_answer, prefill_body
from gateway.wire.usage import Usage

ENDPOINTS = st.sampled_from([Endpoint.CHAT, Endpoint.COMPLETIONS])

ASK = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
NOTHING = PrefillAnswer(kv_transfer_params=None, usage=None)


def prefill(request: dict[str, Any], endpoint: Endpoint = Endpoint.CHAT) -> dict[str, Any]:
    return json.loads(prefill_body(json.dumps(request).encode(), endpoint))


def test_a_chats_prefill_leg_makes_one_token_and_no_stream() -> None:
    request = {"model": "m", "stream": True, "stream_options": {"include_usage": True}, "max_tokens": 100, "n": 1}
    assert prefill(request) == {
        "model": "m",
        "stream": False,
        "max_tokens": 1,
        "n": 1,
        "kv_transfer_params": ASK,
        "max_completion_tokens": 1,
    }


def test_a_completions_prefill_leg_has_no_chat_limit() -> None:
    assert prefill({"model": "m", "prompt": "p"}, Endpoint.COMPLETIONS) == {
        "model": "m",
        "prompt": "p",
        "max_tokens": 1,
        "stream": False,
        "kv_transfer_params": ASK,
    }


def test_minimum_lengths_are_removed_for_prefill_and_kept_for_decode() -> None:
    request = {"model": "m", "min_tokens": 8, "min_completion_tokens": 8}
    assert not {"min_tokens", "min_completion_tokens"} & set(prefill(request))
    assert json.loads(decode_body(json.dumps(request).encode(), b'{"a":1}')) == {
        **request,
        "kv_transfer_params": {"a": 1},
    }


def test_parameters_of_the_clients_own_are_replaced_on_both_legs() -> None:
    forged = b'{"kv_transfer_params":{"remote_host":"evil"},"model":"m"}'
    assert json.loads(prefill_body(forged, Endpoint.CHAT))["kv_transfer_params"] == ASK
    assert json.loads(decode_body(forged, b'{"a":1}'))["kv_transfer_params"] == {"a": 1}


def test_parameters_reach_the_decode_leg_byte_for_byte() -> None:
    raw = b'{ "remote_block_ids" : [[1,2]],"x":123456789012345678901234567890, "f":1.50 }'
    answer = parse_prefill_answer(b'{"kv_transfer_params":' + raw + b"}")
    assert answer.kv_transfer_params == raw
    assert (
        decode_body(b'{"model":"m"}', answer.kv_transfer_params) == b'{"model":"m","kv_transfer_params":' + raw + b"}"
    )


@given(
    st.dictionaries(st.text(), st.integers() | st.text() | st.lists(st.floats(allow_nan=False, allow_infinity=False)))
)
def test_the_decode_leg_is_the_clients_request_and_the_parameters(fields: dict[str, Any]) -> None:
    body = json.dumps(fields).encode()
    assert json.loads(decode_body(body, b'{"k":1}')) == {**fields, "kv_transfer_params": {"k": 1}}


@given(st.dictionaries(st.text(), st.integers() | st.text()), ENDPOINTS)
def test_the_prefill_leg_keeps_every_other_field(fields: dict[str, Any], endpoint: Endpoint) -> None:
    leg = prefill(fields, endpoint)
    edited = {"max_tokens", "max_completion_tokens", "min_tokens", "min_completion_tokens", "stream"}
    edited |= {"stream_options", "kv_transfer_params"}
    assert {key: leg.get(key) for key in fields if key not in edited} == {
        key: value for key, value in fields.items() if key not in edited
    }


def test_an_empty_list_of_blocks_is_still_an_answer() -> None:
    # A prompt shorter than one block: the decode worker takes it and just computes.
    raw = b'{"remote_block_ids":[]}'
    assert parse_prefill_answer(b'{"kv_transfer_params":%b}' % raw).kv_transfer_params == raw


@pytest.mark.parametrize("value", [b"null", b"{}", b"{ }", b"[]", b'"x"', b"5", b"true"])
def test_without_usable_parameters_decode_must_run_locally(value: bytes) -> None:
    assert parse_prefill_answer(b'{"kv_transfer_params":%b}' % value) == NOTHING


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"{}", b'{"error":{"message":"no"}}', b'{"x":' + b"[" * 5000])
def test_an_answer_that_cannot_be_read_has_nothing(body: bytes) -> None:
    assert parse_prefill_answer(body) == NOTHING


def test_a_broken_usage_does_not_cost_the_parameters() -> None:
    answer = parse_prefill_answer(b'{"usage":[1],"kv_transfer_params":{"a":1}}')
    assert answer == PrefillAnswer(kv_transfer_params=b'{"a":1}', usage=None)


def test_the_prefill_workers_cached_tokens_are_read() -> None:
    usage = b'{"prompt_tokens":9,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":8}}'
    answer = parse_prefill_answer(b'{"usage":%b}' % usage)
    assert answer.usage == Usage(input_tokens=9, cached_tokens=8, output_tokens=1)


@pytest.mark.parametrize("body", [b"", b"[]", b"{"])
def test_a_body_that_is_no_object_is_a_value_error(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        prefill_body(body, Endpoint.CHAT)
    with pytest.raises(ValueError, match=r"."):
        decode_body(body, b'{"a":1}')


@given(st.binary())
def test_parsing_an_answer_never_raises(body: bytes) -> None:
    assert isinstance(parse_prefill_answer(body), PrefillAnswer)
