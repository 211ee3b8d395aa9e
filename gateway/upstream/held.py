"""Answers that are kept until they are whole.

The rule of this module: what is kept is bounded, and beyond the bound it is known that there was more.
"""

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
