"""One reading of a prompt's text, shared by everything that looks at it.

The rule of this module: text is read once, as lower-case UTF-8 bytes of bounded length; training and serving read it
alike.
"""

from dataclasses import dataclass

HEAD_BYTES = 2048
TAIL_BYTES = 2048
"""Of a longer text only its beginning and its end are read: what is asked for stands there."""

_LETTERS = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789_")
_WORDS = bytes(byte if byte in _LETTERS or byte >= 128 else 32 for byte in bytes(range(256)).lower())
"""Letters, digits, `_` and everything outside ASCII make words; the rest breaks them."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read of one text."""

    text_bytes: int
    """Length of the whole text in UTF-8."""
    text: bytes
    """The beginning and the end as they were written."""
    lower: bytes
    words: list[bytes]
    """In order, lower case."""
    distinct: frozenset[bytes]


def read_text(text: str) -> Reading:
    """Read the last user message; lone surrogates are kept as bytes and never raise."""
    whole = text.encode("utf-8", "surrogatepass")
    read = whole
    if len(whole) > HEAD_BYTES + TAIL_BYTES:
        read = whole[:HEAD_BYTES] + b"\n" + whole[-TAIL_BYTES:]
    lower = read.lower()
    words = lower.translate(_WORDS).split()
    return Reading(len(whole), read, lower, words, frozenset(words))
