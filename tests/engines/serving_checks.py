"""What a healthy pair must answer through the gateway, and what both sides must have counted.

The rule of this module: an answer through the gateway is held against the same request made to the engine itself. The
reference is salted, so that the decode worker computes it from nothing instead of from the blocks it was handed.
"""

import json
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from gateway.telemetry.decisions import read_decision_log
from tests.engines.checklist import same
from tests.engines.engine_client import (
    CHAT,
    COMPLETIONS,
    GatewayClient,
    Reply,
    encode,
    post,
    prompt_fields,
    scrape,
    story,
    until,
)
from tests.engines.engine_pair import Pair, Worker

ROUTES = (CHAT, COMPLETIONS)
KV_BLOCK_TOKENS = 32
LOGPROB_TOLERANCE = 1e-3
PROMPT_TOKENS = "vllm:prompt_tokens_total"
BY_SOURCE = "vllm:prompt_tokens_by_source_total"
EXTERNAL_HITS = "vllm:external_prefix_cache_hits_total"
FAILED_TRANSFERS = "vllm:nixl_num_failed_transfers_total"
LOCAL_HITS = "vllm:prefix_cache_hits_total"
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
WITH_LOGPROBS: dict[str, dict[str, Any]] = {CHAT: {"logprobs": True, "top_logprobs": 5}, COMPLETIONS: {"logprobs": 5}}
"""Logprobs tell a wrong KV cache where a tiny model's text would not."""
SAMPLED = {"temperature": 1.0, "seed": 11, "max_tokens": 16}
"""Seeded sampling: its text depends on every logit, where the greedy text of a tiny model hardly depends on any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """A pair, a gateway before it, and the path that an ordinary request must take."""

    pair: Pair
    gateway: GatewayClient
    path: str

    def direct(self, worker: Worker, route: str, fields: dict[str, Any]) -> Reply:
        """The same request, made to a worker."""
        return post(self.gateway.client, f"{worker.url}/v1/{route}", encode(self.pair.model, fields))

    def reference(self, route: str, fields: dict[str, Any], *, salt: str = "reference") -> Reply:
        """What the decode worker answers by itself, without any block it has."""
        reply = self.direct(self.pair.decode, route, {**fields, "cache_salt": salt})
        assert reply.is_whole, f"the reference failed: {reply.status} {reply.body[:300]!r}"
        return reply

    def count(self, worker: Worker, name: str, **labels: str) -> float:
        """One of a worker's own counters."""
        return scrape(self.gateway.client, worker.url, name, **labels)

    def ask(self, route: str, fields: dict[str, Any], *, path: str | None = None) -> Reply:
        """A request that must be answered whole, by the expected path."""
        reply = self.gateway.ask(route, fields)
        assert reply.is_whole, f"{reply.status} {reply.broken} {reply.body[:300]!r}"
        same(reply.path, path or self.path, "path")
        return reply


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


# -- answers ---------------------------------------------------------------------------------------------------------


def whole_answers(lab: Lab) -> str:
    """Whole answers of both routes: greedy and seeded text are the engine's own"""
    texts = []
    for route in ROUTES:
        for sampling in ({}, SAMPLED):
            fields = {**prompt_fields(route, story()), **sampling}
            reply = lab.ask(route, fields)
            expected = lab.reference(route, fields)
            same(reply.text, expected.text, f"text of {route}")
            same(_counts(reply), _counts(expected), f"usage of {route}")
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
        same(_counts(reply), _counts(expected), f"usage of {route}")
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
    lab.gateway.books.add_tokens(*_counts(expected))


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
    same(_counts(streamed), _counts(reply), "usage")


def prompt_logprobs(lab: Lab) -> None:
    """prompt_logprobs, echo with logprobs and several prompts go local and are complete"""
    text = story()
    reply = lab.ask(COMPLETIONS, {"prompt": text, "prompt_logprobs": 1}, path="local")
    same(len(reply.choices[0]["prompt_logprobs"]), _counts(reply)[0], "prompt logprobs")
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
    (after,) = _settled(lambda: (lab.count(lab.pair.decode, FAILED_TRANSFERS),))
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


# -- where the work was done -----------------------------------------------------------------------------------------


def remote_load(lab: Lab) -> str:
    """D loads the prompt's KV from P and computes none of it (D's own metrics)"""
    return "external_kv_transfer: " + ", ".join(_one_transfer(lab, route) for route in ROUTES)


def _one_transfer(lab: Lab, route: str) -> str:
    decode = lab.pair.decode
    hits, external, local = _settled(lambda: _sources(lab, decode))
    reply = lab.ask(route, prompt_fields(route, story()))
    prompt_tokens, _ = _counts(reply)
    least = prompt_tokens - KV_BLOCK_TOKENS
    until(lambda: _sources(lab, decode)[1] - external >= least, "D counted the transfer")
    after = _settled(lambda: _sources(lab, decode))
    assert after[0] - hits >= least, f"{EXTERNAL_HITS} grew by {after[0] - hits:.0f} of {prompt_tokens}"
    assert after[2] - local <= 1, f"D computed {after[2] - local:.0f} prompt tokens itself"
    return f"{after[1] - external:.0f} of {prompt_tokens} tokens (local_compute {after[2] - local:.0f})"


def prefill_cache(lab: Lab) -> str:
    """P finds a prompt that it has seen in its cache, and the gateway counts P's cached tokens"""
    fields = prompt_fields(CHAT, story())
    assert lab.direct(lab.pair.prefill, CHAT, fields).is_whole
    before = _settled(lambda: (lab.count(lab.pair.prefill, LOCAL_HITS),))[0]
    counted = lab.gateway.metric("tidegate_tokens_total", type="cached")
    reply = lab.ask(CHAT, fields)
    least = _counts(reply)[0] - KV_BLOCK_TOKENS
    until(lambda: lab.count(lab.pair.prefill, LOCAL_HITS) - before >= least, "P counted the hits")
    cached = lab.gateway.metric("tidegate_tokens_total", type="cached") - counted
    found = lab.count(lab.pair.prefill, LOCAL_HITS) - before
    assert cached >= least, f"P had {found:.0f} prompt tokens cached, the gateway counted {cached:.0f}"
    return f"P: {found:.0f} tokens cached, gateway: {cached:.0f}"


def local_prefill(lab: Lab) -> str:
    """D computes the prompt itself and P sees nothing of it"""
    pair = lab.pair
    idle = _settled(lambda: (lab.count(pair.prefill, PROMPT_TOKENS),))
    _, external, local = _settled(lambda: _sources(lab, pair.decode))
    reply = lab.ask(CHAT, prompt_fields(CHAT, story()))
    least = _counts(reply)[0] - KV_BLOCK_TOKENS
    until(lambda: _sources(lab, pair.decode)[2] - local >= least, "D counted the prefill")
    after = _settled(lambda: _sources(lab, pair.decode))
    same(after[1], external, "external_kv_transfer of D")
    same(_settled(lambda: (lab.count(pair.prefill, PROMPT_TOKENS),)), idle, "prompt tokens of P")
    return f"local_compute: {after[2] - local:.0f} tokens"


def dynamo_turns(lab: Lab) -> str:
    """Dynamo's rule: a new prompt goes remote, the next turn local, and D has the first one's KV"""
    opening = story(20)
    first = lab.ask(CHAT, prompt_fields(CHAT, opening), path="remote")
    talk = [
        {"role": "user", "content": opening},
        {"role": "assistant", "content": first.text},
        {"role": "user", "content": "And of Italy?"},
    ]
    before = _settled(lambda: (lab.count(lab.pair.decode, LOCAL_HITS),))[0]
    second = lab.ask(CHAT, {"messages": talk, **SAMPLED}, path="local")
    least = _counts(first)[0] - 2 * KV_BLOCK_TOKENS
    until(lambda: lab.count(lab.pair.decode, LOCAL_HITS) - before >= least, "D counted its own hits")
    same(second.text, lab.reference(CHAT, {"messages": talk, **SAMPLED}).text, "text of the second turn")
    return f"second turn: {lab.count(lab.pair.decode, LOCAL_HITS) - before:.0f} tokens from D's cache"


# -- the books -------------------------------------------------------------------------------------------------------


def counted_as_seen(lab: Lab) -> str:
    """The gateway's metrics are the client's books: outcomes, token sums, nothing left in flight"""
    gateway, books = lab.gateway, lab.gateway.books
    total = books.outcomes.total()
    until(lambda: gateway.metric("tidegate_requests_total") == total, f"{total} requests counted")
    for outcome, asked in books.outcomes.items():
        same(gateway.metric("tidegate_requests_total", outcome=outcome), asked, f"requests that ended {outcome}")
    for kind, tokens in books.tokens.items():
        same(gateway.metric("tidegate_tokens_total", type=kind), tokens, f"{kind} tokens")
    for name in ("tidegate_inflight_requests", "tidegate_worker_inflight_requests", "tidegate_worker_inflight_tokens"):
        same(gateway.metric(name), 0, name)
    return f"{dict(books.outcomes)}, {dict(books.tokens)} tokens"


def one_record_each(lab: Lab) -> str:
    """The decision log has one record per request"""
    gateway, ids = lab.gateway, lab.gateway.books.request_ids
    until(lambda: gateway.metric("tidegate_decision_log_records_total") == len(ids), "all records written")
    records = list(read_decision_log(gateway.log))
    same(len(records), len(ids), "records")
    same({str(record.request_id) for record in records}, ids, "request ids")
    same(gateway.metric("tidegate_decision_log_dropped_total"), 0, "dropped records")
    return f"{len(records)} records"


def logprob_distance(reply: Reply, expected: Reply) -> float:
    """The largest difference of a logprob; infinite where the tokens differ."""
    left, right = _logprobs(reply), _logprobs(expected)
    same(len(left), len(right), "positions with logprobs")
    assert left, "no logprobs"
    pairs = list(zip(left, right, strict=True))
    if any(one.keys() != other.keys() for one, other in pairs):
        return math.inf
    return max(abs(one[token] - other[token]) for one, other in pairs for token in one)


Check = Callable[[Lab], str | None]
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
BOOKS: tuple[Check, ...] = (counted_as_seen, one_record_each)


def _sources(lab: Lab, worker: Worker) -> tuple[float, float, float]:
    """(external hits, tokens loaded from elsewhere, tokens computed) of a worker so far."""
    external = lab.count(worker, BY_SOURCE, source="external_kv_transfer")
    return lab.count(worker, EXTERNAL_HITS), external, lab.count(worker, BY_SOURCE, source="local_compute")


def _settled(read: Callable[[], tuple[float, ...]]) -> tuple[float, ...]:
    """Counters once the engine has written its last step down: they follow an answer by moments."""
    seen: list[tuple[float, ...]] = []

    def is_still() -> bool:
        seen.append(read())
        return len(seen) > 3 and seen[-1] == seen[-2] == seen[-3] == seen[-4]

    until(is_still, "the engine's counters stand still")
    return seen[-1]


def _counts(reply: Reply) -> tuple[int, int]:
    assert reply.usage is not None, f"no usage in {reply.body[:300]!r}"
    return reply.usage["prompt_tokens"], reply.usage["completion_tokens"]


def _tool_answer(reply: Reply) -> tuple[Any, str]:
    calls = [
        (call["function"]["name"], json.loads(call["function"]["arguments"]))
        for call in reply.choices[0]["message"].get("tool_calls") or ()
    ]
    return calls or None, reply.text


def _logprobs(reply: Reply) -> list[dict[str, float]]:
    """By position, token by logprob, of a whole answer or a stream with one choice."""
    found: list[dict[str, float]] = []
    for logprobs in (choice["logprobs"] for choice in reply.choices if choice.get("logprobs")):
        if "content" in logprobs:
            tops = [position["top_logprobs"] for position in logprobs["content"]]
            found += [{top["token"]: top["logprob"] for top in position} for position in tops]
        else:
            found += logprobs["top_logprobs"]
    return found
