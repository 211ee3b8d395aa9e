"""Watching a copy of a streamed answer: first token, pace, usage, end and errors.

The rule of this module: the scanner only looks. It never fails, whatever the bytes and however they are cut, and it
holds no more than one bounded partial event.

Events are decoded, but only for the fields that count. An engine repeats one event with nothing new but the text, so
once such an event has been decoded, its twins are known by their head and tail.

Pace is measured between *reads* that carried content, because one read may hold several events: the gap to the
read before is spread evenly over the events of a read. The first such read has nothing before it and gives no gap.
"""

from collections.abc import Callable

import msgspec

from gateway.core.types import Endpoint
from gateway.wire.usage import Usage, usage_from_raw

MAX_EVENT_BYTES = 1 << 20
"""A single event longer than this ends the scan; real ones are a few hundred bytes."""

_BOM = b"\xef\xbb\xbf"
_EMPTY = msgspec.Raw()
_NULL = msgspec.Raw(b"null")


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
            _filled(delta.content)
            or _filled(delta.reasoning)
            or _filled(delta.reasoning_content)
            or _filled(delta.tool_calls)
            or _filled(delta.function_call)
            or _filled(delta.refusal)
            or _filled(delta.audio)
        )

    def plain_text(self) -> tuple[bytes, msgspec.Raw]:
        """The key of a plain text delta, as vLLM and SGLang write it, and its value."""
        return b'"delta":{"content":', self.delta.content if self.delta else _EMPTY


class _TextChoice(msgspec.Struct, gc=False):
    text: msgspec.Raw = _EMPTY
    finish_reason: str | None = None

    def has_content(self) -> bool:
        return _filled(self.text)

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


class SseScanner:
    """What has been seen of one streamed answer.

    Times are those of the reads, in seconds of the caller's clock. An event has content where one of its choices
    brings text, reasoning, a tool call, a refusal or audio; a role alone, an empty text, logprobs or usage are none.
    """

    __slots__ = (
        "_decode",
        "_head",
        "_max_event_bytes",
        "_pending",
        "_skip_lf",
        "_tail",
        "_usage",
        "content_events",
        "done",
        "error",
        "finish_reasons",
        "first_content_s",
        "itl_s",
        "last_content_s",
        "overflowed",
    )

    def __init__(self, endpoint: Endpoint, *, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self.first_content_s: float | None = None
        self.last_content_s: float | None = None
        self.content_events = 0
        self.itl_s: list[float] = []
        """Gaps between content events since the last `take_itl`."""
        self.finish_reasons: list[str] = []
        """In order of arrival, one per choice that ended."""
        self.error: str | None = None
        """The message of the last error event."""
        self.done = False
        """`[DONE]` was seen."""
        self.overflowed = False
        """An event was too long: nothing after it was read."""
        self._decode = _DECODE[endpoint]
        self._max_event_bytes = max_event_bytes
        self._pending = bytearray()
        self._skip_lf = False
        self._usage = _EMPTY
        self._head = self._tail = b""

    @property
    def usage(self) -> Usage | None:
        """The last usage seen: the final chunk's, or the running one of continuous usage."""
        return usage_from_raw(self._usage)

    def feed(self, data: bytes, now_s: float) -> None:
        """Look at what one read at `now_s` brought."""
        if data and not self.overflowed:
            self._scan(self._whole_events(data), now_s)

    def finish(self, now_s: float) -> None:
        """The body ended: read also an event that lacks its closing blank line."""
        if self._pending and not self.overflowed:
            rest, self._pending = bytes(self._pending), bytearray()
            self._scan([rest], now_s)

    def take_itl(self) -> list[float]:
        """The gaps between content events since the last call, in seconds."""
        taken, self.itl_s = self.itl_s, []
        return taken

    def _whole_events(self, data: bytes) -> list[bytes]:
        """Add a read to what is pending and cut off the events that it completes."""
        if self._skip_lf or b"\r" in data:
            data = self._unify_line_ends(data)
        pending = self._pending
        if pending:
            # The blank line may straddle the reads; only the new part is searched, so tiny reads stay cheap.
            search_from = len(pending) - 1
            pending += data
            if pending.find(b"\n\n", search_from) < 0:
                self._check_pending()
                return []
            data = bytes(pending)
            pending.clear()
        events = data.split(b"\n\n")
        if rest := events.pop():
            pending += rest
            self._check_pending()
        return events

    def _unify_line_ends(self, data: bytes) -> bytes:
        """Make CRLF and CR into LF, also where a CRLF is cut in two."""
        if self._skip_lf:
            data = data.removeprefix(b"\n")
        self._skip_lf = data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _check_pending(self) -> None:
        # One more byte is allowed here: it may be the first of the closing blank line.
        if len(self._pending) > self._max_event_bytes + 1:
            self._pending = bytearray()
            self.overflowed = True

    def _scan(self, events: list[bytes], now_s: float) -> None:
        before = self.content_events
        for event in events:
            if len(event) > self._max_event_bytes:
                self._pending = bytearray()
                self.overflowed = True
                break
            self._read_event(event)
        if self.content_events > before:
            self._pace(self.content_events - before, now_s)

    def _read_event(self, event: bytes) -> None:
        # A twin: its one new string is not empty, and holds no quote that could end it early.
        head, tail = self._head, self._tail
        if head and event.startswith(head) and event.endswith(tail):
            text_bytes = event.find(b'"', len(head)) - len(head)
            if text_bytes > 0 and len(head) + text_bytes + len(tail) == len(event):
                self.content_events += 1
                return
        plain = event.startswith(b"data: {") and b"\n" not in event
        payload = event[6:] if plain else _payload(event)
        try:
            chunk = self._decode(payload)
        except (msgspec.DecodeError, RecursionError):
            self.done = self.done or payload.strip() == b"[DONE]"
            return
        if chunk.choices:
            self._read_choices(chunk.choices)
        if _given(chunk.usage):
            self._usage = chunk.usage
        if _given(chunk.error):
            self.error = _error_message(chunk.error)
        if plain:
            self._learn_shape(event, chunk)

    def _read_choices(self, choices: list[_ChatChoice] | list[_TextChoice]) -> None:
        has_content = False
        for choice in choices:
            has_content = has_content or choice.has_content()
            if choice.finish_reason is not None:
                self.finish_reasons.append(choice.finish_reason)
        if has_content:
            self.content_events += 1

    def _learn_shape(self, event: bytes, chunk: _ChatChunk | _TextChunk) -> None:
        """Remember the head and tail of an event that says nothing but some text of one choice."""
        if not chunk.choices or len(chunk.choices) > 1 or _given(chunk.usage) or _given(chunk.error):
            return
        choice = chunk.choices[0]
        if choice.finish_reason is not None or not choice.has_content():
            return
        key, text = choice.plain_text()
        head, found, tail = event.partition(key + bytes(text))
        if found:
            self._head, self._tail = head + key + b'"', b'"' + tail

    def _pace(self, events: int, now_s: float) -> None:
        if self.last_content_s is None:
            self.first_content_s = now_s
        else:
            self.itl_s += [(now_s - self.last_content_s) / events] * events
        self.last_content_s = now_s


def _given(value: msgspec.Raw) -> bool:
    """True unless the JSON value is absent or null."""
    return len(value) > 0 and value != _NULL


def _filled(value: msgspec.Raw) -> bool:
    """True unless the JSON value is absent, null, or an empty string, list or object."""
    return len(value) > 2 and value != _NULL


def _payload(event: bytes) -> bytes:
    """The data of an event with comments, other fields, several data lines or a byte order mark."""
    lines = event.removeprefix(_BOM).split(b"\n")
    return b"\n".join(line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:"))


def _error_message(raw: msgspec.Raw) -> str:
    """An error's message where it has one, else its JSON."""
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        value = None
    message = value.get("message") if isinstance(value, dict) else value
    return message if isinstance(message, str) else bytes(raw).decode(errors="replace")
