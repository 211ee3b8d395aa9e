"""Watching an answer on its way to the client.

The rule of this module: a copy is looked at, the bytes themselves are never touched. An answer that cannot be read
still passes.
"""

from gateway.wire.dialects import Dialect
from gateway.wire.usage import Usage

MAX_WHOLE_ANSWER_BYTES = 16 * 2**20
"""A larger unstreamed answer passes without being read for its usage."""


class AnswerWatch:
    """First content, pace and usage of one answer, streamed or whole."""

    __slots__ = ("_dialect", "_held", "_held_bytes", "_scanner")

    def __init__(self, dialect: Dialect, *, streamed: bool) -> None:
        self._dialect = dialect
        self._scanner = dialect.scanner() if streamed else None
        self._held: list[bytes] = []
        self._held_bytes = 0

    @property
    def streamed(self) -> bool:
        """True for server-sent events."""
        return self._scanner is not None

    @property
    def first_content_s(self) -> float | None:
        """When the first content came; None so far, and for a whole answer."""
        return self._scanner.first_content_s if self._scanner else None

    @property
    def first_text_s(self) -> float | None:
        """When the first text for the user came; None so far, and for a whole answer."""
        return self._scanner.first_text_s if self._scanner else None

    @property
    def error(self) -> str | None:
        """The message of an error event inside the stream."""
        return self._scanner.error if self._scanner else None

    @property
    def done(self) -> bool:
        """Whether the stream said so itself; a whole answer is whole when it ends."""
        return self._scanner.done if self._scanner else True

    @property
    def cut_short(self) -> bool:
        """True for a stream that ended amid its content: neither its end nor a reason to finish was told.

        A stream without any content is not judged: llama.cpp ends a stream so that it refuses.
        """
        scanner = self._scanner
        if scanner is None or scanner.overflowed or scanner.done:
            return False
        return scanner.content_events > 0 and not scanner.finish_reasons

    def feed(self, data: bytes, now_s: float) -> None:
        """Look at what one read brought."""
        if self._scanner is not None:
            self._scanner.feed(data, now_s)
        elif self._held_bytes <= MAX_WHOLE_ANSWER_BYTES:
            self._held.append(data)
            self._held_bytes += len(data)

    def take_itl_s(self) -> list[float]:
        """The gaps between content events since the last call."""
        return self._scanner.take_itl() if self._scanner else []

    def finish(self, now_s: float) -> None:
        """The body has ended."""
        if self._scanner is not None:
            self._scanner.finish(now_s)

    def usage(self) -> Usage | None:
        """Token counts as the worker reported them."""
        if self._scanner is not None:
            return self._scanner.usage
        if self._held_bytes > MAX_WHOLE_ANSWER_BYTES:
            return None
        return self._dialect.usage_of(b"".join(self._held))

    def response_id(self) -> str | None:
        """The id by which the worker keeps the answer, unless it was asked not to."""
        if self._scanner is not None:
            return self._scanner.response_id
        if self._dialect.response_id_of is None or self._held_bytes > MAX_WHOLE_ANSWER_BYTES:
            return None
        return self._dialect.response_id_of(b"".join(self._held))

    def tpot_s(self, output_tokens: int | None) -> float | None:
        """(last - first content) / (tokens - 1); content events stand in where no usage was reported."""
        scanner = self._scanner
        if scanner is None or scanner.first_content_s is None or scanner.last_content_s is None:
            return None
        tokens = scanner.content_events if output_tokens is None else output_tokens
        return (scanner.last_content_s - scanner.first_content_s) / (tokens - 1) if tokens > 1 else None


def is_event_stream(headers: list[tuple[bytes, bytes]]) -> bool:
    """Whether an answer is server-sent events; names in lower case."""
    return any(name == b"content-type" and b"text/event-stream" in value for name, value in headers)
