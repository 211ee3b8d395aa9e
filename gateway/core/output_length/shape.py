"""How a prompt is laid out and how much it asks for: our own features beside the paper's [D].

The rule of this module: counts and ratios of one reading of the text; no word decides anything here except a unit that
follows a number.
"""

import math

import numpy as np

from gateway.core.output_length.text import Reading

SHAPE_FEATURES = (
    "log_text_bytes",
    "lines",
    "words",
    "distinct_ratio",
    "mean_word_bytes",
    "code_blocks",
    "digits",
    "questions",
    "colons",
    "equals",
    "braces",
    "dollars",
    "upper_ratio",
    "non_ascii_ratio",
    "asked_tokens",
    "largest_count",
)

_UNIT_TOKENS = {
    b"word": 1.4, b"sentence": 25.0, b"line": 14.0, b"bullet": 25.0, b"paragraph": 110.0, b"page": 650.0,
    b"example": 60.0, b"step": 40.0, b"question": 30.0, b"idea": 40.0, b"way": 50.0, b"item": 25.0, b"minute": 180.0,
}  # fmt: skip
"""Tokens that one of them takes, roughly: only their order matters to a tree."""
_TOKENS_OF = _UNIT_TOKENS | {unit + b"s": tokens for unit, tokens in _UNIT_TOKENS.items()}
_AFTER = 2
"""A unit stands at most so many words after its number ("3 short paragraphs")."""
_NUMBER_BYTES = 5
_LARGEST_COUNT = 50
"""Above this a number is rarely how many of something are asked for."""
_DIGITS = b"0123456789"
_ZERO = np.uint8(ord("0"))
_UPPER = bytes(range(ord("A"), ord("Z") + 1))
_NON_ASCII = bytes(range(128, 256))


def shape_features(read: Reading) -> tuple[float, ...]:
    """The features of `SHAPE_FEATURES`, each finite and not negative."""
    text, words = read.text, read.words
    size, count = max(1, len(text)), max(1, len(words))
    ordered = np.sort(words)
    distinct = min(1, len(words)) + int(np.count_nonzero(ordered[1:] != ordered[:-1]))
    digits = len(text) - len(text.translate(None, _DIGITS))
    return (
        math.log1p(read.text_bytes),
        float(text.count(b"\n")),
        float(len(words)),
        distinct / count,
        len(text) / count,
        float(text.count(b"```")),
        float(digits),
        float(text.count(b"?")),
        float(text.count(b":")),
        float(text.count(b"=")),
        float(text.count(b"{")),
        float(text.count(b"$")),
        (len(text) - len(text.translate(None, _UPPER))) / size,
        (len(text) - len(text.translate(None, _NON_ASCII))) / size,
        *(_asked(read) if digits else (0.0, 0.0)),
    )


def _asked(read: Reading) -> tuple[float, float]:
    """Tokens that the units asked for would take, and the largest small number among the words."""
    beginnings = np.frombuffer(read.lower, dtype=np.uint8)[read.edges[::2]]
    # A letter's byte less that of "0" is 10 or more, and one below it wraps round.
    numbers: dict[bytes, int] = {}
    for at in (beginnings - _ZERO < len(_DIGITS)).nonzero()[0].tolist():
        word = read.word(at)
        if len(word) <= _NUMBER_BYTES and word.isdigit():
            numbers.setdefault(word, at)
    tokens, largest = 0.0, 0
    for word, at in numbers.items():
        number = int(word)
        if number <= _LARGEST_COUNT:
            largest = max(largest, number)
        for after in range(at + 1, min(at + 1 + _AFTER, len(read.words))):
            tokens = max(tokens, number * _TOKENS_OF.get(read.word(after), 0.0))
    return tokens, float(largest)
