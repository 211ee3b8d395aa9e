"""OpenAI's Responses API: POST /v1/responses.

The rule of this module: the prompt is the instructions, then the input items in their order. A stream's events have
types; the one that carries the whole response ends it, and there is no `[DONE]`. A response has an id, and the worker
keeps it unless it is asked not to.
"""

import msgspec

from gateway.core.types import Endpoint
from gateway.wire.conversation import conversation_features
from gateway.wire.dialects.base import Dialect, json_peek
from gateway.wire.errors import ApiError
from gateway.wire.peeked import Arrival, Peeked, is_on, peeked, positive, text_or_items
from gateway.wire.prompt_chain import Message, chat_chain, root_seed
from gateway.wire.scanner import MAX_EVENT_BYTES, Scanner, error_message, filled, given, payload_of
from gateway.wire.usage import Usage, responses_usage, usage_from_json

_ABSENT = msgspec.Raw()
_CREATED = "response.created"
_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed"})
_SHOWN = frozenset({"response.output_text.delta", "response.refusal.delta"})

MAX_ID_CHARS = 256
"""No worker makes longer ids, and they are kept."""


class _Request(msgspec.Struct, kw_only=True):
    model: str
    input: msgspec.Raw = _ABSENT
    instructions: msgspec.Raw = _ABSENT
    previous_response_id: msgspec.Raw = _ABSENT
    prompt: msgspec.Raw = _ABSENT
    tools: msgspec.Raw = _ABSENT
    cache_salt: msgspec.Raw = _ABSENT
    prompt_cache_key: msgspec.Raw = _ABSENT
    user: msgspec.Raw = _ABSENT
    max_output_tokens: msgspec.Raw = _ABSENT
    stream: msgspec.Raw = _ABSENT
    store: msgspec.Raw = _ABSENT


class _Item(msgspec.Struct):
    """An input item that is a message or a tool's output."""

    role: str = ""
    content: str | list[msgspec.Raw] | None = None
    output: str | list[msgspec.Raw] | None = None
    call_id: msgspec.Raw = _ABSENT


_decode_request = msgspec.json.Decoder(_Request).decode
_decode_item = msgspec.json.Decoder(_Item).decode


def _read(body: bytes, arrival: Arrival) -> Peeked | ApiError:
    request = _decode_request(body)
    messages = [*_instructions(request.instructions), *_items(request.input)]
    chain = chat_chain(
        messages,
        seed=root_seed(request.model, endpoint=Endpoint.RESPONSES, cache_salt=request.cache_salt),
        # What the worker remembers of an earlier response stands before all that is in this body.
        preamble=(request.previous_response_id, request.prompt, request.tools),
        block_bytes=arrival.block_bytes,
        with_turns=arrival.conversation is not None,
    )
    return peeked(
        arrival,
        Endpoint.RESPONSES,
        model=request.model,
        prompt=chain.as_prompt(),
        stream=is_on(request.stream),
        include_usage=True,
        max_output_tokens=positive(request.max_output_tokens),
        output_features=conversation_features(
            arrival.reader,
            messages,
            model=request.model,
            prompt_bytes=chain.text_bytes,
            tools=request.tools,
        ),
        conversation_fields={
            "prompt_cache_key": request.prompt_cache_key,
            "user": request.user,
            "previous_response_id": request.previous_response_id,
        },
        stores=bytes(request.store) != b"false",
    )


def _instructions(raw: msgspec.Raw) -> list[Message]:
    content = text_or_items(raw)
    return [] if content is None else [Message(role="system", content=content)]


def _items(raw: msgspec.Raw) -> list[Message]:
    content = text_or_items(raw)
    if isinstance(content, str):
        return [Message(role="user", content=content)]
    return [_item(item) for item in content or ()]


def _item(raw: msgspec.Raw) -> Message:
    """A message, a tool's output, or (a call, a reference, what the worker must judge) the JSON as it is."""
    try:
        item = _decode_item(raw)
    except msgspec.DecodeError:
        return Message(tool_calls=raw)
    if item.content is not None:
        return Message(role=item.role, content=item.content)
    if item.output is not None:
        return Message(role="tool", content=item.output, tool_call_id=item.call_id)
    return Message(tool_calls=raw)


# --- the stream ----------------------------------------------------------------------------------------------------


class _Event(msgspec.Struct, gc=False):
    type: str = ""
    delta: msgspec.Raw = _ABSENT
    response: msgspec.Raw = _ABSENT
    error: msgspec.Raw = _ABSENT
    message: msgspec.Raw = _ABSENT


class _Incomplete(msgspec.Struct):
    reason: str | None = None


class _Named(msgspec.Struct):
    """A response as far as its id."""

    id: str | None = None


class _Response(msgspec.Struct):
    status: str | None = None
    incomplete_details: _Incomplete | None = None
    usage: msgspec.Raw = _ABSENT
    error: msgspec.Raw = _ABSENT


_decode_event = msgspec.json.Decoder(_Event).decode
_decode_response = msgspec.json.Decoder(_Response).decode
_decode_named = msgspec.json.Decoder(_Named).decode


class ResponsesScanner(Scanner):
    """What has been seen of one streamed response: every `*.delta` that is not empty is content."""

    __slots__ = ("_response_id", "_usage")

    def __init__(self, *, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        super().__init__(max_event_bytes=max_event_bytes)
        self._usage = _ABSENT
        self._response_id: str | None = None

    @property
    def usage(self) -> Usage | None:
        """That of the event which ended the stream."""
        return responses_usage(self._usage)

    @property
    def response_id(self) -> str | None:
        """That of the event which began the stream."""
        return self._response_id

    def _read_event(self, event: bytes) -> None:
        payload = payload_of(event)
        try:
            read = _decode_event(payload)
        except (msgspec.DecodeError, RecursionError):
            self.done = self.done or payload.strip() == b"[DONE]"
            return
        if read.type.endswith(".delta") and filled(read.delta):
            self.content_events += 1
            self.shows_text = self.shows_text or read.type in _SHOWN
        elif read.type == _CREATED:
            self._response_id = _id_of(read.response)
        elif read.type in _ENDS:
            self.done = True
            self._read_end(read.response)
        elif read.type == "error" or given(read.error):
            self.done = True
            self.error = error_message(read.error if given(read.error) else read.message)

    def _read_end(self, raw: msgspec.Raw) -> None:
        try:
            response = _decode_response(raw)
        except (msgspec.DecodeError, RecursionError):
            return
        self._usage = response.usage
        details = response.incomplete_details
        reason = details.reason if details and details.reason else response.status
        if reason is not None:
            self.finish_reasons.append(reason)
        if given(response.error):
            self.error = error_message(response.error)


# --- errors --------------------------------------------------------------------------------------------------------


def _sse_error(error: ApiError) -> bytes:
    event = {"type": "error", "code": error.code, "message": error.message, "param": error.param}
    return b"event: error\ndata: " + msgspec.json.encode(event) + b"\n\n"


# --- whole answers -------------------------------------------------------------------------------------------------


def _id_of(response: bytes | msgspec.Raw) -> str | None:
    """The id of a response; None where it has none that could be kept, or is not JSON."""
    try:
        found = _decode_named(response).id
    except (msgspec.DecodeError, RecursionError):
        return None
    return found if found and len(found) <= MAX_ID_CHARS else None


def _usage_of(body: bytes) -> Usage | None:
    return usage_from_json(body, responses_usage)


RESPONSES = Dialect(
    endpoint=Endpoint.RESPONSES,
    peek=json_peek(_read),
    scanner=ResponsesScanner,
    usage_of=_usage_of,
    response_id_of=_id_of,
    sse_error=_sse_error,
)
