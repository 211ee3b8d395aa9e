import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.types import Endpoint, RequestFacts, RequestId
from gateway.wire import errors
from gateway.wire.dialects import ROUTES
from gateway.wire.errors import ApiError
from gateway.wire.openai import peek
from gateway.wire.peeked import Headers, Peeked
from gateway.wire.usage import Usage

ID = RequestId("r-1")
BOUNDARY = b"xYzZY"
MULTIPART = [(b"content-type", b"multipart/form-data; boundary=xYzZY")]
JSON_ROUTES = [path for path, dialect in ROUTES.items() if dialect.endpoint is not Endpoint.AUDIO]
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo" * 100}}


def look(path: str, request: object, headers: Headers = (), **kwargs: Any) -> Peeked | ApiError:
    body = request if isinstance(request, bytes) else json.dumps(request).encode()
    return ROUTES[path].peek(body, request_id=ID, headers=headers, **kwargs)


def peeked(path: str, request: object, headers: Headers = (), **kwargs: Any) -> Peeked:
    result = look(path, request, headers, **kwargs)
    assert isinstance(result, Peeked), result
    return result


def facts(path: str, request: object, **kwargs: Any) -> RequestFacts:
    return peeked(path, request, **kwargs).facts


def shared_blocks(one: RequestFacts, other: RequestFacts) -> int:
    pairs = zip(one.block_chains[0], other.block_chains[0], strict=False)
    return sum(left == right for left, right in pairs)


def form(*parts: tuple[str, bytes], filename: str | None = None) -> bytes:
    pieces = []
    for name, value in parts:
        is_file = f'; filename="{filename or "a.wav"}"' if name == "file" else ""
        head = f'--xYzZY\r\nContent-Disposition: form-data; name="{name}"{is_file}\r\n\r\n'
        pieces.append(head.encode() + value + b"\r\n")
    return b"".join(pieces) + b"--xYzZY--\r\n"


# --- all routes ----------------------------------------------------------------------------------------------------


def test_every_endpoint_has_a_route() -> None:
    assert {dialect.endpoint for dialect in ROUTES.values()} == set(Endpoint)


@pytest.mark.parametrize("endpoint", [Endpoint.CHAT, Endpoint.COMPLETIONS])
def test_chat_and_completions_read_as_ever(endpoint: Endpoint) -> None:
    path = "/v1/chat/completions" if endpoint is Endpoint.CHAT else "/v1/completions"
    request = {"model": "m", "messages": [{"role": "user", "content": "x" * 600}], "prompt": ["a", "b"], "stream": True}
    body = json.dumps(request).encode()
    assert look(path, body) == peek(body, endpoint, request_id=ID)
    assert peeked(path, body).facts.endpoint is endpoint


MINIMAL: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user"}]},
    "/v1/completions": {"prompt": "p"},
    "/v1/messages": {"messages": []},
    "/v1/messages/count_tokens": {"messages": []},
}
HINTS = [(b"x-slo-class", b"gold"), (b"x-slo-ttft-ms", b"500"), (b"x-slo-tpot-ms", b"20")]


@pytest.mark.parametrize("path", ROUTES)
def test_every_dialect_reads_the_model_and_the_hints(path: str) -> None:
    if ROUTES[path].endpoint is Endpoint.AUDIO:
        request: object = form(("model", b"m"))
    else:
        request = {"model": "m", **MINIMAL.get(path, {})}
    seen = peeked(path, request, [*MULTIPART, *HINTS])
    assert seen.raw_model == seen.facts.model == "m"
    assert (seen.facts.request_id, seen.facts.endpoint) == (ID, ROUTES[path].endpoint)
    assert seen.facts.slo_class == "gold"
    assert (seen.facts.slo_ttft_s, seen.facts.slo_tpot_s) == (0.5, 0.02)
    bad = look(path, request, [*MULTIPART, (b"x-slo-ttft-ms", b"never")])
    assert isinstance(bad, ApiError)
    assert bad.param == "x-slo-ttft-ms"


@pytest.mark.parametrize("path", JSON_ROUTES)
def test_a_model_that_may_be_absent_is_empty_and_one_that_may_not_is_refused(path: str) -> None:
    optional = {"pooling", "score", "rerank", "tokenize", "detokenize", "render"}
    result = look(path, MINIMAL.get(path, {}))
    if ROUTES[path].endpoint.value in optional:
        assert isinstance(result, Peeked)
        assert result.raw_model == result.facts.model == ""
        assert peeked(path, {"model": None}).raw_model == ""
    else:
        assert isinstance(result, ApiError)
        assert (result.status, result.param) == (400, "model")


@pytest.mark.parametrize("path", JSON_ROUTES)
def test_another_model_changes_no_other_value(path: str) -> None:
    body = b'{"x":1e400,"model":"alias","n":12345678901234567890,"deep":{"model":"alias"}}'
    changed = ROUTES[path].retarget(body, (), 'real"\u00e9')
    assert changed == body.replace(b'"model":"alias"', '"model":"real\\"\u00e9"'.encode(), 1)


# --- responses -----------------------------------------------------------------------------------------------------


def test_a_response() -> None:
    seen = peeked("/v1/responses", {"model": "m", "input": "hi", "max_output_tokens": 8, "stream": True})
    assert (seen.stream, seen.include_usage, seen.facts.max_output_tokens) == (True, True, 8)
    assert (seen.facts.prompts, seen.facts.choices, seen.facts.media_parts) == (1, 1, 0)


@pytest.mark.parametrize(("fields", "stores"), [({}, True), ({"store": True}, True), ({"store": None}, True)])
def test_a_response_is_kept_unless_asked_not_to(fields: dict[str, Any], stores: bool) -> None:
    assert peeked("/v1/responses", {"model": "m", "input": "hi", **fields}).stores is stores
    assert peeked("/v1/responses", {"model": "m", "input": "hi", "store": False}).stores is False
    assert peeked("/v1/chat/completions", {"model": "m", "messages": [{"role": "user"}], **fields}).stores is False


def test_a_response_that_goes_on_shares_its_beginning() -> None:
    first = {"model": "m", "instructions": "i" * 300, "tools": [{"name": "t"}], "input": "u" * 300}
    items = [
        {"role": "user", "content": "u" * 300},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "function_call", "call_id": "c", "name": "t", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "o" * 300},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a" * 300}]},
    ]
    one = facts("/v1/responses", first)
    other = facts("/v1/responses", {**first, "input": items})
    assert shared_blocks(one, other) == len(one.block_chains[0]) == 2
    assert other.prompt_bytes > 1200
    assert other.media_parts == 0


def test_images_of_a_response_are_media_and_not_text() -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64," + "A" * 5000}
    output = {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "x"}, image]}
    seen = facts("/v1/responses", {"model": "m", "input": [{"role": "user", "content": [image]}, output]})
    assert seen.media_parts == 2
    assert seen.prompt_bytes < 200


def test_what_the_worker_remembers_is_a_part_of_the_prompt() -> None:
    request = {"model": "m", "input": "x" * 600}
    other = facts("/v1/responses", {**request, "previous_response_id": "resp_1"})
    assert shared_blocks(facts("/v1/responses", request), other) == 0


@pytest.mark.parametrize("value", [0, -1, 1.5, "8", None, 2**70, [], True])
def test_a_doubtful_limit_is_the_workers_to_judge(value: object) -> None:
    assert facts("/v1/responses", {"model": "m", "input": "x", "max_output_tokens": value}).max_output_tokens is None
    assert facts("/v1/messages", {"model": "m", "messages": [], "max_tokens": value}).max_output_tokens is None


# --- messages ------------------------------------------------------------------------------------------------------


def turn(role: str, *blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": role, "content": list(blocks)}


def test_a_message() -> None:
    request = {"model": "m", "system": "s", "messages": [turn("user", {"type": "text", "text": "x"})], "max_tokens": 9}
    seen = peeked("/v1/messages", {**request, "stream": True})
    assert (seen.stream, seen.include_usage, seen.facts.max_output_tokens) == (True, True, 9)


def test_an_agents_next_turn_shares_all_of_the_last_one() -> None:
    text = {"type": "text", "text": "q" * 600}
    call = {"type": "tool_use", "id": "t1", "name": "read", "input": {"path": "p" * 300}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "r" * 600}, IMAGE]}
    mark = {"cache_control": {"type": "ephemeral"}}
    marked = {**text, **mark}
    first = {"model": "m", "system": [{"type": "text", "text": "s" * 300}], "messages": [turn("user", marked)]}
    second = {**first, "messages": [turn("user", text), turn("assistant", call), turn("user", {**result, **mark})]}
    third = {**second, "messages": [*second["messages"][:2], turn("user", result), turn("assistant", text)]}
    one, two, three = (facts("/v1/messages", request) for request in (first, second, third))
    assert shared_blocks(one, two) == len(one.block_chains[0]) == 3
    assert shared_blocks(two, three) == len(two.block_chains[0]) == 7
    assert (two.media_parts, three.media_parts) == (1, 1)
    assert two.prompt_bytes < 2000


def test_the_same_image_matches_whatever_marks_it_and_another_does_not() -> None:
    def request(image: dict[str, Any]) -> RequestFacts:
        blocks = turn("user", {"type": "text", "text": "x" * 200}, image, {"type": "text", "text": "y" * 600})
        return facts("/v1/messages", {"model": "m", "messages": [blocks]})

    marked = request({**IMAGE, "cache_control": {"type": "ephemeral"}})
    other = request({**IMAGE, "source": {"type": "url", "url": "u"}})
    assert request(IMAGE).block_chains == marked.block_chains
    assert shared_blocks(request(IMAGE), other) == 0


def test_claude_codes_attribution_is_no_part_of_the_prompt() -> None:
    def request(attribution: str) -> RequestFacts:
        system = [
            {"type": "text", "text": f"x-anthropic-billing-header: {attribution}"},
            {"type": "text", "text": "s" * 600},
        ]
        return facts("/v1/messages", {"model": "m", "system": system, "messages": []})

    assert request("cch=1").block_chains == request("cch=2").block_chains != ((),)


def test_a_count_of_tokens_leaves_nothing_in_a_cache() -> None:
    request = {"model": "m", "messages": [turn("user", {"type": "text", "text": "x" * 600})], "stream": True}
    seen = peeked("/v1/messages/count_tokens", request)
    assert (seen.facts.block_chains, seen.stream, seen.facts.max_output_tokens) == ((), False, None)
    assert seen.facts.prompt_bytes == facts("/v1/messages", request).prompt_bytes
    assert ROUTES["/v1/messages/count_tokens"].usage_of(b'{"input_tokens":9}') is None


# --- embeddings, pooling, score, rerank ----------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/embeddings", "/pooling"])
@pytest.mark.parametrize(
    ("value", "prompts", "token_ids", "text_bytes"),
    [
        ("x" * 300, 1, None, 300),
        (["x" * 300, "y"], 2, None, 301),
        ([1] * 70, 1, 70, 0),
        ([[1] * 70, [2]], 2, 71, 0),
    ],
)
def test_inputs_in_their_four_shapes(
    path: str, value: object, prompts: int, token_ids: int | None, text_bytes: int
) -> None:
    seen = facts(path, {"model": "m", "input": value})
    assert (seen.prompts, seen.prompt_token_ids, seen.prompt_bytes) == (prompts, token_ids, text_bytes)
    assert [len(chain) for chain in seen.block_chains] == [1, *[0] * (prompts - 1)]


@pytest.mark.parametrize("value", [{"image": "x"}, [], ["a", 1], [1.5], [-1], 7, [[1], "x"]])
def test_an_input_of_an_unknown_shape_is_the_workers_to_judge(value: object) -> None:
    seen = facts("/v1/embeddings", {"model": "m", "input": value})
    assert (seen.block_chains, seen.prompt_bytes) == ((), len(json.dumps(value)))


def test_embeddings_of_a_conversation() -> None:
    seen = facts("/v1/embeddings", {"model": "m", "messages": [{"role": "user", "content": "x" * 600}]})
    assert len(seen.block_chains[0]) == 2


def test_different_pooling_routes_share_no_block() -> None:
    request = {"model": "m", "input": "x" * 600}
    assert shared_blocks(facts("/v1/embeddings", request), facts("/pooling", request)) == 0


@pytest.mark.parametrize(
    ("path", "request_", "prompts", "media"),
    [
        ("/rerank", {"query": "q" * 100, "documents": ["d" * 50, "e" * 50]}, 2, 0),
        ("/rerank", {"query": "q" * 100, "documents": [{"text": "d" * 50}, "e" * 50]}, 2, 0),
        ("/score", {"text_1": "q" * 100, "text_2": "d" * 100}, 1, 0),
        ("/score", {"queries": ["q" * 100], "items": ["d" * 50, "e" * 50]}, 2, 0),
        (
            "/v1/score",
            {"data_1": "q" * 100, "data_2": {"content": [{"type": "text", "text": "d" * 100}, IMAGE]}},
            1,
            1,
        ),
    ],
)
def test_pairs_count_the_text_of_both_sides(path: str, request_: dict[str, Any], prompts: int, media: int) -> None:
    seen = facts(path, request_)
    assert (seen.prompts, seen.media_parts, seen.block_chains) == (prompts, media, ())
    assert 200 <= seen.prompt_bytes <= 220


# --- tokenize, detokenize, render ----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/tokenize", "/v1/chat/completions/render", "/v1/completions/render"])
def test_text_that_no_model_reads_has_no_chain(path: str) -> None:
    text = facts(path, {"prompt": "x" * 600})
    chat = facts(path, {"messages": [{"role": "user", "content": "x" * 600}]})
    assert (text.block_chains, text.prompt_bytes) == ((), 600)
    assert (chat.block_chains, chat.prompt_bytes > 600) == ((), True)


def test_tokens_to_detokenize_are_counted() -> None:
    assert facts("/detokenize", {"tokens": [1, 2, 3]}).prompt_token_ids == 3


# --- audio ---------------------------------------------------------------------------------------------------------


def test_an_upload() -> None:
    body = form(
        ("file", b"RIFF\r\n--xYzZ\x00\r\n" * 50),
        ("model", b"whisper"),
        ("stream", b"True"),
        ("stream_include_usage", b"true"),
        ("prompt", b"names"),
        ("max_completion_tokens", b"50"),
    )
    seen = peeked("/v1/audio/transcriptions", body, MULTIPART)
    assert (seen.raw_model, seen.stream, seen.include_usage) == ("whisper", True, True)
    assert (seen.facts.media_parts, seen.facts.prompt_bytes, seen.facts.max_output_tokens) == (1, 5, 50)


def test_an_uploads_model_is_replaced_and_no_other_byte() -> None:
    body = form(("model", b"a"), ("file", b'name="model"\r\n\r\na'), ("model", b"alias"))
    changed = ROUTES["/v1/audio/translations"].retarget(body, MULTIPART, "real")
    assert changed == form(("model", b"real"), ("file", b'name="model"\r\n\r\na'), ("model", b"real"))
    assert peeked("/v1/audio/translations", body, MULTIPART).raw_model == "alias"


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (form(("model", b"m")), []),
        (form(("model", b"m")), [(b"content-type", b"multipart/form-data")]),
        (form(("model", b"m")), [(b"content-type", b"application/json; boundary=xYzZY")]),
        (form(("model", b"m")), [(b"content-type", b"multipart/form-data; boundary=other")]),
        (form(("file", b"m")), MULTIPART),
        (form(("model", b"")), MULTIPART),
        (form(("file", b"m"), filename='x"; name="model'), MULTIPART),
        (b"", MULTIPART),
        (b'{"model":"m"}', MULTIPART),
    ],
)
def test_an_upload_that_cannot_be_routed_is_refused(body: bytes, headers: Headers) -> None:
    refused = look("/v1/audio/transcriptions", body, headers)
    assert isinstance(refused, ApiError)
    assert refused.status == 400


# --- errors --------------------------------------------------------------------------------------------------------


def data_of(event: bytes) -> tuple[str, Any]:
    name, data, *rest = event.decode().split("\n")
    assert rest == ["", ""]
    return name.removeprefix("event: "), json.loads(data.removeprefix("data: "))


def test_an_error_in_anthropics_words() -> None:
    dialect = ROUTES["/v1/messages"]
    body = {"type": "error", "error": {"type": "not_found_error", "message": "The model `m` does not exist."}}
    assert json.loads(dialect.error_body(errors.model_not_found("m"))) == body
    assert data_of(dialect.sse_error(errors.model_not_found("m"))) == ("error", body)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (errors.bad_request("x"), "invalid_request_error"),
        (errors.unauthorized(), "authentication_error"),
        (errors.body_too_large(1), "request_too_large"),
        (errors.too_many_requests("x"), "rate_limit_error"),
        (errors.unavailable("x"), "overloaded_error"),
        (errors.bad_gateway("x"), "api_error"),
        (errors.gateway_timeout("x"), "timeout_error"),
        (errors.method_not_allowed("GET", allow=["POST"]), "invalid_request_error"),
    ],
)
def test_anthropics_error_types(error: ApiError, kind: str) -> None:
    assert json.loads(ROUTES["/v1/messages/count_tokens"].error_body(error))["error"]["type"] == kind


def test_an_error_inside_a_response() -> None:
    error = errors.bad_request("no", param="input")
    assert data_of(ROUTES["/v1/responses"].sse_error(error)) == (
        "error",
        {"type": "error", "code": None, "message": "no", "param": "input"},
    )
    assert ROUTES["/v1/responses"].error_body(error) == errors.body(error)


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/audio/translations"]
)
def test_the_other_routes_have_openais_errors(path: str) -> None:
    error = errors.bad_gateway("x")
    assert ROUTES[path].error_body(error) == errors.body(error)
    assert ROUTES[path].sse_error(error) == errors.sse_error(error)


@pytest.mark.parametrize("path", ROUTES)
def test_a_scanner_understands_its_own_dialects_error(path: str) -> None:
    scanner = ROUTES[path].scanner()
    scanner.feed(ROUTES[path].sse_error(errors.bad_gateway("gone")), 0.0)
    assert (scanner.error, scanner.done) == ("gone", True)


@pytest.mark.parametrize(
    ("path", "usage", "seen"),
    [
        (
            "/v1/responses",
            {"input_tokens": 11, "input_tokens_details": {"cached_tokens": 4}, "output_tokens": 8},
            Usage(input_tokens=11, cached_tokens=4, output_tokens=8),
        ),
        (
            "/v1/messages",
            {"input_tokens": 1, "cache_read_input_tokens": 10, "cache_creation_input_tokens": 5, "output_tokens": 8},
            Usage(input_tokens=16, cached_tokens=10, output_tokens=8),
        ),
        (
            "/v1/messages",
            {"input_tokens": 11, "output_tokens": 8},
            Usage(input_tokens=11, cached_tokens=None, output_tokens=8),
        ),
        (
            "/v1/embeddings",
            {"prompt_tokens": 7, "completion_tokens": 0},
            Usage(input_tokens=7, cached_tokens=None, output_tokens=0),
        ),
        ("/v1/audio/translations", {"type": "duration", "seconds": 3}, None),
    ],
)
def test_the_usage_of_a_whole_answer(path: str, usage: dict[str, Any], seen: Usage | None) -> None:
    assert ROUTES[path].usage_of(json.dumps({"usage": usage}).encode()) == seen


# --- hostile bodies ------------------------------------------------------------------------------------------------

MEGABYTE = 2**20
FIELDS = [
    "model input instructions prompt tools messages system tokens query documents text_1 text_2 max_tokens stream",
    "max_output_tokens cache_salt kv_transfer_params previous_response_id items data_1 data_2 queries n stream_options",
]
names = st.sampled_from(" ".join(FIELDS).split())
parts = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["text", "image", "tool_use", "tool_result", "message", "function_call_output"]),
        "role": st.sampled_from(["user", "tool", 5]),
        "text": st.text(max_size=5) | st.none(),
        "content": st.text(max_size=5) | st.integers(),
        "source": st.dictionaries(st.text(max_size=2), st.text(max_size=2), max_size=2),
        "output": st.text(max_size=3) | st.lists(st.text(max_size=3), max_size=2),
        "input": st.integers() | st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
    },
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | parts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.just("content") | st.text(max_size=3), inner),
    max_leaves=8,
)


def hostile() -> dict[str, bytes]:
    """Bodies that a careless reader would choke on."""
    deep = b"[" * MEGABYTE
    nested: Any = "x"
    for _ in range(300):
        nested = [{"type": "tool_result", "tool_use_id": "t", "content": nested}]
    huge = b"9" * 30_000
    keys = [name.encode() for name in " ".join(FIELDS).split() if name != "model"]
    every = lambda value: b'{"model":"m",' + b",".join(b'"%b":%b' % (key, value) for key in keys) + b"}"  # noqa: E731
    return {
        "deep": deep,
        "deep value": every(b"[" * 5000 + b"]" * 5000),
        "deep model": b'{"model":' + deep,
        "many lists": every(b"[" + b"[]," * 20000 + b"[]]"),
        "nested results": json.dumps({"model": "m", "messages": [{"role": "user", "content": nested}]}).encode(),
        "huge integer": every(huge),
        "huge float": every(b"0." + huge),
        "exponent": every(b"1e999999999"),
        "nan": every(b"NaN"),
        "infinity": every(b"-Infinity"),
        "bad utf-8": b'{"model":"\xff\xfe"}',
        "bad utf-8 inside": every(b'"\xff"'),
        "half a surrogate": every(b'"\\ud83d"'),
        "quotes": b'"' * MEGABYTE,
        "backslashes": b'{"model":"' + b"\\" * MEGABYTE,
        "spaces": b" " * MEGABYTE,
        "repeated keys": b"{" + b'"model":"m","input":"x","messages":[],' * 20000 + b'"model":"m"}',
        "fences": b"--xYzZY\r\n" * 100_000,
        "empty parts": form(*[("model", b"")] * 3000),
        "long head": b"--xYzZY\r\nContent-Disposition: form-data" + b'; a="' * 200_000,
        "line ends": b"\r\n" * 500_000,
    }


@pytest.mark.parametrize(("name", "body"), hostile().items(), ids=hostile())
def test_a_hostile_body_is_read_or_refused(name: str, body: bytes) -> None:
    for path, dialect in ROUTES.items():
        result = look(path, body, MULTIPART)
        if isinstance(result, ApiError):
            assert result.status == 400, path
            assert len(result.message) < 300
        else:
            assert name in ("many lists", "nested results", "repeated keys", "huge integer", "huge float", "exponent")
            assert dialect.retarget(body, MULTIPART, "other")


@given(st.binary(max_size=200), st.sampled_from(sorted(ROUTES)))
def test_no_dialect_raises_on_bytes(body: bytes, path: str) -> None:
    assert isinstance(look(path, body, MULTIPART), ApiError | Peeked)


@given(st.dictionaries(names, values, max_size=6), st.sampled_from(JSON_ROUTES))
def test_no_dialect_raises_on_json(fields: dict[str, Any], path: str) -> None:
    result = look(path, {**MINIMAL.get(path, {}), "model": "m", **fields})
    if isinstance(result, ApiError):
        assert result.status == 400
        return
    assert result.facts.prompt_bytes >= 0
    assert result.facts.prompts >= 0
    assert msgspec.json.encode(result.facts)
    limit = result.facts.max_output_tokens
    assert limit is None or 1 <= limit < 2**63


@given(st.lists(st.tuples(st.sampled_from(["model", "file", "stream", "x"]), st.binary(max_size=40)), max_size=5))
def test_an_upload_reads_back_what_was_written(fields: list[tuple[str, bytes]]) -> None:
    fields = [(name, value.replace(b"\r\n--", b"")) for name, value in fields]
    models = [value for name, value in fields if name == "model"]
    result = look("/v1/audio/transcriptions", form(*fields), MULTIPART)
    if not models or not models[-1]:
        assert isinstance(result, ApiError)
    else:
        assert isinstance(result, Peeked)
        assert result.raw_model == models[-1].decode(errors="replace")
