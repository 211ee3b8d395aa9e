"""OpenAI's Responses API as vLLM 0.32 serves it; what is kept of an answer is `loadtest.worker.responding`'s.

A body becomes a chat body, so that the same conversation has the same prompt on both routes.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.json import Decoder

from loadtest.worker.answers import Json, Usage
from loadtest.worker.bodies import (
    ChatBody,
    ContentPart,
    FunctionName,
    JsonSchema,
    KvTransferParams,
    Message,
    NamedTool,
    ResponseFormat,
    decode,
    is_null,
)
from loadtest.worker.dialects.base import Job
from loadtest.worker.dialects.responses_items import output_item
from loadtest.worker.dialects.responses_stream import ResponsesWriter
from loadtest.worker.errors import ApiError


class Part(Struct, frozen=True):
    """One part of an item's content."""

    type: str
    text: str | None = None


class Item(Struct, frozen=True, kw_only=True):
    """One item of the input: a message, a function's call or its output."""

    type: str = "message"
    role: str | None = None
    content: str | list[Part] | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[Part] | None = None


class FunctionTool(Struct, frozen=True):
    """One of the `tools`; those that are no functions are shown to the model and never called."""

    type: str
    name: str | None = None
    parameters: dict[str, Any] | None = None


class ToolName(Struct, frozen=True):
    """A `tool_choice` that names the tool."""

    type: str
    name: str | None = None


class TextFormat(Struct, frozen=True, rename={"body": "schema"}):
    """`text`, `json_object` or `json_schema`."""

    type: str
    body: dict[str, Any] | None = None


class TextConfig(Struct, frozen=True):
    """The `text` of a request."""

    format: TextFormat | None = None


class ResponsesBody(Struct, frozen=True, kw_only=True):
    """POST /v1/responses."""

    input: str | list[Item]
    model: str | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = True
    background: bool | None = False
    max_output_tokens: int | None = None
    stream: bool | None = False
    temperature: float | None = None
    top_p: float | None = None
    tools: Raw = Raw()
    tool_choice: str | ToolName | None = None
    text: Raw = Raw()
    metadata: dict[str, str] | None = None
    parallel_tool_calls: bool | None = True
    seed: int | None = None
    ignore_eos: bool | None = False
    cache_salt: str | None = None
    kv_transfer_params: KvTransferParams | None = None


RESPONSES = Decoder(ResponsesBody, strict=False)
_TOOLS = Decoder(list[FunctionTool])
_TEXT = Decoder(TextConfig)


def as_chat(body: ResponsesBody, before: Sequence[Message] = ()) -> ChatBody:
    """The same conversation as a chat body, with what stands before the input of the response that it goes on from."""
    items = [Item(role="user", content=body.input)] if isinstance(body.input, str) else body.input
    instructions = [] if body.instructions is None else [Message(role="system", content=body.instructions)]
    return ChatBody(
        model=body.model,
        messages=[*instructions, *before, *map(_message, items)],
        max_tokens=body.max_output_tokens,
        stream=body.stream,
        temperature=body.temperature,
        top_p=body.top_p,
        tools=_tools(body.tools),
        tool_choice=_tool_choice(body.tool_choice),
        response_format=_format(body.text),
        seed=body.seed,
        ignore_eos=body.ignore_eos,
        cache_salt=body.cache_salt,
        kv_transfer_params=body.kv_transfer_params,
    )


OnWhole = Callable[[Json, Message, tuple[bytes, ...]], None]
"""Told of a whole response, of its answer as a message, and of the events of a stream in the background."""


class ResponsesDialect:
    """The answers to one body, parts of which they repeat.

    Attributes:
        on_whole: what is to be told of the whole response, if anything.
    """

    id_prefix = "resp_"
    takes_request_id = False

    def __init__(self, body: ResponsesBody) -> None:
        self._body = body
        self.on_whole: OnWhole | None = None

    def whole(self, job: Job, usage: Usage, kv_transfer_params: Json | None) -> bytes:
        """A response of one item: a message, or a function's call."""
        response = self._whole(job, usage, kv_transfer_params)
        self._tell(job, response, ())
        return msgspec.json.encode(response)

    def writer(self, job: Job) -> ResponsesWriter:
        """The events of the same response."""
        return ResponsesWriter(
            job.plans[0],
            begun=self._response(job, None, None, None),
            completed=lambda usage: self._whole(job, usage, None),
            ended=lambda response, events: self._tell(job, response, events if self._body.background else ()),
        )

    def refusal(self, error: ApiError) -> bytes:
        """As everywhere in OpenAI's APIs."""
        return error.body()

    def _whole(self, job: Job, usage: Usage, kv: Json | None) -> Json:
        return self._response(job, [output_item(job.plans[0])], usage, kv)

    def _tell(self, job: Job, response: Json, events: tuple[bytes, ...]) -> None:
        if self.on_whole is not None:
            plan = job.plans[0]
            answer = Message(role="assistant", content=plan.text(0, plan.output_tokens).decode())
            self.on_whole(response, answer, events)

    def _response(self, job: Job, output: list[Json] | None, usage: Usage | None, kv: Json | None) -> Json:
        body, plan = self._body, job.plans[0]
        cut = output is not None and plan.finish_reason == "length"
        status = "in_progress" if output is None else "incomplete" if cut else "completed"
        choice = "none" if is_null(body.tools) else body.tool_choice or "auto"
        return {
            "id": job.envelope.response_id,
            "created_at": job.envelope.created,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "instructions": body.instructions,
            "metadata": body.metadata,
            "model": job.envelope.model,
            "object": "response",
            "output": output or [],
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "temperature": 1.0 if body.temperature is None else body.temperature,
            "tool_choice": choice,
            "tools": [] if is_null(body.tools) else body.tools,
            "top_p": 1.0 if body.top_p is None else body.top_p,
            "background": False,
            "max_output_tokens": job.request.limit_tokens(plan.prompt, max_model_len=job.envelope.max_model_len),
            "max_tool_calls": None,
            "previous_response_id": body.previous_response_id,
            "prompt": None,
            "reasoning": None,
            "service_tier": "auto",
            "status": status,
            "text": None if is_null(body.text) else body.text,
            "top_logprobs": None,
            "truncation": "disabled",
            "usage": None if usage is None else _usage(usage),
            "user": None,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "kv_transfer_params": kv,
            "ec_transfer_params": None,
            "input_messages": None,
            "output_messages": None,
        }


def _usage(usage: Usage) -> Json:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_tokens,
            "cache_write_tokens": usage.created_tokens,
            "input_tokens_per_turn": [],
            "cached_tokens_per_turn": [],
        },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {
            "reasoning_tokens": 0,
            "tool_output_tokens": 0,
            "output_tokens_per_turn": [],
            "tool_output_tokens_per_turn": [],
        },
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _message(item: Item) -> Message:
    match item.type:
        case "function_call":
            call = {"name": item.name, "arguments": item.arguments}
            return Message(role="assistant", content=msgspec.json.encode(call).decode())
        case "function_call_output":
            return Message(role="tool", content=_parts(item.output))
        case _:
            return Message(role=item.role or "assistant", content=_parts(item.content))


def _parts(content: str | list[Part] | None) -> str | list[ContentPart] | None:
    if not isinstance(content, list):
        return content
    return [ContentPart(type=part.type, text=part.text) for part in content]


def _tools(raw: Raw) -> Raw:
    if is_null(raw):
        return Raw()
    functions = [tool for tool in decode(_TOOLS, bytes(raw)) if tool.type == "function" and tool.name]
    chat = [{"type": "function", "function": {"name": f.name, "parameters": f.parameters}} for f in functions]
    return Raw(msgspec.json.encode(chat)) if chat else Raw()


def _tool_choice(choice: str | ToolName | None) -> str | NamedTool | None:
    if isinstance(choice, ToolName):
        return None if choice.name is None else NamedTool(function=FunctionName(name=choice.name))
    return choice


def _format(text: Raw) -> ResponseFormat | None:
    asked = None if is_null(text) else decode(_TEXT, bytes(text)).format
    return None if asked is None else ResponseFormat(type=asked.type, json_schema=JsonSchema(body=asked.body))
