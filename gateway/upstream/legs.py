"""The two legs of a request, as listeners of their exchanges.

The rule of this module: a leg gathers what its answer says and reports it once; what follows from it is the
journey's decision.
"""

from collections.abc import Callable
from typing import Protocol

from gateway.upstream.errors import UpstreamError
from gateway.upstream.services import Headers

MAX_HELD_ANSWER_BYTES = 64 * 2**20
"""A prefill answer can carry prompt token ids or logprobs; beyond this it is not one that can be used."""


class HeldAnswer:
    """A whole answer, kept until it is known what to do with it."""

    __slots__ = ("_pieces", "headers", "size", "status")

    def __init__(self, status: int, headers: Headers) -> None:
        self.status = status
        self.headers = headers
        self.size = 0
        self._pieces: list[bytes] = []

    def add(self, data: bytes) -> None:
        """One more piece; beyond the bound pieces are counted and dropped."""
        self.size += len(data)
        if self.size <= MAX_HELD_ANSWER_BYTES:
            self._pieces.append(data)

    @property
    def body(self) -> bytes | None:
        """The body; None where it was too large to keep."""
        return b"".join(self._pieces) if self.size <= MAX_HELD_ANSWER_BYTES else None


class PrefillLeg:
    """Holds the prefill worker's whole answer."""

    __slots__ = ("_answer", "_answered", "_failed")

    def __init__(self, answered: Callable[[HeldAnswer], None], failed: Callable[[UpstreamError], None]) -> None:
        self._answered = answered
        self._failed = failed
        self._answer: HeldAnswer | None = None

    def on_head(self, status: int, headers: Headers, /) -> None:
        """Begin to hold."""
        self._answer = HeldAnswer(status, headers)

    def on_body(self, data: bytes, /) -> None:
        """Hold."""
        assert self._answer is not None
        self._answer.add(data)

    def on_end(self) -> None:
        """Report the answer."""
        assert self._answer is not None
        self._answered(self._answer)

    def on_error(self, error: UpstreamError, /) -> None:
        """Report the failure."""
        self._failed(error)


class DecodeReader(Protocol):
    """Who follows the decode leg."""

    def wants_held(self, status: int, headers: Headers) -> bool:
        """Whether an answer with this head is to be held rather than relayed at once."""

    def decode_held(self, answer: HeldAnswer) -> None:
        """A held answer is whole."""

    def decode_began(self, status: int, headers: Headers) -> None:
        """The head of an answer to relay."""

    def decode_body(self, data: bytes) -> None:
        """A piece of an answer to relay."""

    def decode_ended(self) -> None:
        """The relayed answer is whole."""

    def decode_failed(self, error: UpstreamError) -> None:
        """The leg failed, before or after its head."""


class DecodeLeg:
    """Relays the decode worker's answer as it comes, or holds one that may be replaced by another worker's."""

    __slots__ = ("_held", "_reader")

    def __init__(self, reader: DecodeReader) -> None:
        self._reader = reader
        self._held: HeldAnswer | None = None

    def on_head(self, status: int, headers: Headers, /) -> None:
        """Hold or relay."""
        if self._reader.wants_held(status, headers):
            self._held = HeldAnswer(status, headers)
        else:
            self._reader.decode_began(status, headers)

    def on_body(self, data: bytes, /) -> None:
        """Hold or relay."""
        if self._held is not None:
            self._held.add(data)
        else:
            self._reader.decode_body(data)

    def on_end(self) -> None:
        """Report the end."""
        if self._held is not None:
            self._reader.decode_held(self._held)
        else:
            self._reader.decode_ended()

    def on_error(self, error: UpstreamError, /) -> None:
        """Report the failure."""
        self._reader.decode_failed(error)
