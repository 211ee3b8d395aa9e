"""Adjusting what a chat's or completion's client is told about usage.

The rule of this module: no byte changes but those of the value in question, an event is passed on as soon as it is
whole, and what cannot be read is passed on as it is. Nothing here raises.

The gateway asks every stream for its usage, for its own books; the extra chunk is taken out again where the client
did not ask (`StreamEdit(hide_usage=True)`). Behind a prefill leg the decode worker counts the whole prompt as
cached, because its KV came from elsewhere; the prefill worker's figure is the true one (vllm-project/router#193,
llm-d's sidecar).
"""

import re
from itertools import pairwise

import msgspec

from gateway.wire.json_object import splice
from gateway.wire.scanner import MAX_EVENT_BYTES, given, payload_of

# Two line ends, of which each may be LF, CRLF or CR; a CRLF is never taken for two.
_EVENT_END = re.compile(rb"\n(?:\r\n?|\n)|\r(?:\n(?:\r\n?|\n)|\r\n?)")
_USAGE_KEY = b'"usage"'
_NULL_USAGE = b'"usage":null'
_LINE_ENDS = b"\r\n"
_ABSENT = msgspec.Raw()
_EMPTY_OBJECT = b"{}"


class _Request(msgspec.Struct):
    stream_options: msgspec.Raw = _ABSENT


class _Usage(msgspec.Struct):
    prompt_tokens_details: msgspec.Raw = _ABSENT


class _Answer(msgspec.Struct, gc=False):
    choices: msgspec.Raw = _ABSENT
    usage: msgspec.Raw = _ABSENT

    def is_usage_only(self) -> bool:
        """The chunk that `include_usage` adds: no choices, and a usage."""
        choices = bytes(self.choices)
        return choices.startswith(b"[") and not choices[1:-1].strip() and given(self.usage)


_decode_request = msgspec.json.Decoder(_Request).decode
_decode_usage = msgspec.json.Decoder(_Usage).decode
_decode_answer = msgspec.json.Decoder(_Answer).decode


def inject_usage(body: bytes) -> bytes:
    """Ask a streamed request for its usage: `stream_options.include_usage` is true, all else is as it was.

    A body whose `stream_options` are no object is left to the worker's judgement.
    """
    try:
        options = _decode_request(body).stream_options
        asked = splice(bytes(options) if given(options) else _EMPTY_OBJECT, "include_usage", b"true")
        return splice(body, "stream_options", asked)
    except (ValueError, RecursionError):
        return body


def set_cached_tokens(body: bytes, cached_tokens: int) -> bytes:
    """Set `usage.prompt_tokens_details.cached_tokens` of a whole answer, or of one chunk; without a usage, nothing."""
    try:
        return _with_cached_tokens(body, _decode_answer(body).usage, cached_tokens)
    except (ValueError, RecursionError):
        return body


def _with_cached_tokens(body: bytes, usage: msgspec.Raw, cached_tokens: int) -> bytes:
    if not given(usage):
        return body
    details = _decode_usage(usage).prompt_tokens_details
    known = splice(bytes(details) if given(details) else _EMPTY_OBJECT, "cached_tokens", b"%d" % cached_tokens)
    return splice(body, "usage", splice(bytes(usage), "prompt_tokens_details", known))


class StreamEdit:
    """Edits one streamed answer on its way to the client.

    Args:
        hide_usage: take out the chunk with a usage and no choices. Usage inside other chunks stays.
        cached_tokens: what every usage shall say about cached prompt tokens; None leaves it.
        max_event_bytes: from a longer event on everything passes as it comes.
    """

    __slots__ = ("_cached_tokens", "_drop_lf", "_hide_usage", "_max_event_bytes", "_only_lf", "_passing", "_pending")

    def __init__(
        self, *, hide_usage: bool = False, cached_tokens: int | None = None, max_event_bytes: int = MAX_EVENT_BYTES
    ) -> None:
        self._hide_usage = hide_usage
        self._cached_tokens = cached_tokens
        self._max_event_bytes = max_event_bytes
        self._pending = bytearray()
        self._passing = not hide_usage and cached_tokens is None
        self._drop_lf = False
        self._only_lf = True

    def feed(self, data: bytes) -> bytes:
        """Take one read; give what the client gets for it, which may be nothing yet."""
        if self._passing or not data:
            return data
        if self._drop_lf:
            # The end of a hidden event was cut within its CRLF.
            data, self._drop_lf = data.removeprefix(b"\n"), False
        self._only_lf = self._only_lf and b"\r" not in data
        if self._pending:
            # A blank line may straddle the reads; only the new part is searched, so tiny reads stay cheap.
            search_from = max(0, len(self._pending) - 3)
            self._pending += data
            if not self._ends_event(self._pending, search_from):
                return self._pass_all() if self._too_long(self._pending) else b""
            data, self._pending = bytes(self._pending), bytearray()
        elif data.endswith(b"\n\n") and _USAGE_KEY not in data and len(data) <= self._max_event_bytes:
            return data
        return self._edit_whole_events(data)

    def finish(self) -> bytes:
        """The body ended: what was held of an event that lacks its closing blank line."""
        rest, self._pending = bytes(self._pending), bytearray()
        return rest if self._passing else self._edit(rest)

    def _ends_event(self, data: bytearray, search_from: int) -> bool:
        if self._only_lf:
            return data.find(b"\n\n", search_from) >= 0
        return _EVENT_END.search(data, search_from) is not None

    def _edit_whole_events(self, data: bytes) -> bytes:
        out = []
        done = 0
        for event in self._whole_events(data):
            if self._too_long(event):
                break
            done += len(event)
            self._drop_lf = False
            out.append(self._edit(event) if _USAGE_KEY in event else event)
        if done < len(data):
            self._drop_lf = False
            self._pending += data[done:]
            if self._too_long(self._pending):
                out.append(self._pass_all())
        return b"".join(out)

    def _whole_events(self, data: bytes) -> list[bytes]:
        """The events that end in `data`, each with its blank line."""
        if self._only_lf:
            return [event + b"\n\n" for event in data.split(b"\n\n")[:-1]]
        ends = [0, *(match.end() for match in _EVENT_END.finditer(data))]
        return [data[start:end] for start, end in pairwise(ends)]

    def _edit(self, event: bytes) -> bytes:
        """One event with its blank line, and with blank lines before it where the stream has more than it needs."""
        if _NULL_USAGE in event and event.count(_USAGE_KEY) == 1:
            return event
        payload = _payload(event)
        try:
            answer = _decode_answer(payload)
            if self._hide_usage and answer.is_usage_only():
                self._drop_lf = event.endswith(b"\r")
                return event[: len(event) - len(event.lstrip(_LINE_ENDS))]
            if self._cached_tokens is None:
                return event
            head, found, tail = event.partition(payload)
            return head + _with_cached_tokens(payload, answer.usage, self._cached_tokens) + tail if found else event
        except (ValueError, RecursionError):
            return event

    def _too_long(self, event: bytes | bytearray) -> bool:
        limit = self._max_event_bytes
        return len(event) > limit and len(event.strip(_LINE_ENDS)) > limit

    def _pass_all(self) -> bytes:
        rest, self._pending = bytes(self._pending), bytearray()
        self._passing = True
        return rest


def _payload(event: bytes) -> bytes:
    """The event's JSON as it stands in the event; empty where it is spread over several lines."""
    if event.startswith(b"data: {") and event.endswith(b"}\n\n") and event.count(b"\n") == 2:
        return event[6:-2]
    payload = payload_of(event.replace(b"\r\n", b"\n").replace(b"\r", b"\n").strip(b"\n"))
    return b"" if b"\n" in payload else payload
