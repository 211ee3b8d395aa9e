"""One reading of a prompt's text, shared by everything that looks at it.

A word is told from others by a 64-bit number, the value of a polynomial whose coefficients are its bytes, and all words
of a text get theirs at once from running sums: a list of words and their hashes would take three times as long.

The rule of this module: text is read once, as lower-case UTF-8 bytes of bounded length; training and serving read it
alike, in every process and on every machine.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

HEAD_BYTES = 2048
TAIL_BYTES = 2048
"""Of a longer text only its beginning and its end are read: what is asked for stands there."""

_SPACE = 32
_LETTERS = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789_")
_WORDS = bytes(byte if byte in _LETTERS or byte >= 128 else _SPACE for byte in bytes(range(256)).lower())
"""Letters, digits, `_` and everything outside ASCII make words; the rest breaks them."""

_BASE = 0x9E37_79B9_7F4A_7C15
"""Odd, so that its powers can be divided by in 64 bits."""
_PLACES = HEAD_BYTES + TAIL_BYTES + 3


def _powers(base: int) -> npt.NDArray[np.uint64]:
    powers = [1]
    for _ in range(_PLACES - 1):
        powers.append(powers[-1] * base % 2**64)
    return np.array(powers, dtype=np.uint64)


_POWERS = _powers(_BASE)
_INVERSES = _powers(pow(_BASE, -1, 2**64))


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read of one text."""

    text_bytes: int
    """Length of the whole text in UTF-8."""
    text: bytes
    """The beginning and the end as they were written."""
    lower: bytes
    edges: npt.NDArray[np.intp]
    """Where in `lower` each word begins and ends, in turns."""
    words: npt.NDArray[np.uint64]
    """The number of each word, in order; its upper bits are the better spread."""

    def word(self, at: int) -> bytes:
        """The word at a place, in lower case."""
        return self.lower[self.edges[2 * at] : self.edges[2 * at + 1]]


def read_text(text: str) -> Reading:
    """Read the last user message; lone surrogates are kept as bytes and never raise."""
    whole = text.encode("utf-8", "surrogatepass")
    read = whole
    if len(whole) > HEAD_BYTES + TAIL_BYTES:
        read = whole[:HEAD_BYTES] + b"\n" + whole[-TAIL_BYTES:]
    lower = read.lower()
    edges, words = word_numbers(lower)
    return Reading(len(whole), read, lower, edges, words)


def word_numbers(lower: bytes) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.uint64]]:
    """Where words begin and end, and their numbers; `lower` holds at most one byte more than head and tail."""
    letters = np.frombuffer(b" %b " % lower.translate(_WORDS), dtype=np.uint8)
    inside = letters != _SPACE
    edges = (inside[1:] != inside[:-1]).nonzero()[0]
    sums = (letters * _POWERS[: len(letters)]).cumsum().take(edges)
    words = sums[1::2] - sums[::2]
    # A word counts from its own beginning, wherever it stands.
    words *= _INVERSES.take(edges[::2])
    return edges, words
