"""What a healthy pair must answer through the gateway, by every route and kind of request.

The rule of this module: an answer is right if it is the engine's own, byte for byte where it is an error.
"""

import json
import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.engines.checklist import same
from tests.engines.engine_client import CHAT, COMPLETIONS, Reply, encode, post, prompt_fields, story
from tests.engines.engine_pair import Worker
from tests.engines.pair_lab import (
    LOGPROB_TOLERANCE,
    ROUTES,
    SAMPLED,
    WITH_LOGPROBS,
    Check,
    Lab,
    counts,
    logprob_distance,
    settled,
)

FAILED_TRANSFERS = "vllm:nixl_num_failed_transfers_total"
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 12}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
NAMED_TOOL = {"type": "function", "function": {"name": "get_weather"}}


def warm_up(lab: Lab) -> str:
    """Both engines have answered one request of each kind"""
    kinds: list[dict[str, Any]] = [
        {"stream": True},
        {"logprobs": True, "top_logprobs": 3},
        {"tools": [WEATHER], "tool_choice": NAMED_TOOL},
        SAMPLED,
    ]

    def warm(worker: Worker) -> float:
        replies = [lab.direct(worker, CHAT, {**prompt_fields(CHAT, story()), **kind}) for kind in kinds]
        assert all(reply.is_whole for reply in replies), [reply.body[:200] for reply in replies]
        return max(reply.duration_s for reply in replies)

    with ThreadPoolExecutor(2) as pool:
        slowest = list(pool.map(warm, lab.pair.workers))
    return f"slowest first request: P {slowest[0]:.0f} s, D {slowest[1]:.0f} s"


def whole_answers(lab: Lab) -> str:
    """Whole answers of both routes: greedy and seeded text are the engine's own"""
    texts = []
    for route in ROUTES:
        for sampling in ({}, SAMPLED):
            fields = {**prompt_fields(route, story()), **sampling}
            reply = lab.ask(route, fields)
            expected = lab.reference(route, fields)
            same(reply.text, expected.text, f"text of {route}")
            same(counts(reply), counts(expected), f"usage of {route}")
            texts.append(reply.text)
    assert all(texts), texts
    return f"texts: {texts!r}"


def streams(lab: Lab) -> None:
    """Streams of both routes: same text, usage chunk, [DONE]"""
    for route in ROUTES:
        fields = {**prompt_fields(route, story()), **SAMPLED}
        reply = lab.ask(route, {**fields, "stream": True, "stream_options": {"include_usage": True}})
        expected = lab.reference(route, fields)
        assert reply.is_stream, reply.headers
        same(reply.text, expected.text, f"streamed text of {route}")
        same(counts(reply), counts(expected), f"usage of {route}")
        same(reply.answers[-1]["choices"], [], "choices of the usage chunk")
        assert len(reply.events) > 4, "an answer in one piece is no stream"


def stream_without_usage(lab: Lab) -> None:
    """A stream without include_usage gets no usage chunk, and its tokens are counted all the same"""
    fields = prompt_fields(CHAT, story())
    reply = lab.ask(CHAT, {**fields, "stream": True})
    same(reply.usage, None, "usage")
    assert all(answer["choices"] for answer in reply.answers)
    expected = lab.reference(CHAT, fields)
    same(reply.text, expected.text, "text")
    lab.gateway.books.add_tokens(*counts(expected))


def tools(lab: Lab) -> str:
    """Tools: named, required and auto, whole and streamed, as the engine answers them"""
    shown = []
    for choice in (NAMED_TOOL, "required", "auto"):
        fields = {**prompt_fields(CHAT, story()), "max_tokens": 64, "tools": [WEATHER], "tool_choice": choice}
        expected = _tool_answer(lab.reference(CHAT, fields))
        same(_tool_answer(lab.ask(CHAT, fields)), expected, f"answer with tool_choice {choice}")
        streamed = lab.ask(CHAT, {**fields, "stream": True, "stream_options": {"include_usage": True}})
        if expected[0] is None:
            same(streamed.text, expected[1], f"streamed text with tool_choice {choice}")
        shown.append(expected)
    return f"{shown}"


def logprobs(lab: Lab) -> str:
    """Logprobs of both routes equal the engine's own; those of another prompt do not"""
    worst, other = 0.0, math.inf
    for route in ROUTES:
        fields = {**prompt_fields(route, story()), **WITH_LOGPROBS[route]}
        reply = lab.ask(route, fields)
        worst = max(worst, logprob_distance(reply, lab.reference(route, fields)))
        foreign = {**fields, **prompt_fields(route, f"{story(5)} {story(3)}")}
        other = min(other, logprob_distance(reply, lab.reference(route, foreign)))
    assert worst < LOGPROB_TOLERANCE < other, f"off by {worst:.2g}; another prompt by {other:.2g}"
    return f"off by {worst:.1e} at most; another prompt by {other:.1e} at least"


def several_choices(lab: Lab) -> None:
    """n=2 goes local and gives two choices"""
    fields = {**prompt_fields(CHAT, story()), "n": 2, "temperature": 1.0, "seed": 3}
    reply = lab.ask(CHAT, fields, path="local")
    same([choice["index"] for choice in reply.choices], [0, 1], "choices")
    streamed = lab.ask(CHAT, {**fields, "stream": True, "stream_options": {"include_usage": True}}, path="local")
    same({choice["index"] for choice in streamed.choices}, {0, 1}, "streamed choices")
    same(counts(streamed), counts(reply), "usage")


def prompt_logprobs(lab: Lab) -> None:
    """prompt_logprobs, echo with logprobs and several prompts go local and are complete"""
    text = story()
    reply = lab.ask(COMPLETIONS, {"prompt": text, "prompt_logprobs": 1}, path="local")
    same(len(reply.choices[0]["prompt_logprobs"]), counts(reply)[0], "prompt logprobs")
    echoed = lab.ask(COMPLETIONS, {"prompt": text, "echo": True, "logprobs": 1}, path="local")
    assert echoed.text.startswith(text), echoed.text[:80]
    many = lab.ask(COMPLETIONS, {"prompt": [story(), story()]}, path="local")
    same([choice["index"] for choice in many.choices], [0, 1], "choices of two prompts")


def token_prompts(lab: Lab) -> None:
    """A prompt of token ids is answered like the text; one under a block goes local"""
    text = story()
    ids = lab.gateway.client.post(f"{lab.pair.decode.url}/tokenize", json={"model": lab.pair.model, "prompt": text})
    tokens = ids.json()["tokens"]
    reply = lab.ask(COMPLETIONS, {"prompt": tokens, **SAMPLED})
    same(reply.text, lab.reference(COMPLETIONS, {"prompt": text, **SAMPLED}).text, "text")
    short = {"prompt": tokens[:8], **SAMPLED}
    same(lab.ask(COMPLETIONS, short, path="local").text, lab.reference(COMPLETIONS, short).text, "short text")


def forged_parameters(lab: Lab) -> None:
    """kv_transfer_params of the client's own do not reach an engine"""
    forged = {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_engine_id": "nobody",
        "remote_request_id": "chatcmpl-none",
        "remote_block_ids": [[1, 2, 3]],
        "remote_host": "127.0.0.1",
        "remote_port": 1,
        "tp_size": 1,
    }
    fields = {**prompt_fields(CHAT, story()), **SAMPLED}
    before = lab.count(lab.pair.decode, FAILED_TRANSFERS)
    reply = lab.ask(CHAT, {**fields, "kv_transfer_params": forged})
    same(reply.text, lab.reference(CHAT, fields).text, "text")
    # The engine computes by itself what it could not fetch: only its counter would show the attempt.
    (after,) = settled(lambda: (lab.count(lab.pair.decode, FAILED_TRANSFERS),))
    same(after, before, FAILED_TRANSFERS)


def relayed_errors(lab: Lab) -> str:
    """An engine's refusals are relayed byte for byte, streams too"""
    text = prompt_fields(CHAT, story())
    too_long = prompt_fields(CHAT, "hello world " * 6000)
    wrong: list[tuple[str, dict[str, Any]]] = [
        (CHAT, too_long),
        (CHAT, {**too_long, "stream": True}),
        (COMPLETIONS, {"prompt": [7] * 2100}),
        (CHAT, {**text, "max_tokens": 100_000}),
        (CHAT, {**text, "temperature": -1}),
        (CHAT, {**text, "min_tokens": 20}),
        (CHAT, {**text, "stream_options": {"include_usage": True}}),
        (CHAT, {**text, "stream_options": {"include_usage": True}, "n": 2}),
        (CHAT, {**text, "logprobs": True, "top_logprobs": 1000}),
    ]
    for route, fields in wrong:
        reply, own = lab.gateway.ask(route, fields), lab.direct(lab.pair.decode, route, fields)
        assert 400 <= own.status < 500, f"the engine accepts {fields}"
        same((reply.status, reply.body), (own.status, own.body), "the refusal")
        same(reply.headers.get("content-type"), own.headers.get("content-type"), "content-type")
    return f"{len(wrong)} refusals"


def own_errors(lab: Lab) -> None:
    """An unknown model and broken JSON get the engine's status in OpenAI's shape from the gateway"""
    for content in (encode("nobody", prompt_fields(CHAT, "hi")), b'{"model": "x", "messages": ['):
        reply = lab.gateway.send(CHAT, content)
        own = post(lab.gateway.client, f"{lab.pair.decode.url}/v1/{CHAT}", content)
        same(reply.status, own.status, "status")
        assert reply.error is not None
        same(set(reply.error), {"message", "type", "param", "code"}, "members of the error")


def models(lab: Lab) -> None:
    """The gateway lists the engines' model with its max_model_len"""
    (card,) = lab.gateway.client.get(f"{lab.gateway.url}/v1/models").json()["data"]
    same(card["id"], lab.pair.model, "model")
    assert card["max_model_len"] > 0


ANSWERS: tuple[Check, ...] = (
    whole_answers,
    streams,
    stream_without_usage,
    tools,
    logprobs,
    several_choices,
    prompt_logprobs,
    token_prompts,
    forged_parameters,
    relayed_errors,
    own_errors,
    models,
)


def _tool_answer(reply: Reply) -> tuple[Any, str]:
    calls = [
        (call["function"]["name"], json.loads(call["function"]["arguments"]))
        for call in reply.choices[0]["message"].get("tool_calls") or ()
    ]
    return calls or None, reply.text
