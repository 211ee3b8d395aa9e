"""Values of the wrong type or size in each field that is read, and no exception from any of them."""

import json
from typing import Any

import pytest

from gateway.wire.dialects import ROUTES
from tests.malformed.front import JSON_ROUTES, MESSAGES, Front, fields, good, raw

CHAT, COMPLETIONS, ANTHROPIC = "/v1/chat/completions", "/v1/completions", "/v1/messages"

ODD: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    1.5,
    2**32,
    2**63,
    2**64,
    10**400,
    "",
    "text",
    "\x00",
    [],
    [None],
    [1, "a"],
    [[1], "a"],
    [{}],
    [-1],
    [2**32],
    {},
    {"a": 1},
    [{"role": 5}],
    [{"role": "user", "content": 5}],
    [{"role": "user", "content": [5, None, {}, {"type": 5}, {"type": "text", "text": 5}]}],
    [{"role": "user", "content": [{"type": "image_url", "image_url": None}]}],
    [{"type": "tool_result", "content": {"a": [1]}}],
]
READ = sorted(
    {
        "best_of", "cache_salt", "chat_template", "data_1", "data_2", "documents", "echo", "input", "instructions",
        "items", "kv_transfer_params", "logprobs", "max_completion_tokens", "max_output_tokens", "max_tokens",
        "messages", "model", "n", "previous_response_id", "prompt", "prompt_embeds", "prompt_logprobs", "queries",
        "query", "stream", "stream_options", "system", "text_1", "text_2", "tokens", "tools", "user",
    }
)  # fmt: skip


# One route of each dialect, and those whose worker would heed transfer parameters.
ONE_PER_DIALECT = tuple({id(ROUTES[path]): path for path in JSON_ROUTES}.values())
HAND_OFFS = {CHAT, COMPLETIONS, ANTHROPIC, "/v1/responses"}


@pytest.fixture
def front() -> Front:
    return Front()


@pytest.mark.parametrize("path", ONE_PER_DIALECT)
async def test_any_value_in_any_field_is_refused_in_good_order_or_goes_on_as_it_is(front: Front, path: str) -> None:
    passed = set()
    for key in READ:
        for value in ODD:
            body = raw(path, key, json.dumps(value).encode())
            if await judged(front, path, key, body):
                passed.add(key)
    front.lab.check_settled()
    assert {"user", "chat_template"} <= passed
    await front.still_works()


async def judged(front: Front, path: str, key: str, body: bytes) -> bool:
    """True where it went to a worker."""
    edited = {"kv_transfer_params", "stream", "stream_options"}
    if key not in edited:
        return await front.judges(path, body)
    client = await front.send(path, body)
    reached = not client.task.done()
    if reached:
        sent = json.loads(front.lab.leg.body)
        assert {name: value for name, value in sent.items() if name not in edited} == fields(path)
        assert path not in HAND_OFFS or sent.get("kv_transfer_params") is None
        front.lab.leg.answer(200, b"{}")
    await client.task
    assert client.status == 200 if reached else client.status == 400
    return reached


@pytest.mark.parametrize("value", [5, True, [], {}, ["llama"], 1.5])
async def test_a_model_that_is_no_text(front: Front, value: Any) -> None:
    for path in JSON_ROUTES:
        await front.refuses(path, good(path, model=value))
    await front.still_works()


@pytest.mark.parametrize(
    "model", ["nobody", "Llama", " llama", "llama\n", "../llama", "x" * 100_000, "\u202e", "{{7*7}}"]
)
async def test_a_model_that_nobody_serves(front: Front, model: str) -> None:
    for path in JSON_ROUTES:
        await front.refuses(path, good(path, model=model), status=404)
    await front.still_works()


async def test_a_route_that_needs_a_model_names_it(front: Front) -> None:
    for path in (CHAT, COMPLETIONS, "/v1/embeddings", "/v1/responses"):
        body = {key: value for key, value in fields(path).items() if key != "model"}
        assert (await front.refuses(path, json.dumps(body).encode()))["param"] == "model"
    await front.still_works()


@pytest.mark.parametrize(
    ("value", "param"),
    [
        (None, "messages"),
        ("hello", "messages"),
        ({}, "messages"),
        ([], "messages"),
        (["hello"], "messages[0]"),
        ([[]], "messages[0]"),
        ([None], "messages[0]"),
        ([{"role": 5, "content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": {}}], "messages[0].content"),
    ],
)
async def test_messages_that_are_none(front: Front, value: Any, param: str) -> None:
    assert (await front.refuses(CHAT, good(CHAT, messages=value)))["param"] == param
    if value != []:
        for path in (ANTHROPIC, "/v1/messages/count_tokens"):
            await front.refuses(path, good(path, messages=value))
    await front.still_works()


@pytest.mark.parametrize(
    "value",
    [None, 5, True, {}, [], [1, "a"], ["a", 1], [[1], "a"], [[1], 2], [-1], [2**32], [2**64], [10**400], [1.5], [None]],
)
async def test_prompts_that_are_none(front: Front, value: Any) -> None:
    error = await front.refuses(COMPLETIONS, good(COMPLETIONS, prompt=value))
    assert error["param"].startswith("prompt")
    await front.still_works()


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("value", ["yes", 1, 0, [], {}])
async def test_a_stream_that_is_neither_true_nor_false(front: Front, path: str, value: Any) -> None:
    assert (await front.refuses(path, good(path, stream=value)))["param"] == "stream"
    await front.still_works()


@pytest.mark.parametrize("value", [-1, -(2**63), -(10**400), 2**63, 2**64, 10**400, 1.5, "8", True, [8], {}])
@pytest.mark.parametrize(
    ("path", "key"),
    [
        (CHAT, "max_tokens"),
        (CHAT, "max_completion_tokens"),
        (CHAT, "n"),
        (COMPLETIONS, "max_tokens"),
        (COMPLETIONS, "n"),
        (COMPLETIONS, "best_of"),
    ],
)
async def test_counts_that_are_none(front: Front, path: str, key: str, value: Any) -> None:
    assert (await front.refuses(path, good(path, **{key: value})))["param"] == key
    await front.still_works()


@pytest.mark.parametrize(
    ("path", "key"), [(CHAT, "max_tokens"), (CHAT, "n"), (COMPLETIONS, "max_tokens"), (COMPLETIONS, "best_of")]
)
async def test_a_count_of_zero(front: Front, path: str, key: str) -> None:
    assert (await front.refuses(path, good(path, **{key: 0})))["param"] == key
    await front.still_works()


@pytest.mark.parametrize("count", [b"1e999", b"-1e999", b"1e400", b"1e-999", b"1E+1000000000"])
async def test_a_count_beyond_all_floats(front: Front, count: bytes) -> None:
    for path, key in ((CHAT, "max_tokens"), (CHAT, "n"), (COMPLETIONS, "max_tokens")):
        await front.refuses(path, raw(path, key, count))
    for path in JSON_ROUTES:
        await front.judges(path, raw(path, "temperature", count))
    await front.still_works()


@pytest.mark.parametrize("value", [2**63 - 1, 2**53 + 1, 2**32])
async def test_a_count_that_is_only_unreasonable_is_the_workers_to_judge(front: Front, value: int) -> None:
    for path in (CHAT, COMPLETIONS):
        for key in ("max_tokens", "n"):
            await front.passes(path, good(path, **{key: value}))
    await front.passes(ANTHROPIC, good(ANTHROPIC, max_tokens=value))
    await front.still_works()


async def test_numbers_that_nobody_here_reads_keep_their_digits(front: Front) -> None:
    for path in JSON_ROUTES:
        for digits in (
            b"12345678901234567890123",
            b"1" * 400,
            b"-0.0",
            b"1E400",
            b"0.1000000000000000055511151231257827",
        ):
            body = raw(path, "seed", digits)
            await front.passes(path, body)
    await front.still_works()


async def test_a_thousand_messages_parts_and_prompts_are_no_malice(front: Front) -> None:
    await front.passes(CHAT, good(CHAT, messages=MESSAGES * 5000))
    parts = [{"type": "text", "text": "x"}] * 5000
    await front.passes(CHAT, good(CHAT, messages=[{"role": "user", "content": parts}]))
    await front.passes(COMPLETIONS, good(COMPLETIONS, prompt=[[1]] * 5000))
    await front.still_works()
