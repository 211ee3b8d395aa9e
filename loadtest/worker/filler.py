"""What an emulated model says: words without meaning, fixed by a key.

Every token is one four-byte word, so an answer sent back as history costs one token per token made. How long an
answer would be if nothing cut it is a function of the key alone.
"""

from math import exp, log
from statistics import NormalDist

import xxhash

from loadtest.worker.tokenizer import TOKEN_BYTES

MEAN_LENGTH_TOKENS = 343.0
"""Mean output length of Mooncake's conversation trace."""
LENGTH_SIGMA = 1.0
"""Spread of the length's logarithm: the median is 208 tokens, one answer in a hundred is over 2,100."""

_WORDS = [f" {first}{vowel}{last}".encode() for first in "bdfghjklmnprstvz" for vowel in "aeiu" for last in "lmnr"]
_RING = b"".join(sorted(_WORDS, key=xxhash.xxh3_64_intdigest))
_LENGTH_LOG = NormalDist(mu=log(MEAN_LENGTH_TOKENS) - LENGTH_SIGMA**2 / 2, sigma=LENGTH_SIGMA)


def answer_key(source: str) -> int:
    """The 64-bit key of one answer, from the request's seed or id and the choice's place in it."""
    return xxhash.xxh3_64_intdigest(source.encode())


def words(key: int, *, first: int, count: int) -> bytes:
    """Tokens `first` to `first + count - 1` of an answer, `count * 4` bytes of ASCII that JSON need not escape."""
    start = (key + first) % len(_WORDS) * TOKEN_BYTES
    end = start + count * TOKEN_BYTES
    return (_RING * (end // len(_RING) + 1))[start:end]


def natural_length(key: int) -> int:
    """Tokens until the answer would end by itself, at least 2: a log-normal draw, the last token being the end."""
    uniform = ((key >> 12) + 0.5) / 2**52
    return max(2, round(exp(_LENGTH_LOG.inv_cdf(uniform))))
