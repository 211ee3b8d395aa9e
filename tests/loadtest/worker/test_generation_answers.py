"""What a client of one worker sees: text, lengths, usage, caching and refusals."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loadtest.worker import filler, tokenizer
from tests.loadtest.worker.worker_lab import CHAT, COMPLETIONS, Lab, Reply, chat, completion


def text_of(reply: Reply) -> str:
    choice = reply.json()["choices"][0]
    text: str = choice["message"]["content"] if "message" in choice else choice["text"]
    return text


def streamed_text(reply: Reply, index: int = 0) -> str:
    choices = [c for event in reply.events() for c in event["choices"] if c["index"] == index]
    return "".join(c.get("text") or c.get("delta", {}).get("content") or "" for c in choices)


@pytest.mark.parametrize(("path", "body"), [(CHAT, chat), (COMPLETIONS, completion)])
async def test_stream_says_the_same_as_the_whole_answer(lab: Lab, path: str, body: Any) -> None:
    worker = lab.worker()
    whole = await lab.post(worker, path, body(max_tokens=40, seed=5))
    stream = await lab.post(worker, path, body(max_tokens=40, seed=5, stream=True))
    assert text_of(whole) == streamed_text(stream)


async def test_every_choice_of_a_stream_is_told_apart(lab: Lab) -> None:
    worker = lab.worker()
    body = completion(["a b c", "d e f"], max_tokens=9, n=2, seed=1, ignore_eos=True)
    whole = await lab.post(worker, COMPLETIONS, body)
    stream = await lab.post(worker, COMPLETIONS, body | {"stream": True})
    said = [choice["text"] for choice in whole.json()["choices"]]
    assert said == [streamed_text(stream, index) for index in range(4)]
    assert len(set(said)) == 4
    assert [len(text) for text in said] == [36] * 4


async def test_usage_of_a_stream_is_that_of_the_whole_answer(lab: Lab) -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}}
    body = chat("word" * 100, max_tokens=17, ignore_eos=True)
    whole = await lab.post(lab.worker(), CHAT, body)
    stream = await lab.post(lab.worker(), CHAT, body | options)
    usage = whole.json()["usage"]
    last = stream.events()[-1]
    assert last["choices"] == []
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (106, 17, 123)
    assert {key: last["usage"][key] for key in ("prompt_tokens", "completion_tokens", "total_tokens")} == {
        "prompt_tokens": 106,
        "completion_tokens": 17,
        "total_tokens": 123,
    }


async def test_continuous_usage_counts_up_token_by_token(lab: Lab) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = chat(max_tokens=5, ignore_eos=True, stream=True, stream_options=options)
    reply = await lab.post(lab.worker(), CHAT, body)
    counts = [event["usage"]["completion_tokens"] for event in reply.events()]
    assert counts == [0, 1, 2, 3, 4, 5, 5]


async def test_natural_answer_ends_with_stop_and_its_last_token_has_no_text(lab: Lab) -> None:
    body = completion("once", seed=4, max_tokens=5000)
    reply = await lab.post(lab.worker(), COMPLETIONS, body)
    length = filler.natural_length(filler.answer_key("4/0"))
    choice = reply.json()["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert reply.json()["usage"]["completion_tokens"] == length
    assert tokenizer.count_tokens(choice["text"].encode()) == length - 1


async def test_natural_stream_ends_with_an_empty_delta(lab: Lab) -> None:
    reply = await lab.post(lab.worker(), CHAT, chat(seed=4, max_tokens=5000, stream=True))
    final = reply.events()[-1]["choices"][0]
    assert final["delta"] == {}
    assert final["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("fields", "tokens", "reason"),
    [
        ({"max_tokens": 3000, "ignore_eos": True}, 3000, "length"),
        ({"max_completion_tokens": 12, "max_tokens": 900, "ignore_eos": True}, 12, "length"),
        ({"max_tokens": 3000, "min_tokens": 2999, "seed": 4}, 2999, "stop"),
        ({"max_tokens": 1}, 1, "length"),
    ],
)
async def test_limits_set_the_length(lab: Lab, fields: dict[str, Any], tokens: int, reason: str) -> None:
    reply = await lab.post(lab.worker(), CHAT, chat(**fields))
    assert reply.json()["usage"]["completion_tokens"] == tokens
    assert reply.json()["choices"][0]["finish_reason"] == reason


async def test_chat_without_a_limit_may_fill_the_context(lab: Lab) -> None:
    reply = await lab.post(lab.worker(max_model_len=64), CHAT, chat("word" * 8, ignore_eos=True))
    assert reply.json()["usage"] == {
        "prompt_tokens": 14,
        "total_tokens": 64,
        "completion_tokens": 50,
        "prompt_tokens_details": {"cached_tokens": 0, "created_cache_tokens": 0, "multimodal_tokens": None},
        "completion_tokens_details": None,
    }


async def test_completion_without_a_limit_makes_sixteen_tokens(lab: Lab) -> None:
    reply = await lab.post(lab.worker(), COMPLETIONS, completion(ignore_eos=True))
    assert reply.json()["usage"]["completion_tokens"] == 16


async def test_second_turn_hits_the_blocks_of_the_first(lab: Lab) -> None:
    worker = lab.worker(block_tokens=16)
    first = chat("x" * 400, max_tokens=8, ignore_eos=True)
    answer = text_of(await lab.post(worker, CHAT, first))
    turns = [{"role": "assistant", "content": answer}, {"role": "user", "content": "and then?"}]
    reply = await lab.post(worker, CHAT, first | {"messages": first["messages"] + turns})
    details = reply.json()["usage"]["prompt_tokens_details"]
    assert details["cached_tokens"] == 400 // 64 * 16
    created = reply.json()["usage"]["prompt_tokens"] // 16 * 16 - details["cached_tokens"]
    assert details["created_cache_tokens"] == created


async def test_cache_salt_keeps_prompts_apart(lab: Lab) -> None:
    worker = lab.worker(block_tokens=16)
    cached = []
    for salt in ("a", "b", "a"):
        reply = await lab.post(worker, CHAT, chat("x" * 400, max_tokens=2, cache_salt=salt))
        cached.append(reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert cached == [0, 0, 96]


async def test_token_ids_are_the_same_prompt_as_their_text(lab: Lab) -> None:
    worker = lab.worker(block_tokens=16)
    ids = (await lab.post(worker, "/tokenize", {"prompt": "abcd" * 64})).json()["tokens"]
    await lab.post(worker, COMPLETIONS, completion("abcd" * 64, max_tokens=1))
    reply = await lab.post(worker, COMPLETIONS, completion(ids, max_tokens=1))
    usage = reply.json()["usage"]
    assert usage["prompt_tokens"] == 64
    assert usage["prompt_tokens_details"]["cached_tokens"] == 48


async def test_details_can_be_turned_off(lab: Lab) -> None:
    worker = lab.worker(enable_prompt_tokens_details=False)
    whole = await lab.post(worker, CHAT, chat(max_tokens=1))
    options = {"stream": True, "stream_options": {"include_usage": True}}
    stream = await lab.post(worker, CHAT, chat(max_tokens=1) | options)
    assert whole.json()["usage"]["prompt_tokens_details"] is None
    assert set(stream.events()[-1]["usage"]) == {"prompt_tokens", "total_tokens", "completion_tokens"}


async def test_echo_puts_the_prompt_before_the_answer(lab: Lab) -> None:
    worker = lab.worker()
    fields = {"echo": True, "logprobs": 1, "max_tokens": 3, "ignore_eos": True}
    whole = await lab.post(worker, COMPLETIONS, completion("a café, no?", **fields))
    stream = await lab.post(worker, COMPLETIONS, completion("a café, no?", **fields, stream=True))
    choice = whole.json()["choices"][0]
    assert choice["text"].startswith("a café, no?")
    assert len(choice["logprobs"]["tokens"]) == 3 + 3
    assert choice["logprobs"]["token_logprobs"][0] is None
    assert streamed_text(stream)[:11] == "a café, no?"
    offsets = [c["logprobs"]["text_offset"][-1] for e in stream.events() for c in e["choices"]]
    assert offsets == sorted(offsets)
    assert offsets[-1] == len("a café, no?") + 2 * 4


async def test_tools_come_before_the_messages_and_count_as_prompt(lab: Lab) -> None:
    worker = lab.worker()
    tools = [{"type": "function", "function": {"name": "f"}}]
    plain = await lab.post(worker, "/tokenize", chat("hello"))
    with_tools = await lab.post(worker, "/tokenize", chat("hello", tools=tools))
    assert with_tools.json()["count"] > plain.json()["count"]
    text = await lab.post(worker, "/detokenize", {"tokens": with_tools.json()["tokens"]})
    prompt = text.json()["prompt"]
    assert prompt.index('"name": "f"') < prompt.index("hello")


async def test_text_parts_and_tool_calls_are_part_of_the_prompt(lab: Lab) -> None:
    parts = [{"type": "text", "text": "he"}, {"type": "text", "text": "llo"}]
    calls = [{"id": "1", "function": {"name": "look_up", "arguments": "{}"}}]
    messages = [
        {"role": "user", "content": parts},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "content": "42", "tool_call_id": "1"},
    ]
    worker = lab.worker()
    tokens = (await lab.post(worker, "/tokenize", {"messages": messages})).json()["tokens"]
    prompt = (await lab.post(worker, "/detokenize", {"tokens": tokens})).json()["prompt"]
    assert prompt.startswith("<|user|>\nhello\n<|assistant|>\n")
    assert '"look_up"' in prompt
    assert prompt.endswith("<|tool|>\n42\n<|assistant|>\n")


async def test_client_request_id_names_the_answer(lab: Lab) -> None:
    worker = lab.worker()
    assert (await lab.post(worker, CHAT, chat(max_tokens=1), x_request_id="r7")).json()["id"] == "chatcmpl-r7"
    reply = await lab.post(worker, COMPLETIONS, completion(max_tokens=1), x_request_id="r7")
    assert reply.json()["id"] == "cmpl-r7"


async def test_two_requests_of_one_id_can_be_in_flight(lab: Lab) -> None:
    worker = lab.worker()
    calls = [lab.begin(worker, CHAT, chat(max_tokens=3), x_request_id="same") for _ in range(2)]
    assert [(await lab.run(call.task)).status for call in calls] == [200, 200]


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        (chat(max_tokens="many"), "body.max_tokens", "Expected `int | null`, got `str`"),
        (chat() | {"messages": "hello"}, "body.messages", "Expected `array`, got `str`"),
        (chat() | {"messages": [{"content": "x"}]}, "body.messages.0.role", "Field required"),
        (chat(min_tokens=9, max_tokens=8), None, "less than or equal to max_tokens=8, got 9."),
        (chat(min_tokens=-1), None, "min_tokens must be greater than or equal to 0, got -1."),
        (chat(n=0), "n", "n must be at least 1, got 0."),
        (chat(top_p=0), "top_p", "top_p must be in (0, 1], got 0"),
        (chat(logprobs=True, top_logprobs=99), "logprobs", "outside the allowed range 0 to 20"),
        (chat(max_tokens=250), "input_tokens", "for a total of at least 264 tokens"),
        (completion([1, 2**33]), None, "Token id 8589934592 is out of vocabulary"),
        (completion([1, "a"]), "prompt", "array of tokens"),
        (completion([""]), None, "The decoder prompt cannot be empty"),
        (
            chat() | {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            None,
            "At most 0 image(s) may be provided",
        ),
        (b"[1]", "body", "Expected `object`, got `array`"),
        (b'{"model": "\xff"}', "body.11", "JSON decode error"),
    ],
)
async def test_nonsense_is_refused_and_named(lab: Lab, body: Any, param: str | None, words: str) -> None:
    worker = lab.worker(max_model_len=256)
    path = COMPLETIONS if isinstance(body, dict) and "prompt" in body else CHAT
    reply = await lab.post(worker, path, body)
    error = reply.json()["error"]
    assert reply.status == error["code"] == 400
    assert words in error["message"]
    assert error["param"] == param


async def test_request_that_the_engine_rejects_is_an_internal_error(lab: Lab) -> None:
    """A checked context always fits the KV cache, so this takes a worker whose check was loosened."""
    worker = lab.worker(total_blocks=2, block_tokens=16)
    worker.worker.serving.max_model_len = 1000
    whole = await lab.post(worker, CHAT, chat("x" * 800, max_tokens=5))
    stream = await lab.post(worker, CHAT, chat("x" * 800, max_tokens=5, stream=True))
    assert (whole.status, stream.status) == (500, 200)
    assert whole.json()["error"]["type"] == "InternalServerError"
    assert stream.events() == [whole.json()]


async def test_tokenize_wants_a_prompt_or_messages_and_the_right_model(lab: Lab) -> None:
    worker = lab.worker()
    assert (await lab.post(worker, "/tokenize", {})).status == 400
    assert (await lab.post(worker, "/tokenize", {"model": "other", "prompt": "x"})).status == 404


NUMBERS = st.one_of(st.none(), st.booleans(), st.integers(-3, 40), st.floats(-2, 2), st.text(max_size=3))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(
        st.sampled_from(["n", "max_tokens", "min_tokens", "temperature", "seed", "logprobs", "echo", "stream"]),
        NUMBERS,
    )
)
async def test_any_parameters_get_an_answer_or_a_refusal(lab: Lab, fields: dict[str, Any]) -> None:
    worker = lab.worker(max_model_len=64)
    reply = await lab.post(worker, COMPLETIONS, completion("hi") | fields)
    assert reply.status in {200, 400}
    assert reply.complete
    assert worker.host.snapshot().kv_used_ratio == 0.0
