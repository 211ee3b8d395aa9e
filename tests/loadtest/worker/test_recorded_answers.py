"""Each recorded request of vLLM 0.32 is answered with the recorded status, head and shape.

Left out are routes that the worker does not have (/openapi.json, /load, /reset_prefix_cache). The heads' `date`,
`server`, `vary` and `connection` are the server's and CORS's business.
"""

import pytest

from tests.loadtest.worker import vllm_recordings as recorded
from tests.loadtest.worker.worker_lab import CHAT, MODEL, Emulated, Lab, Reply, samples, sse_data

pytestmark = pytest.mark.shared_data

ANSWERS = [
    *("chat_plain", "chat_plain_again_cached", "chat_max_tokens_1", "chat_n2", "chat_logprobs"),
    *("chat_return_token_ids", "chat_json_schema", "chat_tool_auto", "responses_plain", "anthropic_messages"),
    *("cmpl_plain", "cmpl_n2", "cmpl_list_prompts", "cmpl_token_prompt", "cmpl_logprobs"),
    *("cmpl_prompt_logprobs_echo", "get_models", "get_version", "tokenize_chat", "tokenize_prompt"),
    *("detokenize", "err_too_long_prompt", "err_too_long_prompt_cmpl", "err_too_long_prompt_stream"),
]
EXACT_ANSWERS = [
    *("err_404", "err_405", "err_bad_json", "err_bad_max_tokens", "err_bad_model", "err_bad_model_stream"),
    *("err_bad_temperature", "err_embeddings_on_generate", "err_empty_messages", "err_max_tokens_too_big"),
    *("err_missing_messages", "err_missing_prompt", "err_stream_options_no_stream"),
    *("err_wrong_content_type", "get_health", "get_ping", "get_tokenizer_info", "get_version"),
]
STREAMS = [
    *("chat_stream", "chat_stream_usage", "chat_stream_usage_continuous", "chat_n2_stream"),
    *("chat_logprobs_stream", "cmpl_stream", "cmpl_stream_usage"),
]


@pytest.fixture
def worker(lab: Lab) -> Emulated:
    return lab.worker(max_model_len=2048)


async def replay(lab: Lab, worker: Emulated, name: str) -> Reply:
    request = recorded.request(name)
    content_type = request.headers.get("content-type", "")
    exchange = lab.begin(worker, request.path, request.body, method=request.method, content_type=content_type)
    return await lab.run(exchange.task)


def assert_same_head(reply: Reply, response: recorded.Response) -> None:
    assert reply.status == response.status
    for name in ("content-type", "allow"):
        assert reply.headers.get(name) == response.headers.get(name)
    assert ("content-length" in reply.headers) == ("content-length" in response.headers)
    if "content-length" in reply.headers:
        assert int(reply.headers["content-length"]) == len(reply.body)


@pytest.mark.parametrize("name", ANSWERS)
async def test_json_answer_has_the_recorded_shape(lab: Lab, worker: Emulated, name: str) -> None:
    response = recorded.response(name)
    reply = await replay(lab, worker, name)
    assert_same_head(reply, response)
    assert recorded.shape(reply.json()) == recorded.shape(_json(response))


@pytest.mark.parametrize("name", EXACT_ANSWERS)
async def test_refusal_is_the_recorded_one(lab: Lab, worker: Emulated, name: str) -> None:
    response = recorded.response(name)
    reply = await replay(lab, worker, name)
    assert_same_head(reply, response)
    assert reply.body == response.body


@pytest.mark.parametrize("name", STREAMS)
async def test_stream_has_the_recorded_events(lab: Lab, worker: Emulated, name: str) -> None:
    response = recorded.response(name)
    reply = await replay(lab, worker, name)
    assert_same_head(reply, response)
    assert _event_shapes(reply.body) == _event_shapes(response.body)


async def test_stream_with_token_ids_begins_and_ends_as_recorded(lab: Lab, worker: Emulated) -> None:
    """The recorded engine sent all tokens of this answer in one event; here each comes by itself."""
    response = recorded.response("chat_return_token_ids_stream")
    reply = await replay(lab, worker, "chat_return_token_ids_stream")
    assert_same_head(reply, response)
    first, *_, last, done = _event_shapes(reply.body)
    assert [first, last, done] == _event_shapes(response.body)


@pytest.mark.parametrize("name", ["chat_tool_named", "chat_tool_required"])
async def test_a_tool_call_that_is_cut_short_is_told_as_text(lab: Lab, worker: Emulated, name: str) -> None:
    """The recorded tokens are one byte each, so the recorded call was cut; here its limit has to be lower."""
    response = recorded.response(name)
    reply = await lab.post(worker, CHAT, recorded_body(name) | {"max_tokens": 13})
    assert recorded.shape(reply.json()) == recorded.shape(_json(response))
    theirs = _json(response)["choices"][0]["message"]["content"]
    assert reply.json()["choices"][0]["message"]["content"][:46] == theirs[:46]


async def test_a_streamed_tool_call_has_the_recorded_events(lab: Lab, worker: Emulated) -> None:
    """It is cut within its arguments, as the recorded one."""
    reply = await lab.post(worker, CHAT, recorded_body("chat_tool_named_stream") | {"max_tokens": 14})
    response = recorded.response("chat_tool_named_stream")
    assert_same_head(reply, response)
    assert _event_shapes(reply.body) == _event_shapes(response.body)


@pytest.mark.parametrize(
    ("name", "path", "body"),
    [
        ("embeddings", "/v1/embeddings", {"input": "some text"}),
        ("embeddings_b64", "/v1/embeddings", {"input": "some text", "encoding_format": "base64"}),
        ("embeddings_chat", "/v1/embeddings", {"messages": [{"role": "user", "content": "some text"}]}),
        ("pooling_embed", "/pooling", {"input": "some text"}),
        ("pooling_token_embed", "/pooling", {"input": "some text", "task": "token_embed"}),
        ("err_generate", CHAT, {"messages": [{"role": "user", "content": "some text"}]}),
    ],
)
async def test_pooling_model_answers_as_recorded(lab: Lab, name: str, path: str, body: dict) -> None:
    worker = lab.worker(tasks=("pooling",))
    reply = await lab.post(worker, path, body | {"model": MODEL})
    assert recorded.shape(reply.json()) == recorded.shape(recorded.pooling(name))


@pytest.mark.parametrize("name", ["chat_plain", "chat_n2", "cmpl_list_prompts", "cmpl_token_prompt"])
async def test_completion_tokens_are_the_recorded_ones(lab: Lab, worker: Emulated, name: str) -> None:
    counted = _json(recorded.response(name))["usage"]["completion_tokens"]
    reply = await replay(lab, worker, name)
    assert reply.json()["usage"]["completion_tokens"] == counted


async def test_metrics_have_recorded_names_types_and_labels(lab: Lab, worker: Emulated) -> None:
    reply = await lab.get(worker, "/metrics")
    theirs = recorded.metrics()
    types = {line for line in reply.body.decode().splitlines() if line.startswith("# TYPE")}
    assert types <= set(theirs.splitlines())
    known = samples(theirs)
    ours = samples(reply.body.decode())
    assert {name for name in ours if "cache_config_info" not in name} <= set(known)
    assert reply.headers["content-type"] == "text/plain; version=1.0.0; charset=utf-8"
    assert f'model_name="{MODEL}"' in reply.body.decode()


def recorded_body(name: str) -> dict:
    return Reply(parts=[recorded.request(name).body]).json()


def _json(response: recorded.Response) -> dict:
    return Reply(parts=[response.body]).json()


def _event_shapes(body: bytes) -> list:
    *events, done = sse_data(body)
    shapes = [recorded.shape(Reply(parts=[event.encode()]).json()) for event in events]
    return [*recorded.distinct(shapes), done]
