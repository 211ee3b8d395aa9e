"""The real `openai` package, unchanged, through the gateway."""

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from gateway.telemetry.decisions import read_decision_log
from loadtest.fleet.fleet import DEFAULT_MODEL, RunningFleet

pytestmark = pytest.mark.e2e

PATIENCE_S = 30.0
LONG = [{"role": "user", "content": "why is the sea salt? " * 60}]
SHORT = [{"role": "user", "content": "hi"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def client(fleet: RunningFleet) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=fleet.openai_url, api_key="none", max_retries=0, timeout=60.0) as made:
        yield made


def chat(client: openai.OpenAI, **fields: Any) -> Any:
    return client.chat.completions.create(**{"model": DEFAULT_MODEL, "messages": LONG, "max_tokens": 12, **fields})


class TestChat:
    def test_a_whole_answer(self, client: openai.OpenAI) -> None:
        answer = chat(client, extra_body={"ignore_eos": True})
        assert answer.choices[0].message.content
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage.completion_tokens == 12
        assert answer.usage.prompt_tokens_details.cached_tokens < answer.usage.prompt_tokens

    def test_a_stream_without_usage_shows_none(self, client: openai.OpenAI) -> None:
        chunks = list(chat(client, stream=True, extra_body={"ignore_eos": True}))
        assert all(chunk.usage is None for chunk in chunks)
        assert all(chunk.choices for chunk in chunks)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert chunks[-1].choices[0].finish_reason == "length"

    def test_include_usage_brings_it_in_the_last_chunk(self, client: openai.OpenAI) -> None:
        *content, last = chat(client, stream=True, stream_options={"include_usage": True})
        assert last.choices == []
        assert last.usage.completion_tokens > 0
        assert all(chunk.usage is None for chunk in content)

    def test_continuous_usage_is_in_every_chunk(self, client: openai.OpenAI) -> None:
        options = {"include_usage": True, "continuous_usage_stats": True}
        chunks = list(chat(client, stream=True, stream_options=options))
        assert all(chunk.usage is not None for chunk in chunks)

    def test_several_choices(self, client: openai.OpenAI) -> None:
        answer = chat(client, n=2)
        assert [choice.index for choice in answer.choices] == [0, 1]

    def test_logprobs(self, client: openai.OpenAI) -> None:
        answer = chat(client, logprobs=True, top_logprobs=3)
        content = answer.choices[0].logprobs.content
        assert len(content) == answer.usage.completion_tokens
        assert all(len(token.top_logprobs) == 3 for token in content)

    def test_an_alias_is_a_model(self, client: openai.OpenAI) -> None:
        assert chat(client, model="gpt-4o").model == DEFAULT_MODEL

    def test_an_adapter_is_a_model(self, client: openai.OpenAI) -> None:
        assert chat(client, model="my-adapter").choices[0].message.content


class TestToolsAndFormats:
    def test_a_named_tool_is_called_with_valid_arguments(self, client: openai.OpenAI) -> None:
        choice = {"type": "function", "function": {"name": "weather"}}
        answer = chat(client, tools=[WEATHER], tool_choice=choice, max_tokens=200)
        (call,) = answer.choices[0].message.tool_calls
        assert call.function.name == "weather"
        assert isinstance(json.loads(call.function.arguments)["city"], str)

    def test_a_streamed_tool_call_comes_whole(self, client: openai.OpenAI) -> None:
        pieces = [
            call
            for chunk in chat(client, tools=[WEATHER], tool_choice="required", max_tokens=200, stream=True)
            for call in (chunk.choices[0].delta.tool_calls or [])
        ]
        assert pieces[0].function.name == "weather"
        assert isinstance(json.loads("".join(p.function.arguments or "" for p in pieces))["city"], str)

    def test_structured_output_fits_its_schema(self, client: openai.OpenAI) -> None:
        response_format = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
        answer = chat(client, response_format=response_format, max_tokens=200)
        person = json.loads(answer.choices[0].message.content)
        assert isinstance(person["name"], str)
        assert isinstance(person["age"], int)


class TestOtherRoutes:
    @pytest.mark.parametrize("prompt", ["once upon a time " * 40, [1, 2, 3, 4], ["a", "b"], [[1, 2], [3, 4]]])
    def test_completions_in_all_four_prompt_shapes(self, client: openai.OpenAI, prompt: Any) -> None:
        answer = client.completions.create(model=DEFAULT_MODEL, prompt=prompt, max_tokens=4)
        several = isinstance(prompt, list) and not isinstance(prompt[0], int)
        assert len(answer.choices) == (2 if several else 1)

    def test_a_streamed_completion(self, client: openai.OpenAI) -> None:
        stream = client.completions.create(model=DEFAULT_MODEL, prompt="once " * 200, max_tokens=6, stream=True)
        assert "".join(chunk.choices[0].text for chunk in stream)

    @pytest.mark.parametrize("encoding", ["float", "base64"])
    def test_embeddings(self, client: openai.OpenAI, encoding: Any) -> None:
        answer = client.embeddings.create(model=DEFAULT_MODEL, input=["a", "b"], encoding_format=encoding)
        assert len(answer.data) == 2
        assert answer.usage.prompt_tokens > 0

    def test_responses(self, client: openai.OpenAI) -> None:
        answer = client.responses.create(model=DEFAULT_MODEL, input="hello", max_output_tokens=8)
        assert answer.output_text
        assert answer.usage is not None
        assert answer.usage.output_tokens == 8

    def test_a_streamed_response(self, client: openai.OpenAI) -> None:
        events = list(client.responses.create(model=DEFAULT_MODEL, input="hello", max_output_tokens=8, stream=True))
        assert events[0].type == "response.created"
        assert events[-1].type in ("response.completed", "response.incomplete")
        assert any(event.type == "response.output_text.delta" for event in events)

    def test_models(self, client: openai.OpenAI) -> None:
        names = {model.id for model in client.models.list()}
        assert {DEFAULT_MODEL, "my-adapter", "gpt-4o"} <= names

    def test_a_transcription(self, client: openai.OpenAI) -> None:
        sound = ("speech.wav", b"RIFF" + bytes(4000), "audio/wav")
        assert client.audio.transcriptions.create(model="gpt-4o", file=sound).text


class TestErrors:
    def test_an_unknown_model(self, client: openai.OpenAI) -> None:
        with pytest.raises(openai.NotFoundError) as caught:
            chat(client, model="nobody")
        assert caught.value.code == "model_not_found"

    def test_a_mistake_that_the_gateway_sees(self, client: openai.OpenAI) -> None:
        with pytest.raises(openai.BadRequestError) as caught:
            chat(client, messages="no list")
        assert caught.value.param == "messages"

    def test_a_mistake_that_the_worker_sees(self, client: openai.OpenAI) -> None:
        with pytest.raises(openai.BadRequestError):
            chat(client, max_tokens=10_000_000)

    def test_a_timeout_is_the_clients_own_and_the_request_is_recorded_as_cancelled(
        self, client: openai.OpenAI, decision_log: Path
    ) -> None:
        with pytest.raises(openai.APITimeoutError):
            chat(client.with_options(timeout=0.5), max_tokens=20_000, extra_body={"ignore_eos": True})
        _wait_for_outcome(decision_log, "cancelled")

    def test_a_stream_that_is_closed_early_is_cancelled(self, client: openai.OpenAI, decision_log: Path) -> None:
        before = _outcomes(decision_log).count("cancelled")
        stream = chat(client, stream=True, max_tokens=20_000, extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()
        _wait_for_outcome(decision_log, "cancelled", more_than=before)


class TestManyAtOnce:
    async def test_two_hundred_async_streams(self, fleet: RunningFleet) -> None:
        async with openai.AsyncOpenAI(
            base_url=fleet.openai_url, api_key="none", max_retries=0, timeout=120.0
        ) as client:
            answers = await asyncio.gather(*(_count_tokens(client, number) for number in range(200)))
        assert answers == [10] * 200


async def _count_tokens(client: openai.AsyncOpenAI, number: int) -> int:
    stream = await client.chat.completions.create(
        model=DEFAULT_MODEL,
        messages=[{"role": "user", "content": f"{number} " + "why is the sea salt? " * 20}],
        max_tokens=10,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    tokens = 0
    async for chunk in stream:
        if chunk.usage is not None:
            tokens = chunk.usage.completion_tokens
    return tokens


def _outcomes(decision_log: Path) -> list[str]:
    return [str(record.outcome.kind) for record in read_decision_log(decision_log)]


def _wait_for_outcome(decision_log: Path, kind: str, *, more_than: int = 0) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while _outcomes(decision_log).count(kind) <= more_than:
        assert time.monotonic() < deadline_s, f"no {kind} record"
        time.sleep(0.1)
