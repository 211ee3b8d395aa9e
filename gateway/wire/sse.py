"""Watching the streamed answers of chat and completions.

The rule of this module: events are decoded, but only for the fields that count. An engine repeats one event with
nothing new but the text, so once such an event has been decoded, its twins are known by their head and tail.
"""

from collections.abc import Callable

import msgspec

from gateway.core.types import Endpoint
from gateway.wire.scanner import MAX_EVENT_BYTES, Scanner, error_message, filled, given, payload_of
from gateway.wire.usage import Usage, usage_from_raw

_EMPTY = msgspec.Raw()


class _Delta(msgspec.Struct, gc=False):
    content: msgspec.Raw = _EMPTY
    reasoning: msgspec.Raw = _EMPTY
    reasoning_content: msgspec.Raw = _EMPTY
    tool_calls: msgspec.Raw = _EMPTY
    function_call: msgspec.Raw = _EMPTY
    refusal: msgspec.Raw = _EMPTY
    audio: msgspec.Raw = _EMPTY


class _ChatChoice(msgspec.Struct, gc=False):
    delta: _Delta | None = None
    finish_reason: str | None = None

    def has_content(self) -> bool:
        delta = self.delta
        return delta is not None and (
            filled(delta.content)
            or filled(delta.reasoning)
            or filled(delta.reasoning_content)
            or filled(delta.tool_calls)
            or filled(delta.function_call)
            or filled(delta.refusal)
            or filled(delta.audio)
        )

    def shows_text(self) -> bool:
        delta = self.delta
        return delta is not None and (filled(delta.content) or filled(delta.refusal) or filled(delta.audio))

    def plain_text(self) -> tuple[bytes, msgspec.Raw]:
        """The key of a plain text delta, as vLLM and SGLang write it, and its value."""
        return b'"delta":{"content":', self.delta.content if self.delta else _EMPTY


class _TextChoice(msgspec.Struct, gc=False):
    text: msgspec.Raw = _EMPTY
    finish_reason: str | None = None

    def has_content(self) -> bool:
        return filled(self.text)

    def shows_text(self) -> bool:
        return filled(self.text)

    def plain_text(self) -> tuple[bytes, msgspec.Raw]:
        return b'"text":', self.text


class _ChatChunk(msgspec.Struct, gc=False):
    choices: list[_ChatChoice] | None = None
    usage: msgspec.Raw = _EMPTY
    error: msgspec.Raw = _EMPTY


class _TextChunk(msgspec.Struct, gc=False):
    choices: list[_TextChoice] | None = None
    usage: msgspec.Raw = _EMPTY
    error: msgspec.Raw = _EMPTY


_DECODE: dict[Endpoint, Callable[[bytes], _ChatChunk | _TextChunk]] = {
    Endpoint.CHAT: msgspec.json.Decoder(_ChatChunk).decode,
    Endpoint.COMPLETIONS: msgspec.json.Decoder(_TextChunk).decode,
}


class SseScanner(Scanner):
    """What has been seen of one streamed chat or completion."""

    __slots__ = ("_decode", "_head", "_tail", "_usage")

    def __init__(self, endpoint: Endpoint, *, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        super().__init__(max_event_bytes=max_event_bytes)
        self._decode = _DECODE[endpoint]
        self._usage = _EMPTY
        self._head = self._tail = b""

    @property
    def usage(self) -> Usage | None:
        """The last usage seen: the final chunk's, or the running one of continuous usage."""
        return usage_from_raw(self._usage)

    def _read_event(self, event: bytes) -> None:
        # A twin: its one new string is not empty, and holds no quote that could end it early.
        head, tail = self._head, self._tail
        if head and event.startswith(head) and event.endswith(tail):
            text_bytes = event.find(b'"', len(head)) - len(head)
            if text_bytes > 0 and len(head) + text_bytes + len(tail) == len(event):
                self.content_events += 1
                return
        plain = event.startswith(b"data: {") and b"\n" not in event
        payload = event[6:] if plain else payload_of(event)
        try:
            chunk = self._decode(payload)
        except (msgspec.DecodeError, RecursionError):
            self.done = self.done or payload.strip() == b"[DONE]"
            return
        if chunk.choices:
            self._read_choices(chunk.choices)
        if given(chunk.usage):
            self._usage = chunk.usage
        if given(chunk.error):
            self.error = error_message(chunk.error)
        if plain:
            self._learn_shape(event, chunk)

    def _read_choices(self, choices: list[_ChatChoice] | list[_TextChoice]) -> None:
        has_content = False
        for choice in choices:
            has_content = has_content or choice.has_content()
            self.shows_text = self.shows_text or choice.shows_text()
            if choice.finish_reason is not None:
                self.finish_reasons.append(choice.finish_reason)
        if has_content:
            self.content_events += 1

    def _learn_shape(self, event: bytes, chunk: _ChatChunk | _TextChunk) -> None:
        """Remember the head and tail of an event that says nothing but some text of one choice."""
        if not chunk.choices or len(chunk.choices) > 1 or given(chunk.usage) or given(chunk.error):
            return
        choice = chunk.choices[0]
        if choice.finish_reason is not None or not choice.has_content():
            return
        key, text = choice.plain_text()
        head, found, tail = event.partition(key + bytes(text))
        if found:
            self._head, self._tail = head + key + b'"', b'"' + tail
