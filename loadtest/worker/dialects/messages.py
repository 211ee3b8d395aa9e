"""Anthropic's Messages API as vLLM 0.32 serves it: a conversation in other words.

A body becomes a chat body, so that the same conversation has the same prompt on both routes.
"""

from typing import Any

import msgspec
from msgspec import Struct
from msgspec.json import Decoder

from loadtest.worker.answers import Json, Usage
from loadtest.worker.bodies import (
    ChatBody,
    ContentPart,
    FunctionName,
    KvTransferParams,
    Message,
    NamedTool,
    StreamOptions,
)
from loadtest.worker.dialects.base import Job, named_event
from loadtest.worker.errors import ApiError
from loadtest.worker.generation import Delta, Plan

_OPEN = b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"type":"text_delta","text":'
_CLOSE = b'},"index":0}\n\n'


class Block(Struct, frozen=True, kw_only=True):
    """One block of a message's content."""

    type: str
    text: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    content: str | list["Block"] | None = None
    thinking: str | None = None


class AnthropicMessage(Struct, frozen=True):
    """One message of a conversation."""

    role: str
    content: str | list[Block]


class AnthropicTool(Struct, frozen=True):
    """A tool that the model may call."""

    name: str
    description: str | None = None
    input_schema: dict[str, Any] = {}


class ToolChoice(Struct, frozen=True):
    """`auto`, `any`, `none`, or `tool` with a name."""

    type: str
    name: str | None = None


class MessagesBody(Struct, frozen=True, kw_only=True):
    """POST /v1/messages, and its count_tokens, which leaves `max_tokens` out."""

    model: str
    messages: list[AnthropicMessage]
    max_tokens: int | None = None
    system: str | list[Block] | None = None
    stream: bool | None = False
    temperature: float | None = None
    top_p: float | None = None
    tools: list[AnthropicTool] | None = None
    tool_choice: ToolChoice | None = None
    cache_salt: str | None = None
    kv_transfer_params: KvTransferParams | None = None


MESSAGES = Decoder(MessagesBody, strict=False)


def as_chat(body: MessagesBody) -> ChatBody:
    """The same conversation as a chat body."""
    system = [] if body.system is None else [Message(role="system", content=_parts(body.system))]
    return ChatBody(
        model=body.model,
        messages=system + [Message(role=each.role, content=_parts(each.content)) for each in body.messages],
        max_tokens=body.max_tokens,
        stream=body.stream,
        stream_options=StreamOptions() if body.stream else None,
        temperature=body.temperature,
        top_p=body.top_p,
        tools=_tools(body.tools),
        tool_choice=_tool_choice(body.tool_choice),
        cache_salt=body.cache_salt,
        kv_transfer_params=body.kv_transfer_params,
    )


def token_count(tokens: int) -> Json:
    """What /v1/messages/count_tokens answers."""
    return {"input_tokens": tokens, "context_management": {"original_input_tokens": tokens}}


def refusal(error: ApiError) -> bytes:
    """An error in Anthropic's shape."""
    return msgspec.json.encode(_error(error))


class MessagesDialect:
    """The answers of /v1/messages."""

    id_prefix = "chatcmpl-"
    takes_request_id = True

    def whole(self, job: Job, usage: Usage, kv_transfer_params: Json | None) -> bytes:
        """A message of one block: text, or a tool's use."""
        plan = job.plans[0]
        message = _message(job, [_block(plan)]) | {
            "stop_reason": _stop_reason(plan),
            "usage": _usage(usage, details=job.envelope.details),
        }
        if kv_transfer_params is not None:
            message["kv_transfer_params"] = kv_transfer_params
        return msgspec.json.encode(message)

    def writer(self, job: Job) -> "MessagesWriter":
        """The events of the same message."""
        return MessagesWriter(job)

    def refusal(self, error: ApiError) -> bytes:
        """An error in Anthropic's shape."""
        return refusal(error)


class MessagesWriter:
    """Writes one message's events; its one block is opened when its first words are known."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._plan = job.plans[0]
        self._plain = self._plan.script is None
        self._started = False
        self._opened = False

    def begin(self) -> bytes:
        """Nothing: the message starts with the first token."""
        return b""

    def events(self, delta: Delta, *, last: bool) -> bytes:  # noqa: ARG002 - `end` comes after the last
        """A token is one concatenation where the text is free."""
        if self._plain and self._opened:
            text = delta.plan.text(delta.first, delta.count)
            return _OPEN + b'"' + text + b'"' + _CLOSE if text else b""
        return self._start() + self._piece(delta)

    def end(self, usage: Usage) -> bytes:
        """The block's end, the stop reason with the usage, and the message's end."""
        stop = named_event("content_block_stop", {"type": "content_block_stop", "index": 0}) if self._opened else b""
        delta: Json = {
            "type": "message_delta",
            "delta": {"stop_reason": _stop_reason(self._plan), "stop_sequence": None},
            "usage": _usage(usage, details=self._job.envelope.details),
        }
        return stop + named_event("message_delta", delta) + named_event("message_stop", {"type": "message_stop"})

    def failure(self, error: ApiError) -> bytes:
        """An event of its own; nothing follows it."""
        return named_event("error", _error(error))

    def _start(self) -> bytes:
        if self._started:
            return b""
        self._started = True
        counts = {"input_tokens": self._plan.prompt.tokens, "output_tokens": 0}
        message = _message(self._job, []) | {"stop_reason": None, "stop_sequence": None, "usage": counts}
        return named_event("message_start", {"type": "message_start", "message": message})

    def _piece(self, delta: Delta) -> bytes:
        piece = delta.plan.piece(delta.first, delta.count)
        events = b""
        if not self._opened and (piece.text or piece.opens):
            self._opened = True
            block: Json = {"type": "text", "text": ""}
            if piece.opens is not None:
                block = {"type": "tool_use", "id": piece.opens.call_id, "name": piece.opens.name, "input": {}}
            opening: Json = {"type": "content_block_start", "content_block": block, "index": 0}
            events += named_event("content_block_start", opening)
        if piece.text:
            events += _OPEN + msgspec.json.encode(piece.text.decode()) + _CLOSE
        if piece.arguments:
            part = {"type": "input_json_delta", "partial_json": piece.arguments.decode()}
            events += named_event("content_block_delta", {"type": "content_block_delta", "delta": part, "index": 0})
        return events


def _message(job: Job, content: list[Json]) -> Json:
    envelope = job.envelope
    head: Json = {"id": envelope.response_id, "type": "message", "role": "assistant"}
    return head | {"content": content, "model": envelope.model}


def _block(plan: Plan) -> Json:
    if plan.call is None or plan.script is None:
        return {"type": "text", "text": plan.text(0, plan.output_tokens).decode()}
    arguments = msgspec.json.decode(plan.script.arguments)
    return {"type": "tool_use", "id": plan.call.call_id, "name": plan.call.name, "input": arguments}


def _stop_reason(plan: Plan) -> str:
    if plan.finish_reason == "length":
        return "max_tokens"
    return "end_turn" if plan.call is None else "tool_use"


def _usage(usage: Usage, *, details: bool) -> Json:
    if not details:
        return {"input_tokens": usage.prompt_tokens, "output_tokens": usage.completion_tokens}
    return {
        "input_tokens": max(0, usage.prompt_tokens - usage.cached_tokens - usage.created_tokens),
        "output_tokens": usage.completion_tokens,
        "cache_creation_input_tokens": usage.created_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
    }


def _error(error: ApiError) -> Json:
    return {"type": "error", "error": {"type": error.kind, "message": error.message}}


def _parts(content: str | list[Block]) -> str | list[ContentPart]:
    if isinstance(content, str):
        return content
    return [ContentPart(type=block.type, text=_text(block)) for block in content]


def _text(block: Block) -> str | None:
    """What the chat template shows of a block; None for a picture, which no model here can see."""
    match block.type:
        case "tool_use":
            return msgspec.json.encode({"name": block.name, "arguments": block.input}).decode()
        case "tool_result":
            parts = block.content or ""
            return parts if isinstance(parts, str) else "".join(_text(each) or "" for each in parts)
        case "thinking" | "redacted_thinking":
            return block.thinking or ""
        case _:
            return block.text


def _tools(tools: list[AnthropicTool] | None) -> msgspec.Raw:
    if not tools:
        return msgspec.Raw()
    chat = [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": tool.input_schema},
        }
        for tool in tools
    ]
    return msgspec.Raw(msgspec.json.encode(chat))


def _tool_choice(choice: ToolChoice | None) -> str | NamedTool | None:
    match choice:
        case ToolChoice(type="any"):
            return "required"
        case ToolChoice(type="tool", name=str(name)):
            return NamedTool(function=FunctionName(name=name))
        case _:
            return None
