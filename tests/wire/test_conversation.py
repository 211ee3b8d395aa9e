"""What is read of a request for output-length prediction, in every dialect; and that nothing is read in vain."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.output_length.carried import PromptReader
from gateway.core.output_length.facts import MAX_PREVIOUS_OUTPUTS, PromptFacts
from gateway.core.output_length.features import FEATURES, tenant_hash
from gateway.core.types import OutputFeatures, RequestFacts, RequestId
from gateway.wire import conversation
from gateway.wire.dialects import ROUTES
from gateway.wire.peeked import Peeked
from tests.core.output_length.predictor_factories import model, spec

CHAT, COMPLETION, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
PREDICTOR = replace(model(), version="v1")
READER = PromptReader(model=PREDICTOR, bytes_per_token=lambda _: 2.0)


def peeked(path: str, *, reader: PromptReader | None = READER, **request: Any) -> RequestFacts:
    seen = ROUTES[path].peek(json.dumps({"model": "m", **request}).encode(), request_id=RequestId("r"), reader=reader)
    assert isinstance(seen, Peeked), seen
    return seen.facts


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[PromptFacts]:
    """What the feature maker was told."""
    seen: list[PromptFacts] = []
    made = PromptReader.features

    def features(reader: PromptReader, prompt: PromptFacts) -> OutputFeatures:
        seen.append(prompt)
        return made(reader, prompt)

    monkeypatch.setattr(PromptReader, "features", features)
    return seen


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **fields}


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


def by_name(facts: RequestFacts) -> dict[str, float | None]:
    assert facts.output_features is not None
    return dict(zip(FEATURES, facts.output_features.values, strict=True))


def test_the_features_are_those_of_the_model_in_force_and_name_it() -> None:
    facts = peeked(CHAT, messages=[user("explain this")], tools=[{}, {}])
    found = by_name(facts)
    assert facts.output_features is not None
    assert facts.output_features.predictor == "v1"
    assert found["verb_explain"] == 1.0
    assert found["tools"] == 2.0
    assert found["prompt_token_len"] == facts.prompt_bytes / 2.0
    assert found["model_log_tokens"] == pytest.approx(math.log(100.0))


@pytest.mark.parametrize(
    ("path", "request_"),
    [
        (CHAT, {"messages": [user("hi")]}),
        (COMPLETION, {"prompt": "hi"}),
        (MESSAGES, {"messages": [user("hi")]}),
        (RESPONSES, {"input": "hi"}),
    ],
)
def test_without_a_reader_nothing_is_read(path: str, request_: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert by_name(peeked(path, **request_))
    for name in ("_look_back", "_texts", "_size", "read_part", "count"):
        monkeypatch.setattr(conversation, name, lambda *_: pytest.fail("it was read in vain"))
    assert peeked(path, reader=None, **request_).output_features is None


def test_the_text_is_that_of_the_last_message_that_is_not_the_models_own(told: list[PromptFacts]) -> None:
    peeked(CHAT, messages=[{"role": "system", "content": "s"}, user("first"), assistant("x"), user("last")])
    peeked(CHAT, messages=[user([text("one"), {"type": "image_url", "image_url": {}}, text("two")])])
    peeked(CHAT, messages=[user("asked"), assistant("begun")])
    peeked(CHAT, messages=[assistant("alone")])
    assert [facts.text for facts in told] == ["last", "one\ntwo", "asked", ""]


def test_history_is_the_sizes_of_earlier_answers_and_what_came_since(told: list[PromptFacts]) -> None:
    facts = peeked(CHAT, messages=[user("q"), assistant("a" * 20), user("q"), assistant("ö" * 5), user("b" * 8)])
    (read,) = told
    assert read.previous_outputs == (10, 5)
    assert read.previous_prompt_tokens == (facts.prompt_bytes - 18) / 2
    assert read.after_tool is False


def test_a_first_message_has_no_history(told: list[PromptFacts]) -> None:
    peeked(CHAT, messages=[{"role": "system", "content": "s"}, user("q")])
    (read,) = told
    assert (read.previous_outputs, read.previous_prompt_tokens) == ((), None)


def test_only_so_many_answers_are_looked_at(told: list[PromptFacts]) -> None:
    peeked(CHAT, messages=[user("q"), assistant("a" * 20)] * (MAX_PREVIOUS_OUTPUTS + 9) + [user("q")])
    assert told[0].previous_outputs == (10,) * MAX_PREVIOUS_OUTPUTS


def test_tool_calls_are_a_part_of_an_answer_and_a_tools_result_is_a_question(told: list[PromptFacts]) -> None:
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    messages = [user("q"), assistant(None, tool_calls=calls), {"role": "tool", "content": "found", "tool_call_id": "1"}]
    peeked(CHAT, messages=messages)
    (read,) = told
    assert read.previous_outputs == (round(len(json.dumps(calls)) / 2),)
    assert (read.text, read.after_tool) == ("found", True)


def test_the_messages_api_keeps_tool_calls_and_results_in_parts(told: list[PromptFacts]) -> None:
    call = {"type": "tool_use", "id": "1", "name": "f", "input": {"path": "a" * 10}}
    result = {"type": "tool_result", "tool_use_id": "1", "content": [text("found"), {"type": "image", "source": {}}]}
    peeked(MESSAGES, messages=[user("q"), assistant([text("a" * 4), call]), user([result])], max_tokens=9)
    peeked(MESSAGES, messages=[user([{**result, "content": "plain"}, text("and now?")])], max_tokens=9)
    parts, plain = told
    assert parts.previous_outputs == (round((4 + len(json.dumps(call["input"]))) / 2),)
    assert (parts.text, parts.after_tool) == ("found", True)
    assert (plain.text, plain.after_tool) == ("plain\nand now?", True)


def test_the_items_of_one_response_are_one_answer(told: list[PromptFacts]) -> None:
    items = [
        {"type": "reasoning", "summary": []},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
    ]
    output = {"type": "function_call_output", "call_id": "1", "output": "found"}
    peeked(RESPONSES, input=[user("q"), *items, output], tools=[{}])
    (read,) = told
    assert read.previous_outputs == (round(sum(len(json.dumps(item)) for item in items) / 2),)
    assert (read.text, read.after_tool, read.tools) == ("found", True, 1)


def test_a_completion_is_its_prompt(told: list[PromptFacts]) -> None:
    peeked(COMPLETION, prompt="define this")
    peeked(COMPLETION, prompt=[1, 2, 3])
    words, ids = told
    assert (words.text, words.prompt_tokens, words.after_tool) == ("define this", 5.5, None)
    assert (ids.text, ids.prompt_tokens) == ("", 3.0)


@pytest.mark.parametrize(
    ("path", "request_"),
    [
        (CHAT, {"messages": [user("q")], "n": 2}),
        (COMPLETION, {"prompt": "q", "best_of": 2}),
        (COMPLETION, {"prompt": ["q", "r"]}),
        (COMPLETION, {"prompt": "q", "prompt_embeds": "x"}),
        ("/v1/embeddings", {"input": "q"}),
        ("/v1/messages/count_tokens", {"messages": [user("q")]}),
    ],
)
def test_what_does_not_give_one_answer_is_not_read(path: str, request_: dict[str, Any]) -> None:
    assert peeked(path, **request_).output_features is None


def test_under_an_alias_nothing_is_read() -> None:
    assert peeked(CHAT, messages=[user("q")], reader=replace(READER, renamed={"m"})).output_features is None


@pytest.mark.parametrize(("tenant", "score"), [("acme", 0.5), ("other", None), (None, None)])
def test_the_tenant_counts_where_it_is_known(tenant: str | None, score: float | None) -> None:
    known = replace(PREDICTOR, spec=spec(tenants={tenant_hash("acme"): 0.5}))
    reader = PromptReader(model=known, bytes_per_token=lambda _: 2.0, tenant=tenant)
    assert by_name(peeked(CHAT, messages=[user("q")], reader=reader))["tenant_score"] == score


@pytest.mark.parametrize(
    "content",
    [
        [1, None, [], {"type": "text"}, {"type": "tool_result", "content": 5}, {"type": "tool_use", "input": 7}],
        None,
        [],
    ],
)
@pytest.mark.parametrize("role", ["user", "assistant", "tool", ""])
def test_what_only_the_worker_can_judge_is_as_if_it_were_not_there(content: Any, role: str) -> None:
    for path in (CHAT, MESSAGES):
        facts = peeked(path, messages=[{"role": role, "content": content}] * 2, tools={"no": "list"})
        assert facts.output_features is not None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "text", "content", "input", "role", "tool_calls"]), inner, max_size=4
        )
        | st.fixed_dictionaries({"type": st.sampled_from(["text", "tool_use", "tool_result", "thinking"])})
    ),
    max_leaves=8,
)


@pytest.mark.parametrize(("path", "field"), [(CHAT, "messages"), (MESSAGES, "messages"), (RESPONSES, "input")])
@given(
    messages=st.lists(
        st.fixed_dictionaries(
            {"role": st.sampled_from(["user", "assistant", "tool", ""])}, optional={"content": JSON, "tool_calls": JSON}
        ),
        min_size=1,
        max_size=4,
    ),
    tools=JSON,
)
def test_whatever_is_sent_reading_it_changes_neither_the_verdict_nor_the_rest(
    path: str, field: str, messages: list[Any], tools: Any
) -> None:
    body = json.dumps({"model": "m", field: messages, "tools": tools, "max_tokens": 9}).encode()
    plain, read = (ROUTES[path].peek(body, request_id=RequestId("r"), reader=reader) for reader in (None, READER))
    if isinstance(plain, Peeked):
        assert isinstance(read, Peeked)
        assert read.facts.output_features is not None
        assert replace(read.facts, output_features=None) == plain.facts
    else:
        assert read == plain


def test_the_text_stays_behind() -> None:
    facts = peeked(CHAT, messages=[user("a secret word"), assistant("another secret"), user("the last secret")])
    assert "secret" not in repr(facts)
