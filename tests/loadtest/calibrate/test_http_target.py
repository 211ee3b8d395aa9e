"""What a worker's answers are read for, on a loopback socket."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from loadtest.calibrate.http_target import HttpTarget, read_page
from loadtest.calibrate.target import Ask, AskError
from tests.loadtest.client.scripted_server import (
    DONE,
    Answer,
    ScriptedServer,
    Seen,
    chunk,
    event,
    replay,
    stream_head,
    whole,
)

ASK = Ask(text="ace act ", output_tokens=3)


def told(text: str, made: int | None = None, *, cached: int | None = 32) -> bytes:
    """One event with text, and with the usage so far where the server tells it."""
    details = None if cached is None else {"cached_tokens": cached}
    usage = {"prompt_tokens": 40, "completion_tokens": made, "prompt_tokens_details": details}
    return event({"choices": [{"index": 0, "text": text}], "usage": None if made is None else usage})


def final(made: int) -> bytes:
    return event({"choices": [], "usage": {"prompt_tokens": 40, "completion_tokens": made}})


def streamed(events: Sequence[bytes]) -> Callable[[Seen], Answer]:
    return lambda _: replay((stream_head(), *map(chunk, events), chunk(b"")))


@asynccontextmanager
async def serving(script: Callable[[Seen], Answer]) -> AsyncIterator[tuple[HttpTarget, ScriptedServer]]:
    async with ScriptedServer(script) as server:
        url = f"http://127.0.0.1:{server.port}"
        target = HttpTarget(url, model="m", api_key="k", speed=1.0, timeout_s=5.0)
        try:
            yield target, server
        finally:
            target.close()


async def test_tokens_are_counted_by_usage_though_some_have_no_text() -> None:
    async with serving(streamed([told("a", 1), told("", 2), told("b", 3), final(3), DONE])) as (target, server):
        (heard,) = await target.stream([ASK])
        sent = server.seen[0]
    assert (len(heard.token_s), heard.prompt_tokens) == (3, 40)
    assert heard.sent_s <= heard.token_s[0] <= heard.token_s[2]
    assert sent.target == "/v1/completions"
    assert sent.headers["authorization"] == "Bearer k"
    body: dict[str, Any] = sent.json
    assert (body["prompt"], body["max_tokens"], body["ignore_eos"], body["model"]) == ("ace act ", 3, True, "m")


async def test_an_event_may_bring_several_tokens() -> None:
    async with serving(streamed([told("a", 1), told("b c", 3), DONE])) as (target, _):
        (heard,) = await target.stream([ASK])
    assert len(heard.token_s) == 3
    assert heard.token_s[1] == heard.token_s[2]
    assert heard.cached_tokens == 32


async def test_without_usage_on_the_way_events_with_text_are_tokens() -> None:
    async with serving(streamed([told("a"), told("b"), told("c"), told(""), final(3), DONE])) as (target, _):
        (heard,) = await target.stream([ASK])
    assert len(heard.token_s) == 3
    assert heard.cached_tokens is None


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([told("a", 1), told("b", 2), DONE], "2 of 3 tokens came"),
        ([told("a"), told("b c"), final(3), DONE], "2 of 3 tokens came"),
        ([told("a"), told("b"), told("c"), DONE], "usage None"),
        ([told("a", 1), event({"error": {"message": "out of blocks"}})], "out of blocks"),
    ],
)
async def test_an_answer_that_is_not_what_was_asked_for_is_an_error(events: list[bytes], words: str) -> None:
    async with serving(streamed(events)) as (target, _):
        with pytest.raises(AskError, match=words):
            await target.stream([ASK])


async def test_a_refusal_is_told_with_its_message() -> None:
    body = b'{"error": {"message": "too long"}}'
    async with serving(lambda _: replay([whole(body, 400)])) as (target, _):
        with pytest.raises(AskError, match="status 400: too long"):
            await target.stream([ASK])
        with pytest.raises(AskError, match="status 400: too long"):
            await target.prefill(ASK)


async def test_the_prefill_legs_parameters_go_to_the_decode_leg_as_they_came() -> None:
    params = b'{"remote_block_ids":[[1,2]], "x" : 1.0}'

    def script(seen: Seen) -> Answer:
        if not seen.json["stream"]:
            return replay([whole(b'{"kv_transfer_params":' + params + b"}")])
        return streamed([told("a", 1), told("b", 3), DONE])(seen)

    async with serving(script) as (target, server):
        got = await target.prefill(ASK)
        await target.stream([Ask(text=ASK.text, output_tokens=3, kv_transfer_params=got)])
        first, second = server.seen
    assert got == params
    assert first.json["kv_transfer_params"]["do_remote_decode"] is True
    assert first.json["max_tokens"] == 1
    assert second.json["kv_transfer_params"] == {"remote_block_ids": [[1, 2]], "x": 1.0}
    assert second.json["max_tokens"] == 3


async def test_a_prefill_leg_without_parameters_is_an_error() -> None:
    async with serving(lambda _: replay([whole(b'{"kv_transfer_params": null}')])) as (target, _):
        with pytest.raises(AskError, match="no kv_transfer_params"):
            await target.prefill(ASK)


async def test_pages_are_read_and_their_absence_is_told() -> None:
    def script(seen: Seen) -> Answer:
        return replay([whole(b"text") if seen.target == "/metrics" else whole(b"{}", 404)])

    async with serving(script) as (target, server):
        assert await target.metrics() == "text"
        url = f"http://127.0.0.1:{server.port}"
        assert await read_page(url, "/metrics", api_key=None, timeout_s=5.0) == b"text"
        with pytest.raises(AskError, match="/v1/models: status 404"):
            await read_page(url, "/v1/models", api_key=None, timeout_s=5.0)


async def test_a_worker_that_is_not_there_is_an_error() -> None:
    async with serving(streamed([])) as (_, server):
        url = f"http://127.0.0.1:{server.port}"
    with pytest.raises(AskError, match=url):
        await read_page(url, "/v1/models", api_key=None, timeout_s=5.0)
