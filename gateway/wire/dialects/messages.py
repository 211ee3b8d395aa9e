"""Anthropic's Messages API: POST /v1/messages and /v1/messages/count_tokens.

The rule of this module: the prompt is the system text, then the messages with their blocks, without the cache marks,
which wander from turn to turn. A stream ends with `message_stop`, and there is no `[DONE]`.
"""

import msgspec

from gateway.core.types import Endpoint
from gateway.wire.conversation import conversation_features
from gateway.wire.dialects.base import Dialect, json_peek
from gateway.wire.errors import ApiError
from gateway.wire.peeked import Arrival, Peeked, Prompt, is_on, peeked, positive, text_or_items
from gateway.wire.prompt_chain import Message, PromptChain, chat_chain, root_seed
from gateway.wire.scanner import MAX_EVENT_BYTES, Scanner, error_message, filled, given, payload_of
from gateway.wire.usage import Usage, messages_usage, usage_from_json

_ABSENT = msgspec.Raw()
_ATTRIBUTION = b'"x-anthropic-billing-header'
_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class _Request(msgspec.Struct, kw_only=True):
    model: str
    messages: list[Message]
    system: msgspec.Raw = _ABSENT
    tools: msgspec.Raw = _ABSENT
    cache_salt: msgspec.Raw = _ABSENT
    metadata: msgspec.Raw = _ABSENT
    max_tokens: msgspec.Raw = _ABSENT
    stream: msgspec.Raw = _ABSENT


_decode_request = msgspec.json.Decoder(_Request).decode


def _read(body: bytes, arrival: Arrival) -> Peeked | ApiError:
    request = _decode_request(body)
    chain = _chain(request, arrival, with_turns=arrival.conversation is not None)
    return peeked(
        arrival,
        Endpoint.MESSAGES,
        model=request.model,
        prompt=chain.as_prompt(),
        stream=is_on(request.stream),
        include_usage=True,
        max_output_tokens=positive(request.max_tokens),
        output_features=conversation_features(
            arrival.reader,
            request.messages,
            model=request.model,
            prompt_bytes=chain.text_bytes,
            tools=request.tools,
        ),
        conversation_fields={"metadata": request.metadata},
    )


def _read_count(body: bytes, arrival: Arrival) -> Peeked | ApiError:
    """A count runs no model, so it leaves nothing in any cache: it has no chain."""
    request = _decode_request(body)
    chain = _chain(request, arrival)
    prompt = Prompt(text_bytes=chain.text_bytes, media_parts=chain.media_parts)
    return peeked(arrival, Endpoint.COUNT_TOKENS, model=request.model, prompt=prompt)


def _chain(request: _Request, arrival: Arrival, *, with_turns: bool = False) -> PromptChain:
    return chat_chain(
        [*_system(request.system), *request.messages],
        seed=root_seed(request.model, endpoint=Endpoint.MESSAGES, cache_salt=request.cache_salt),
        preamble=(request.tools,),
        block_bytes=arrival.block_bytes,
        with_turns=with_turns,
    )


def _system(raw: msgspec.Raw) -> list[Message]:
    content = text_or_items(raw)
    if content is None:
        return []
    if isinstance(content, list):
        # Claude Code's attribution differs in every request; vLLM leaves it out of the prompt too.
        content = [block for block in content if _ATTRIBUTION not in bytes(block)]
    return [Message(role="system", content=content)]


# --- the stream ----------------------------------------------------------------------------------------------------


class _Delta(msgspec.Struct, gc=False):
    text: msgspec.Raw = _ABSENT
    thinking: msgspec.Raw = _ABSENT
    partial_json: msgspec.Raw = _ABSENT
    stop_reason: msgspec.Raw = _ABSENT

    def has_content(self) -> bool:
        return filled(self.text) or filled(self.thinking) or filled(self.partial_json)


class _Start(msgspec.Struct, gc=False):
    usage: msgspec.Raw = _ABSENT


class _Event(msgspec.Struct, gc=False):
    type: str = ""
    delta: _Delta | None = None
    message: _Start | str | None = None
    usage: msgspec.Raw = _ABSENT
    error: msgspec.Raw = _ABSENT


_decode_event = msgspec.json.Decoder(_Event).decode


class MessagesScanner(Scanner):
    """What has been seen of one streamed message.

    Content is a `content_block_delta` with text, thinking or a tool's input. The usage is that of `message_start`
    overlaid by the running one of `message_delta`.
    """

    __slots__ = ("_last_usage", "_start_usage")

    def __init__(self, *, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        super().__init__(max_event_bytes=max_event_bytes)
        self._start_usage = self._last_usage = _ABSENT

    @property
    def usage(self) -> Usage | None:
        """The prompt's tokens, cached ones among them, and the output's so far."""
        return messages_usage(self._start_usage, self._last_usage)

    def _read_event(self, event: bytes) -> None:
        payload = payload_of(event)
        try:
            read = _decode_event(payload)
        except (msgspec.DecodeError, RecursionError):
            self.done = self.done or payload.strip() == b"[DONE]"
            return
        if read.type == "content_block_delta":
            if read.delta is not None and read.delta.has_content():
                self.content_events += 1
                self.shows_text = self.shows_text or filled(read.delta.text)
        elif read.type == "message_stop":
            self.done = True
        elif read.type == "error" or given(read.error):
            self.done = True
            self.error = error_message(read.error)
        else:
            self._read_frame(read)

    def _read_frame(self, read: _Event) -> None:
        """`message_start` and `message_delta`."""
        if isinstance(read.message, _Start) and given(read.message.usage):
            self._start_usage = read.message.usage
        if given(read.usage):
            self._last_usage = read.usage
        if read.delta is not None and filled(read.delta.stop_reason):
            self.finish_reasons.append(bytes(read.delta.stop_reason).decode(errors="replace").strip('"'))


# --- errors --------------------------------------------------------------------------------------------------------


def _error_body(error: ApiError) -> bytes:
    kind = _ERROR_TYPES.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": error.message}})


def _sse_error(error: ApiError) -> bytes:
    return b"event: error\ndata: " + _error_body(error) + b"\n\n"


def _usage_of(body: bytes) -> Usage | None:
    return usage_from_json(body, messages_usage)


def _no_usage(body: bytes) -> None:  # noqa: ARG001 - a count is an answer, not a use of tokens
    return None


MESSAGES = Dialect(
    endpoint=Endpoint.MESSAGES,
    peek=json_peek(_read),
    scanner=MessagesScanner,
    usage_of=_usage_of,
    error_body=_error_body,
    sse_error=_sse_error,
)
COUNT_TOKENS = Dialect(
    endpoint=Endpoint.COUNT_TOKENS,
    peek=json_peek(_read_count),
    scanner=MessagesScanner,
    usage_of=_no_usage,
    error_body=_error_body,
    sse_error=_sse_error,
)
