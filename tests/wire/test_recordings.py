"""The formats against what real engines sent: vLLM 0.32, its NIXL connector, and llama.cpp as a hostile worker."""

import json
import re
from typing import Any

import pytest

from gateway.core.types import Endpoint, RequestId
from gateway.wire.dialects import ROUTES
from gateway.wire.disagg.nixl import decode_body, parse_prefill_answer, prefill_body
from gateway.wire.engine_metrics import parse_sample
from gateway.wire.errors import ApiError
from gateway.wire.json_object import replace
from gateway.wire.openai import Peeked, peek
from gateway.wire.sse import SseScanner
from gateway.wire.usage import Usage, usage_from_json
from gateway.wire.usage_edit import StreamEdit, set_cached_tokens

pytestmark = pytest.mark.shared_data

ENGINES = ["tiny", "llama_cpp"]
PD_FOLDERS = ["pd_nixl", "pd_nixl_tiny"]
# (pd_nixl, nixl_chat) is not among them: its two legs were recorded in different runs.
PD_FLOWS = [
    ("pd_nixl", "nixl_chat_again_local_hit"),
    ("pd_nixl", "nixl_chat_stream"),
    ("pd_nixl", "nixl_cmpl"),
    ("pd_nixl_tiny", "nixl_chat"),
    ("pd_nixl_tiny", "nixl_chat_again_local_hit"),
    ("pd_nixl_tiny", "nixl_chat_stream"),
    ("pd_nixl_tiny", "nixl_cmpl"),
]
# What vLLM refused and the gateway refuses before it; the worker judges all the rest.
REFUSED = {"err_bad_json", "err_bad_max_tokens", "err_empty_messages", "err_missing_messages", "err_missing_prompt"}


def endpoint_of(name: str) -> Endpoint:
    return Endpoint.COMPLETIONS if "cmpl" in name else Endpoint.CHAT


def scan(body: bytes, endpoint: Endpoint, read_bytes: int) -> SseScanner:
    scanner = SseScanner(endpoint)
    for at in range(0, len(body), read_bytes):
        scanner.feed(body[at : at + read_bytes], float(at))
    scanner.finish(float(len(body)))
    return scanner


def said_by(body: bytes, endpoint: Endpoint) -> tuple[int, list[str]]:
    """Content events and finish reasons, by decoding every event in full."""
    count, reasons = 0, []
    for line in body.split(b"\n"):
        if not line.startswith(b"data: {"):
            continue
        choices = json.loads(line[6:])["choices"]
        reasons += [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
        texts = (
            choice["text"]
            if endpoint is Endpoint.COMPLETIONS
            else choice["delta"].get("content") or choice["delta"].get("tool_calls")
            for choice in choices
        )
        count += any(texts)
    return count, reasons


# --- requests ------------------------------------------------------------------------------------------------------


def test_the_gateway_refuses_only_what_the_engine_refused(recordings: Any) -> None:
    seen = set()
    for name in recordings.names("tiny", ".request.bin"):
        if not name.startswith(("chat_", "cmpl_", "err_")):
            continue
        raw = recordings.bytes(f"http/tiny/{name}.request.bin")
        if not raw.startswith((b"POST /v1/chat/completions", b"POST /v1/completions")):
            continue
        endpoint = Endpoint.CHAT if b"POST /v1/chat" in raw else Endpoint.COMPLETIONS
        body = recordings.http(f"tiny/{name}.request").body
        peeked = peek(body, endpoint, request_id=RequestId("r"))
        assert isinstance(peeked, ApiError) == (name in REFUSED), (name, peeked)
        if isinstance(peeked, ApiError):
            answer = recordings.http(f"tiny/{name}.response")
            assert peeked.status == answer.status == 400
            seen.add(name)
        else:
            assert_facts_of(peeked, json.loads(body))
    assert seen == REFUSED


def assert_facts_of(peeked: Peeked, request: dict[str, object]) -> None:
    facts = peeked.facts
    assert facts.model == request["model"]
    assert facts.stream is request.get("stream", False)
    assert facts.choices == request.get("n", 1)
    assert facts.max_output_tokens == request["max_tokens"]
    assert facts.prompt_logprobs == ("prompt_logprobs" in request)
    assert facts.echo_logprobs == bool(request.get("echo"))
    assert facts.media_parts == 0


def test_a_recorded_long_prompt_is_hashed_in_whole_blocks(recordings: Any) -> None:
    peeked = peek(recordings.http("tiny/err_too_long_prompt.request").body, Endpoint.CHAT, request_id=RequestId("r"))
    assert isinstance(peeked, Peeked)
    assert len(peeked.facts.block_chains[0]) == (peeked.facts.prompt_bytes) // 256
    assert peeked.facts.prompt_bytes > 70_000


# --- answers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_every_recorded_stream_scans_like_full_decoding_however_it_is_cut(recordings: Any, engine: str) -> None:
    streams = [name for name in recordings.names(engine, ".response.bin") if "stream" in name]
    scanned = 0
    for name in streams:
        body = recordings.http(f"{engine}/{name}.response").body
        if not body.startswith(b"data:"):
            continue
        endpoint = endpoint_of(name)
        for read_bytes in (len(body), 7, 256):
            scanner = scan(body, endpoint, read_bytes)
            assert (scanner.content_events, scanner.finish_reasons) == said_by(body, endpoint), name
            assert scanner.done
            assert scanner.error is None
            assert (scanner.usage is not None) == (b'"usage":{' in body)
        scanned += 1
    assert scanned >= 6


def test_vllms_role_chunk_is_not_the_first_token(recordings: Any) -> None:
    body = recordings.http("tiny/chat_stream.response").body
    scanner = SseScanner(Endpoint.CHAT)
    for second, event in enumerate(re.findall(rb".*?\n\n", body, re.DOTALL)):
        scanner.feed(event, float(second))
    assert (scanner.first_content_s, scanner.content_events) == (1.0, 8)
    assert scanner.take_itl() == [1.0] * 7


def test_vllms_usage_chunks(recordings: Any) -> None:
    expected = Usage(input_tokens=33, cached_tokens=32, output_tokens=8)
    for name in ("chat_stream_usage", "chat_stream_usage_continuous"):
        scanner = scan(recordings.http(f"tiny/{name}.response").body, Endpoint.CHAT, 100)
        assert scanner.usage == expected
        assert scanner.content_events == 8


def test_tokens_that_decode_to_no_text_are_no_content(recordings: Any) -> None:
    # This model sampled six tokens, each sent as an event with an empty text.
    scanner = scan(recordings.http("tiny/cmpl_stream_usage.response").body, Endpoint.COMPLETIONS, 64)
    assert (scanner.content_events, scanner.first_content_s) == (0, None)
    assert scanner.usage == Usage(input_tokens=5, cached_tokens=0, output_tokens=6)


def test_a_hostile_empty_stream(recordings: Any) -> None:
    answer = recordings.http("llama_cpp/err_too_long_prompt_stream.response")
    scanner = scan(answer.body, Endpoint.CHAT, 64)
    assert answer.status == 200
    assert (scanner.content_events, scanner.done) == (0, False)


def test_usage_of_recorded_answers(recordings: Any) -> None:
    assert usage_from_json(recordings.http("tiny/chat_plain_again_cached.response").body) == Usage(
        input_tokens=33, cached_tokens=32, output_tokens=8
    )
    assert usage_from_json(recordings.http("llama_cpp/chat_plain.response").body) == Usage(
        input_tokens=26, cached_tokens=None, output_tokens=7
    )
    assert usage_from_json(recordings.http("tiny/err_bad_model.response").body) is None


# --- prefill and decode --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("folder", "flow"), PD_FLOWS)
def test_both_legs_are_those_that_the_engine_took(recordings: Any, folder: str, flow: str) -> None:
    sent = json.loads(recordings.bytes(f"http/{folder}/{flow}.2.decode.request.json"))
    client = {key: value for key, value in sent.items() if key != "kv_transfer_params"}
    body = json.dumps(client).encode()
    endpoint = endpoint_of(flow)

    prefill = json.loads(prefill_body(body, endpoint))
    recorded = json.loads(recordings.bytes(f"http/{folder}/{flow}.1.prefill.request.json"))
    if endpoint is Endpoint.CHAT:
        assert prefill.pop("max_completion_tokens") == 1
    assert prefill == recorded

    answer = parse_prefill_answer(recordings.bytes(f"http/{folder}/{flow}.1.prefill.response.json"))
    assert answer.kv_transfer_params is not None
    assert json.loads(decode_body(body, answer.kv_transfer_params)) == sent
    assert answer.usage is not None
    assert answer.usage.output_tokens == 1


@pytest.mark.parametrize("folder", PD_FOLDERS)
def test_transfer_parameters_are_the_recorded_bytes(recordings: Any, folder: str) -> None:
    body = recordings.bytes(f"http/{folder}/nixl_chat.1.prefill.response.json")
    raw = parse_prefill_answer(body).kv_transfer_params
    assert raw is not None
    assert b'"kv_transfer_params":' + raw + b"," in body


def test_the_prefill_worker_knows_the_cached_tokens(recordings: Any) -> None:
    answer = parse_prefill_answer(
        recordings.bytes("http/pd_nixl_tiny/nixl_chat_again_local_hit.1.prefill.response.json")
    )
    assert answer.usage is not None
    assert answer.usage.cached_tokens == 832


def test_a_decode_workers_answer_has_no_parameters_to_pass_on(recordings: Any) -> None:
    body = recordings.bytes("http/pd_nixl/nixl_chat.2.decode.response.json")
    assert parse_prefill_answer(body).kv_transfer_params is None


@pytest.mark.parametrize("folder", PD_FOLDERS)
def test_a_recorded_decode_stream(recordings: Any, folder: str) -> None:
    body = recordings.bytes(f"http/{folder}/nixl_chat_stream.2.decode.response.sse")
    scanner = scan(body, Endpoint.CHAT, 50)
    assert (scanner.content_events, scanner.finish_reasons) == said_by(body, Endpoint.CHAT)
    assert scanner.done
    assert scanner.usage is not None
    assert scanner.usage.cached_tokens == 0


def test_editing_a_recorded_answer_changes_only_what_was_asked(recordings: Any) -> None:
    body = recordings.http("tiny/chat_plain.response").body
    assert replace(body, {"created": b"1"}) == re.sub(rb'"created":\d+', b'"created":1', body)


# --- dialects ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "path", "max_output_tokens"),
    [
        ("responses_plain", "/v1/responses", 8),
        ("anthropic_messages", "/v1/messages", 8),
        ("tokenize_chat", "/tokenize", None),
        ("tokenize_prompt", "/tokenize", None),
        ("detokenize", "/detokenize", None),
    ],
)
def test_a_recorded_request_of_another_dialect(
    recordings: Any, name: str, path: str, max_output_tokens: int | None
) -> None:
    peeked = ROUTES[path].peek(recordings.http(f"tiny/{name}.request").body, request_id=RequestId("r"))
    assert isinstance(peeked, Peeked)
    assert (peeked.raw_model, peeked.facts.max_output_tokens) == ("tiny-llama", max_output_tokens)


def test_usage_in_the_other_dialects_recorded_answers(recordings: Any) -> None:
    expected = Usage(input_tokens=11, cached_tokens=0, output_tokens=8)
    for name, path in (("responses_plain", "/v1/responses"), ("anthropic_messages", "/v1/messages")):
        assert ROUTES[path].usage_of(recordings.http(f"tiny/{name}.response").body) == expected
    pooled = Usage(input_tokens=7, cached_tokens=None, output_tokens=0)
    for name, path in (("embeddings", "/v1/embeddings"), ("pooling_embed", "/pooling")):
        assert ROUTES[path].usage_of(recordings.bytes(f"http/pooling/{name}.json")) == pooled


@pytest.mark.parametrize("engine", ENGINES)
def test_hiding_the_usage_of_a_recorded_stream(recordings: Any, engine: str) -> None:
    for name in ("chat_stream", "chat_stream_usage", "chat_stream_usage_continuous", "cmpl_stream_usage"):
        body = recordings.http(f"{engine}/{name}.response").body
        events = body.split(b"\n\n")
        kept = b"\n\n".join(event for event in events if b'"choices":[],' not in event)
        for read_bytes in (len(body), 50):
            edit = StreamEdit(hide_usage=True)
            told = [edit.feed(body[at : at + read_bytes]) for at in range(0, len(body), read_bytes)]
            assert b"".join([*told, edit.finish()]) == kept, name
        # The other engine takes no notice of stream_options.
        assert (kept != body) == (engine == "tiny" and "usage" in name)


@pytest.mark.parametrize("folder", PD_FOLDERS)
def test_the_cached_tokens_of_a_recorded_decode_leg(recordings: Any, folder: str) -> None:
    stream = recordings.bytes(f"http/{folder}/nixl_chat_stream.2.decode.response.sse")
    edit = StreamEdit(cached_tokens=832)
    assert edit.feed(stream) + edit.finish() == stream.replace(b'"cached_tokens":0', b'"cached_tokens":832')
    assert b'"cached_tokens":0' in stream
    whole = recordings.bytes(f"http/{folder}/nixl_chat.2.decode.response.json")
    assert set_cached_tokens(whole, 5) == re.sub(rb'"cached_tokens":\d+', b'"cached_tokens":5', whole)


# --- metrics -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("page", "blocks"),
    [("vllm_metrics.txt", 65536), ("vllm_metrics_P_nixl.txt", 256), ("vllm_metrics_D_nixl.txt", 256)],
)
def test_vllms_metrics_page(recordings: Any, page: str, blocks: int) -> None:
    sample = parse_sample(recordings.bytes(page), 3.0)
    assert (sample.at_s, sample.running, sample.waiting, sample.kv_used_ratio) == (3.0, 0, 0, 0.0)
    assert (sample.kv_block_tokens, sample.kv_total_blocks) == (32, blocks)


def test_a_recorded_metrics_answer_after_load(recordings: Any) -> None:
    sample = parse_sample(recordings.http("tiny/get_metrics_after.response").body, 0.0)
    assert sample.running == 0
    assert sample.kv_block_tokens is not None


def test_a_worker_without_metrics_reports_nothing(recordings: Any) -> None:
    sample = parse_sample(recordings.http("llama_cpp/get_metrics.response").body, 0.0)
    assert (sample.running, sample.waiting, sample.kv_used_ratio, sample.kv_total_blocks) == (None,) * 4
