"""Watching a copy of a streamed answer: cutting it into events, and their pace.

The rule of this module: a scanner only looks. It never fails, whatever the bytes and however they are cut, and it
holds no more than one bounded partial event. What an event means is its dialect's business.

Pace is measured between *reads* that carried content, because one read may hold several events: the gap to the
read before is spread evenly over the events of a read. The first such read has nothing before it and gives no gap.
"""

from abc import ABC, abstractmethod

import msgspec

from gateway.wire.usage import Usage

MAX_EVENT_BYTES = 1 << 20
"""A single event longer than this ends the scan; real ones are a few hundred bytes."""

_BOM = b"\xef\xbb\xbf"
_NULL = msgspec.Raw(b"null")


class Scanner(ABC):
    """What has been seen of one streamed answer.

    Times are those of the reads, in seconds of the caller's clock. An event has content where it brings text,
    reasoning, a tool call, a refusal or audio; a role alone, an empty text, logprobs or usage are none.
    """

    __slots__ = (
        "_max_event_bytes",
        "_pending",
        "_skip_lf",
        "content_events",
        "done",
        "error",
        "finish_reasons",
        "first_content_s",
        "first_text_s",
        "itl_s",
        "last_content_s",
        "overflowed",
        "shows_text",
    )

    def __init__(self, *, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self.first_content_s: float | None = None
        self.last_content_s: float | None = None
        self.first_text_s: float | None = None
        """The first content that a user is meant to read: no reasoning, no call of a tool."""
        self.shows_text = False
        """Some event so far had such content."""
        self.content_events = 0
        self.itl_s: list[float] = []
        """Gaps between content events since the last `take_itl`."""
        self.finish_reasons: list[str] = []
        """In order of arrival, one per choice that ended."""
        self.error: str | None = None
        """The message of the last error event."""
        self.done = False
        """The stream said that it ends here."""
        self.overflowed = False
        """An event was too long: nothing after it was read."""
        self._max_event_bytes = max_event_bytes
        self._pending = bytearray()
        self._skip_lf = False

    @property
    @abstractmethod
    def usage(self) -> Usage | None:
        """The token counts seen so far."""

    @property
    def response_id(self) -> str | None:
        """The id by which the worker keeps the answer; None so far, and where a dialect has no such."""
        return None

    @abstractmethod
    def _read_event(self, event: bytes) -> None:
        """Look at one whole event, its line ends LF, without the closing blank line."""

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
            if self.shows_text and self.first_text_s is None:
                self.first_text_s = now_s

    def _pace(self, events: int, now_s: float) -> None:
        if self.last_content_s is None:
            self.first_content_s = now_s
        else:
            self.itl_s += [(now_s - self.last_content_s) / events] * events
        self.last_content_s = now_s


def given(value: msgspec.Raw) -> bool:
    """True unless the JSON value is absent or null."""
    return len(value) > 0 and value != _NULL


def filled(value: msgspec.Raw) -> bool:
    """True unless the JSON value is absent, null, or an empty string, list or object."""
    return len(value) > 2 and value != _NULL


def payload_of(event: bytes) -> bytes:
    """The data of an event, also of one with comments, other fields, several data lines or a byte order mark."""
    head, found, data = event.partition(b"\ndata: ")
    if found and b"\n" not in data and b"\n" not in head and head.startswith(b"event:"):
        return data
    lines = event.removeprefix(_BOM).split(b"\n")
    return b"\n".join([line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:")])


def error_message(raw: msgspec.Raw) -> str:
    """An error's message where it has one, else its JSON."""
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        value = None
    message = value.get("message") if isinstance(value, dict) else value
    return message if isinstance(message, str) else bytes(raw).decode(errors="replace")
