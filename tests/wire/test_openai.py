import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.types import Endpoint, RequestFacts, RequestId
from gateway.wire.disagg.nixl import decode_body, prefill_body
from gateway.wire.errors import ApiError
from gateway.wire.openai import Peeked, peek

ENDPOINTS = st.sampled_from([Endpoint.CHAT, Endpoint.COMPLETIONS])
ID = RequestId("r-1")
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
COMPLETION = {"model": "m", "prompt": "hello"}


def look(request: object, endpoint: Endpoint, **kwargs: Any) -> Peeked | ApiError:
    body = request if isinstance(request, bytes) else json.dumps(request).encode()
    return peek(body, endpoint, request_id=ID, **kwargs)


def chat(**fields: Any) -> RequestFacts:
    peeked = look({**CHAT, **fields}, Endpoint.CHAT)
    assert isinstance(peeked, Peeked), peeked
    return peeked.facts


def completion(**fields: Any) -> RequestFacts:
    peeked = look({**COMPLETION, **fields}, Endpoint.COMPLETIONS)
    assert isinstance(peeked, Peeked), peeked
    return peeked.facts


def refused(request: object, endpoint: Endpoint = Endpoint.CHAT) -> ApiError:
    error = look(request, endpoint)
    assert isinstance(error, ApiError), error
    assert (error.status, error.type) == (400, "invalid_request_error")
    return error


def test_a_plain_chat() -> None:
    facts = chat()
    assert (facts.request_id, facts.endpoint, facts.model) == (ID, Endpoint.CHAT, "m")
    assert (facts.stream, facts.prompts, facts.choices, facts.media_parts) == (False, 1, 1, 0)
    assert facts.max_output_tokens is None
    assert facts.prompt_token_ids is None
    assert facts.block_chains == ((),)
    assert facts.prompt_bytes > len("hello")


def test_stream_and_usage_flags() -> None:
    peeked = look({**CHAT, "stream": True, "stream_options": {"include_usage": True}}, Endpoint.CHAT)
    assert isinstance(peeked, Peeked)
    assert (peeked.stream, peeked.include_usage, peeked.facts.stream) == (True, True, True)


@pytest.mark.parametrize(
    "options", [None, {}, {"include_usage": False}, {"include_usage": None}, 5, {"include_usage": "x"}]
)
def test_usage_is_not_asked_for_unless_it_says_true(options: object) -> None:
    peeked = look({**CHAT, "stream": True, "stream_options": options}, Endpoint.CHAT)
    assert isinstance(peeked, Peeked)
    assert peeked.include_usage is False


def test_the_model_is_kept_as_written() -> None:
    peeked = look({**CHAT, "model": "Org/Model:1"}, Endpoint.CHAT)
    assert isinstance(peeked, Peeked)
    assert peeked.raw_model == peeked.facts.model == "Org/Model:1"


def test_max_completion_tokens_wins_for_a_chat() -> None:
    assert chat(max_tokens=5).max_output_tokens == 5
    assert chat(max_tokens=5, max_completion_tokens=9).max_output_tokens == 9
    assert chat(max_tokens=5, max_completion_tokens=None).max_output_tokens == 5


def test_a_completion_without_a_limit_has_the_default_one_and_null_has_none() -> None:
    assert completion().max_output_tokens == 16
    assert completion(max_tokens=None).max_output_tokens is None
    assert completion(max_tokens=9, max_completion_tokens=3).max_output_tokens == 9


def test_scoring_a_prompt_without_generation_is_allowed() -> None:
    facts = completion(max_tokens=0, echo=True, logprobs=1)
    assert facts.echo_logprobs
    assert facts.max_output_tokens == 1
    assert refused({**COMPLETION, "max_tokens": 0}, Endpoint.COMPLETIONS).param == "max_tokens"


def test_choices() -> None:
    assert chat(n=3).choices == 3
    assert chat(n=None).choices == 1
    assert completion(n=2, best_of=5).choices == 5
    assert completion(n=2, best_of=1).choices == 2


def test_prompt_logprobs_are_seen_also_when_zero() -> None:
    assert chat(prompt_logprobs=0).prompt_logprobs
    assert not chat(prompt_logprobs=None).prompt_logprobs
    assert not chat().prompt_logprobs


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, False),
        ({"echo": True}, False),
        ({"logprobs": 1}, False),
        ({"echo": False, "logprobs": 1}, False),
        ({"echo": True, "logprobs": None}, False),
        ({"echo": True, "logprobs": 0}, True),
        ({"echo": 1, "logprobs": 5}, True),
    ],
)
def test_a_completions_echo_with_logprobs(fields: dict[str, Any], expected: bool) -> None:
    assert completion(**fields).echo_logprobs is expected


def test_a_chats_echo_computes_prompt_logprobs_by_itself() -> None:
    assert chat(echo=True).echo_logprobs
    assert not chat(echo=False, logprobs=True, top_logprobs=2).echo_logprobs


def test_text_prompts() -> None:
    facts = completion(prompt="x" * 300)
    assert (facts.prompts, facts.prompt_bytes, facts.prompt_token_ids) == (1, 300, None)
    assert [len(chain) for chain in facts.block_chains] == [1]


def test_several_text_prompts() -> None:
    facts = completion(prompt=["x" * 300, "y" * 600])
    assert (facts.prompts, facts.prompt_bytes, facts.prompt_token_ids) == (2, 900, None)
    assert [len(chain) for chain in facts.block_chains] == [1, 2]
    assert facts.block_chains[0] == completion(prompt="x" * 256).block_chains[0]


def test_a_token_prompt() -> None:
    facts = completion(prompt=[0, 2**32 - 1] * 64)
    assert (facts.prompts, facts.prompt_bytes, facts.prompt_token_ids) == (1, 0, 128)
    assert [len(chain) for chain in facts.block_chains] == [2]


def test_several_token_prompts() -> None:
    facts = completion(prompt=[[1] * 64, [], [2] * 10])
    assert (facts.prompts, facts.prompt_token_ids) == (3, 74)
    assert [len(chain) for chain in facts.block_chains] == [1, 0, 0]


def test_an_empty_text_is_the_workers_to_judge() -> None:
    assert completion(prompt="").block_chains == ((),)
    assert completion(prompt=[""]).prompts == 1


def test_prompt_embeds_stand_in_for_a_prompt() -> None:
    peeked = look({"model": "m", "prompt_embeds": ["AAAA", "BBBB"]}, Endpoint.COMPLETIONS)
    assert isinstance(peeked, Peeked)
    facts = peeked.facts
    assert (facts.prompts, facts.media_parts, facts.block_chains, facts.prompt_bytes) == (2, 2, (), 0)
    assert completion(prompt_embeds="AAAA").prompts == 2


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        ([], "prompt"),
        ({}, "prompt"),
        (5, "prompt"),
        (True, "prompt"),
        ([1, True], "prompt[1]"),
        ([1, -1], "prompt[1]"),
        ([2**32], "prompt[0]"),
        ([10**30], "prompt[0]"),
        ([1.5], "prompt[0]"),
        ([1, "a"], "prompt[1]"),
        (["a", 1], "prompt[1]"),
        ([[1], [True]], "prompt[1][0]"),
        ([[1], "a"], "prompt[1]"),
        ([None], "prompt[0]"),
        ([{}], "prompt[0]"),
    ],
)
def test_a_prompt_of_another_shape_is_refused(prompt: object, param: str) -> None:
    error = refused({**COMPLETION, "prompt": prompt}, Endpoint.COMPLETIONS)
    assert error.param == param
    assert f"'{param}'" in error.message


@pytest.mark.parametrize("prompt", [{}, {"prompt": None}])
def test_a_missing_prompt_is_refused(prompt: dict[str, None]) -> None:
    error = refused({"model": "m", **prompt}, Endpoint.COMPLETIONS)
    assert (error.message, error.param) == ("Missing required parameter: 'prompt'.", "prompt")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": 5}, "model"),
        ({"model": None}, "model"),
        ({"messages": None}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": ["hello"]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": {}}]}, "messages[0].content"),
        ({"messages": [{"role": 1}]}, "messages[0].role"),
        ({"stream": "true"}, "stream"),
        ({"stream": 1}, "stream"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -3}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": "16"}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 10**30}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"n": 0}, "n"),
        ({"n": -1}, "n"),
        ({"n": "two"}, "n"),
    ],
)
def test_what_cannot_be_routed_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    error = refused({**CHAT, **fields})
    assert error.param == param
    assert param in error.message


@pytest.mark.parametrize("field", ["model", "messages"])
def test_a_missing_field_is_named(field: str) -> None:
    error = refused({key: value for key, value in CHAT.items() if key != field})
    assert (error.message, error.param) == (f"Missing required parameter: '{field}'.", field)


@pytest.mark.parametrize("body", [b"", b"  \n"])
def test_an_empty_body_is_refused(body: bytes) -> None:
    assert "empty" in refused(body).message


@pytest.mark.parametrize(
    ("body", "position"),
    [
        (b'{"model":"m"x', "byte 12"),
        (b'{"model":"m",', "byte 13"),
        (b'{"model":"\xff"}', "byte 10"),
        (b'{"model":"m","\xff":1}', "byte 14"),
        (b'{"model":"m","x":{"y":"\xff"}}', "byte 23"),
        (b"{bad", "byte 1"),
    ],
)
def test_bad_json_is_refused_with_its_position(body: bytes, position: str) -> None:
    assert f"({position})" in refused(body).message


def test_half_a_surrogate_pair_is_refused_as_such() -> None:
    assert "surrogate" in refused(b'{"model":"\\ud83d","messages":[]}').message


@pytest.mark.parametrize("body", [b"[]", b"null", b"5", b'"text"', b"[" * 100_000])
def test_what_is_no_object_is_refused(body: bytes) -> None:
    assert "must be a JSON object" in refused(body).message


def test_absurd_nesting_is_refused() -> None:
    assert "nested" in refused(b'{"model":"m","x":' + b"[" * 100_000).message


def test_unknown_and_doubtful_fields_pass() -> None:
    facts = chat(
        temperature=-1, seed=10**30, tools="?", cache_salt=5, min_tokens="x", top_p=None, unheard_of={"a": [1]}
    )
    assert facts.model == "m"
    assert chat(messages=[{"role": "tool", "tool_call_id": "1", "content": [{"type": "new"}]}]).media_parts == 1


def test_media_are_counted() -> None:
    image = {"type": "image_url", "image_url": {"url": "http://x/y.png"}}
    content = [image, {"type": "input_audio", "input_audio": {"data": "AAAA"}}, {"type": "text", "text": "hi"}]
    assert chat(messages=[{"role": "user", "content": content}, {"role": "user", "content": [image]}]).media_parts == 3


@pytest.mark.parametrize(
    "fields",
    [
        {"model": "adapter"},
        {"cache_salt": "s"},
        {"tools": [{"type": "function"}]},
        {"documents": [{}]},
        {"chat_template": "t"},
    ],
)
def test_other_models_salts_and_tools_do_not_share_blocks(fields: dict[str, Any]) -> None:
    long = [{"role": "user", "content": "x" * 600}]
    assert not set(chat(messages=long).block_chains[0]) & set(chat(messages=long, **fields).block_chains[0])


def test_the_next_turn_extends_the_chain() -> None:
    turn = [{"role": "system", "content": "s" * 300}, {"role": "user", "content": "u" * 300}]
    reply = [{"role": "assistant", "content": "a" * 300}, {"role": "user", "content": "v" * 300}]
    (first,), (second,) = chat(messages=turn).block_chains, chat(messages=turn + reply).block_chains
    assert len(first) == 2
    assert second[:2] == first


def test_block_size_is_the_callers() -> None:
    peeked = look({**COMPLETION, "prompt": "x" * 256}, Endpoint.COMPLETIONS, block_bytes=64)
    assert isinstance(peeked, Peeked)
    assert peeked.facts.block_bytes == 64
    assert len(peeked.facts.block_chains[0]) == 4


def test_headers_reach_the_facts() -> None:
    headers = [(b"x-slo-class", b"gold"), (b"x-slo-ttft-ms", b"200"), (b"x-slo-tpot-ms", b"20")]
    peeked = look(CHAT, Endpoint.CHAT, headers=headers)
    assert isinstance(peeked, Peeked)
    facts = peeked.facts
    assert (facts.slo_class, facts.slo_ttft_s, facts.slo_tpot_s) == ("gold", 0.2, 0.02)


def test_a_bad_bound_in_a_header_is_refused() -> None:
    error = look(CHAT, Endpoint.CHAT, headers=[(b"x-slo-ttft-ms", b"soon")])
    assert isinstance(error, ApiError)
    assert error.param == "x-slo-ttft-ms"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
KNOWN_FIELDS = [
    "model", "messages", "prompt", "stream", "stream_options", "n", "best_of", "max_tokens", "echo", "logprobs",
    "max_completion_tokens", "prompt_logprobs", "cache_salt", "tools", "prompt_embeds", "kv_transfer_params",
]  # fmt: skip


@given(st.binary(), ENDPOINTS)
def test_peek_never_raises_on_bytes(body: bytes, endpoint: Endpoint) -> None:
    assert isinstance(look(body, endpoint), ApiError)


@given(st.dictionaries(st.sampled_from(KNOWN_FIELDS), json_values), ENDPOINTS)
def test_peek_never_raises_on_json(fields: dict[str, Any], endpoint: Endpoint) -> None:
    result = look({"model": "m", "prompt": "p", "messages": [{"role": "user"}], **fields}, endpoint)
    if isinstance(result, ApiError):
        assert result.status == 400
        assert result.message
    else:
        assert result.facts.choices >= 1
        assert result.facts.max_output_tokens is None or result.facts.max_output_tokens >= 1


@given(st.binary(max_size=30), st.integers(0, 200))
def test_peek_never_raises_on_a_damaged_body(noise: bytes, at: int) -> None:
    body = json.dumps({**CHAT, "n": 2, "stream": True, "stream_options": {"include_usage": True}}).encode()
    assert look(body[:at] + noise + body[at + len(noise) :], Endpoint.CHAT) is not None


@given(st.binary(max_size=9), st.integers(0, 150), ENDPOINTS)
def test_a_body_that_is_accepted_can_be_edited_for_both_legs(noise: bytes, at: int, endpoint: Endpoint) -> None:
    body = json.dumps({**CHAT, **COMPLETION, "temperature": 0.5, "user": "someone", "x": {"y": ["z"]}}).encode()
    body = body[:at] + noise + body[at:]
    if isinstance(look(body, endpoint), Peeked):
        assert b'"do_remote_decode":true' in prefill_body(body, endpoint)
        assert decode_body(body, b'{"k":1}').endswith(b'"kv_transfer_params":{"k":1}}')


@given(st.lists(st.tuples(st.sampled_from([b"x-slo-ttft-ms", b"x-session-id", b"x-slo-class"]), st.binary(max_size=9))))
def test_peek_never_raises_on_headers(headers: list[tuple[bytes, bytes]]) -> None:
    result = look(CHAT, Endpoint.CHAT, headers=headers)
    assert isinstance(result, Peeked) or result.param == "x-slo-ttft-ms"
