"""The turns of a conversation as each dialect tells them."""

from typing import Any

import pytest

from gateway.wire.dialects import ROUTES
from tests.wire.conversation_lab import CHAT, MESSAGES, RESPONSES, said


def goes_on(path: str, field: str, history: list[Any], reply: list[Any], **fields: Any) -> None:
    """The turns of a history are those that it begins with after an answer."""
    sent: list[dict[str, Any]] = [{**fields, field: history}, {**fields, field: [*history, *reply]}]
    before, after = (said(path, **request).turns for request in sent)
    assert before
    assert after[: len(before)] == before
    assert len(after) == len(before) + 1


def test_a_chat_with_thoughts_and_tools_goes_on() -> None:
    calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    asked = [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "q"}]}]
    called = [{"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": calls}]
    found = [{"role": "tool", "tool_call_id": "c", "content": "found"}]
    goes_on(CHAT, "messages", asked, called + found, tools=[{"type": "function"}])
    goes_on(CHAT, "messages", asked + called + found, [{"role": "assistant", "content": "a"}, asked[1]])


def test_messages_with_thoughts_and_tools_go_on_whatever_is_marked_for_caching() -> None:
    def user(*blocks: dict[str, Any], mark: bool) -> dict[str, Any]:
        marked = {**blocks[-1], "cache_control": {"type": "ephemeral"}} if mark else blocks[-1]
        return {"role": "user", "content": [*blocks[:-1], marked]}

    question = {"type": "text", "text": "q"}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "found"}]}
    thought = {"type": "thinking", "thinking": "hm", "signature": "x"}
    call = {"type": "tool_use", "id": "t", "name": "f", "input": {"path": "p"}}
    reply = {"role": "assistant", "content": [thought, call]}
    fields: dict[str, Any] = {"system": [{"type": "text", "text": "s"}], "tools": [{"name": "f"}], "max_tokens": 9}
    before = said(MESSAGES, messages=[user(question, mark=True)], **fields).turns
    after = said(MESSAGES, messages=[user(question, mark=False), reply, user(result, mark=True)], **fields).turns
    assert (len(before), len(after), after[0]) == (1, 2, before[0])
    goes_on(MESSAGES, "messages", [user(question, mark=False), reply, user(result, mark=True)], [reply], **fields)
    other = {**reply, "content": [{**thought, "thinking": "ha"}, call]}
    changed = said(MESSAGES, messages=[user(question, mark=False), other, user(result, mark=True)], **fields).turns
    assert (changed[0] == after[0], changed[1] == after[1]) == (True, False)
    assert said(MESSAGES, messages=[user(question, mark=True)], **{**fields, "tools": []}).turns != before
    assert said(MESSAGES, messages=[user(question, mark=True)], **{**fields, "system": "t"}).turns != before


@pytest.mark.parametrize("content", [None, [{"type": "reasoning_text", "text": "hm"}]])
def test_all_items_of_one_response_are_one_answer(content: object) -> None:
    reasoning = {"type": "reasoning", "summary": []} | ({"content": content} if content else {})
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": "found"}
    asked = [{"role": "user", "content": "q"}]
    goes_on(RESPONSES, "input", asked, [reasoning, call, output], instructions="i", tools=[{"name": "f"}])
    goes_on(RESPONSES, "input", [*asked, reasoning, call, output], [reasoning, {"role": "assistant", "content": "a"}])


def test_a_text_as_input_is_one_turn() -> None:
    assert len(said(RESPONSES, input="q").turns) == 1
    assert said(RESPONSES, input="q").turns == said(RESPONSES, input=[{"role": "user", "content": "q"}]).turns


@pytest.mark.parametrize("path", sorted(set(ROUTES) - {CHAT, MESSAGES, RESPONSES}))
def test_other_routes_tell_no_turns(path: str) -> None:
    assert said(path, messages=[{"role": "user", "content": "q"}]).turns == ()


def test_routes_and_models_have_turns_of_their_own() -> None:
    messages = [{"role": "user", "content": "q"}]
    sent: list[tuple[str, dict[str, Any]]] = [
        (CHAT, {}),
        (MESSAGES, {}),
        (CHAT, {"model": "n"}),
        (CHAT, {"cache_salt": "s"}),
    ]
    assert len({said(path, messages=messages, **fields).turns for path, fields in sent}) == len(sent)
