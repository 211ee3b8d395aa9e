"""The real `anthropic` package, unchanged, through the gateway."""

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from loadtest.fleet.fleet import DEFAULT_MODEL, RunningFleet

pytestmark = pytest.mark.e2e

ASK: dict[str, Any] = {
    "model": DEFAULT_MODEL,
    "max_tokens": 10,
    "messages": [{"role": "user", "content": "hello " * 50}],
}


@pytest.fixture(scope="module")
def client(fleet: RunningFleet) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=fleet.url, api_key="none", max_retries=0, timeout=60.0) as made:
        yield made


def test_a_whole_message(client: anthropic.Anthropic) -> None:
    message = client.messages.create(**ASK)
    assert message.content[0].type == "text"
    assert message.usage.output_tokens == 10
    assert message.stop_reason == "max_tokens"


def test_a_streamed_message(client: anthropic.Anthropic) -> None:
    with client.messages.stream(**ASK) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text
    assert final.usage.output_tokens == 10


def test_counting_tokens(client: anthropic.Anthropic) -> None:
    counted = client.messages.count_tokens(model=DEFAULT_MODEL, messages=ASK["messages"])
    used = client.messages.create(**ASK).usage
    # Anthropic tells the tokens read from the cache apart from the rest.
    assert counted.input_tokens == used.input_tokens + (used.cache_read_input_tokens or 0)


def test_an_unknown_model_is_a_not_found_error(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError) as caught:
        client.messages.create(**{**ASK, "model": "nobody"})
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["type"] == "error"


def test_a_mistake_is_a_bad_request_error(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError):
        client.messages.create(**{**ASK, "messages": "no list"})
