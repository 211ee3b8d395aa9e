"""Tools that must be called and formats that must be kept, on the routes that know them."""

import json
from typing import Any

import pytest

from tests.loadtest.worker.worker_lab import CHAT, MODEL, Emulated, Lab, Reply, chat

MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "days": {"type": "integer", "minimum": 2}},
    "required": ["city", "days"],
}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]
NAMED = {"type": "function", "function": {"name": "weather"}}
LIMIT = 400


@pytest.fixture
def worker(lab: Lab) -> Emulated:
    return lab.worker()


def fitting(arguments: str) -> bool:
    found = json.loads(arguments)
    return list(found) == ["city", "days"] and len(found["city"]) <= 12 and found["days"] >= 2


def events_of(reply: Reply) -> list[tuple[str, Any]]:
    """Named events; the name is also the data's type, and no event lacks one."""
    *events, rest = reply.body.decode().split("\n\n")
    assert rest == ""
    pairs = [event.split("\n") for event in events]
    found = [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in pairs]
    assert all(name == data["type"] for name, data in found)
    return found


@pytest.mark.parametrize(("choice", "reason"), [("required", "tool_calls"), (NAMED, "stop")])
async def test_a_chat_calls_the_tool_it_must(lab: Lab, worker: Emulated, choice: Any, reason: str) -> None:
    body = chat(tools=TOOLS, tool_choice=choice, max_tokens=LIMIT, seed=1)
    (whole,) = (await lab.post(worker, CHAT, body)).json()["choices"]
    (call,) = whole["message"]["tool_calls"]
    assert whole["finish_reason"] == reason
    assert call["function"]["name"] == "weather"
    assert fitting(call["function"]["arguments"])
    events = (await lab.post(worker, CHAT, body | {"stream": True})).events()
    parts = [part for event in events for part in event["choices"][0]["delta"].get("tool_calls", ())]
    assert "".join(part["function"].get("arguments", "") for part in parts) == call["function"]["arguments"]
    assert [part["id"] for part in parts if "id" in part] == [call["id"]]
    assert len(parts) > 2
    assert events[-1]["choices"][0]["finish_reason"] == reason


@pytest.mark.parametrize(
    "wrong", [{"tool_choice": "required"}, {"tools": TOOLS, "tool_choice": NAMED | {"function": {"name": "x"}}}]
)
async def test_a_tool_that_is_not_there_cannot_be_chosen(lab: Lab, worker: Emulated, wrong: Any) -> None:
    reply = await lab.post(worker, CHAT, chat(**wrong))
    assert (reply.status, reply.json()["error"]["param"]) == (400, "tool_choice")


@pytest.mark.parametrize("stream", [False, True])
async def test_every_choice_keeps_the_format(lab: Lab, worker: Emulated, stream: bool) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    reply = await lab.post(worker, CHAT, chat(response_format=form, max_tokens=LIMIT, n=2, stream=stream))
    texts = ["", ""]
    for answer in reply.events() if stream else [reply.json()]:
        for choice in answer["choices"]:
            texts[choice["index"]] += choice.get("delta", choice.get("message")).get("content") or ""
    assert all(map(fitting, texts))


async def test_json_is_padded_with_blanks_to_a_length_that_is_asked_for(lab: Lab, worker: Emulated) -> None:
    reply = await lab.post(
        worker, CHAT, chat(response_format={"type": "json_object"}, max_tokens=3000, ignore_eos=True)
    )
    text = reply.json()["choices"][0]["message"]["content"]
    assert len(text) == 12_000
    assert isinstance(json.loads(text), dict)


async def test_messages_stream_says_the_same_as_the_whole_message(lab: Lab, worker: Emulated) -> None:
    body = {"model": MODEL, "system": "be brief", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}
    whole = (await lab.post(worker, MESSAGES, body, x_request_id="r")).json()
    events = events_of(await lab.post(worker, MESSAGES, body | {"stream": True}, x_request_id="r"))
    kinds = list(dict.fromkeys(kind for kind, _ in events))
    assert kinds == [
        *("message_start", "content_block_start", "content_block_delta"),
        *("content_block_stop", "message_delta", "message_stop"),
    ]
    text = "".join(data["delta"]["text"] for kind, data in events if kind == "content_block_delta")
    assert whole["content"] == [{"type": "text", "text": text}]
    assert events[-2][1]["usage"]["output_tokens"] == whole["usage"]["output_tokens"] == 9
    assert events[-2][1]["delta"]["stop_reason"] == whole["stop_reason"] == "max_tokens"


async def test_messages_use_a_tool(lab: Lab, worker: Emulated) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": LIMIT}
    body |= {"tools": [{"name": "weather", "input_schema": SCHEMA}], "tool_choice": {"type": "any"}}
    whole = (await lab.post(worker, MESSAGES, body, x_request_id="r")).json()
    (block,) = whole["content"]
    assert (block["type"], block["name"], whole["stop_reason"]) == ("tool_use", "weather", "tool_use")
    events = events_of(await lab.post(worker, MESSAGES, body | {"stream": True}, x_request_id="r"))
    parts = [data["delta"]["partial_json"] for kind, data in events if kind == "content_block_delta"]
    assert json.loads("".join(parts)) == block["input"]
    assert fitting("".join(parts))


async def test_messages_are_the_chat_prompt_in_other_words(lab: Lab, worker: Emulated) -> None:
    """The same conversation has the same prompt, and is therefore found in the cache."""
    text = "x" * 4000
    await lab.post(worker, CHAT, chat(text, max_tokens=1))
    body = {"model": MODEL, "messages": [{"role": "user", "content": [{"type": "text", "text": text}]}]}
    reply = await lab.post(worker, MESSAGES, body | {"max_tokens": 1})
    usage = reply.json()["usage"]
    assert usage["cache_read_input_tokens"] == 992
    counted = (await lab.post(worker, MESSAGES + "/count_tokens", body)).json()
    read_or_made = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    assert counted["input_tokens"] == sum(usage[name] for name in read_or_made) == 1006


async def test_messages_refuse_in_anthropics_shape(lab: Lab, worker: Emulated) -> None:
    body = {"model": "no", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}
    reply = await lab.post(worker, MESSAGES, body)
    assert (reply.status, reply.json()["type"], reply.json()["error"]["type"]) == (404, "error", "NotFoundError")
    del body["max_tokens"]
    assert (await lab.post(worker, MESSAGES, body)).json()["error"]["param"] == "body.max_tokens"


async def test_response_stream_says_the_same_as_the_whole_response(lab: Lab, worker: Emulated) -> None:
    body = {"model": MODEL, "input": "hi", "instructions": "be brief", "max_output_tokens": 9, "seed": 1}
    whole = (await lab.post(worker, RESPONSES, body)).json()
    events = events_of(await lab.post(worker, RESPONSES, body | {"stream": True}))
    assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
    kinds = [kind.removeprefix("response.") for kind in dict.fromkeys(kind for kind, _ in events)]
    assert kinds == [
        *("created", "in_progress", "output_item.added", "content_part.added", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done", "completed"),
    ]
    text = "".join(data["delta"] for kind, data in events if kind == "response.output_text.delta")
    assert whole["output"][0]["content"][0]["text"] == text
    assert events[-1][1]["response"]["output"][0]["content"] == whole["output"][0]["content"]
    assert events[-1][1]["response"]["usage"]["output_tokens"] == whole["usage"]["output_tokens"] == 9
    assert (whole["status"], whole["instructions"]) == ("incomplete", "be brief")


async def test_response_calls_a_function(lab: Lab, worker: Emulated) -> None:
    body = {"model": MODEL, "input": "hi", "max_output_tokens": LIMIT, "tool_choice": "required", "seed": 1}
    body |= {"tools": [{"type": "function", "name": "weather", "parameters": SCHEMA}]}
    whole = (await lab.post(worker, RESPONSES, body)).json()
    (item,) = whole["output"]
    assert (item["type"], item["name"], whole["status"]) == ("function_call", "weather", "completed")
    assert fitting(item["arguments"])
    events = events_of(await lab.post(worker, RESPONSES, body | {"stream": True}))
    parts = [data["delta"] for kind, data in events if kind == "response.function_call_arguments.delta"]
    assert "".join(parts) == item["arguments"]
    assert events[-1][1]["response"]["output"] == [item]


async def test_response_hands_its_kv_over(lab: Lab, worker: Emulated) -> None:
    ask = {"do_remote_decode": True, "do_remote_prefill": False}
    body = {"model": MODEL, "input": "x" * 400, "max_output_tokens": 1, "kv_transfer_params": ask}
    reply = await lab.post(worker, RESPONSES, body)
    assert reply.json()["kv_transfer_params"]["do_remote_prefill"] is True
    assert worker.host.snapshot().kv_used_ratio > 0
