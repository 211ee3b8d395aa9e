"""Clairvoyant's 19 features of a prompt (arXiv 2606.07248) [F], in the paper's order.

Where the released code differs between training and serving, one choice stands here for both: the prompt's length is
the caller's estimate, the keywords are those of the runtime (the larger set), case never matters, and lengths are never
a mixture of bytes and characters. As in the paper translate, debug and refactor count as "other".

The rule of this module: the paper's features and no others; ours are in `shape` and `history`.
"""

import re
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from gateway.core.output_length.text import Reading, word_numbers

VERBS = (
    "what", "write", "explain", "summarize", "how", "list", "implement", "compare", "describe", "generate", "why",
    "define", "other",
)  # fmt: skip
PROMPT_FEATURES = (
    "prompt_token_len",
    "has_code_keyword",
    "has_length_constraint",
    "ends_with_question",
    "has_format_keyword",
    "clause_count",
    *(f"verb_{verb}" for verb in VERBS),
)

_CODE_WORDS = frozenset(
    b"code function def class script program implement algorithm debug refactor import variable loop recursion api sql "
    b"regex react angular vue nextjs typescript javascript html css node express django flask component endpoint "
    b"middleware query".split()
)
_FORMAT_WORDS = (
    b"list", b"table", b"bullet", b"step by step", b"enumerate", b"outline", b"numbered", b"format", b"structure",
)  # fmt: skip
_CLAUSE_MARKS = b",;"
_CLAUSE_WORDS = (b"and", b"but", b"because")
"""Between spaces."""

_SHORT_WORDS = frozenset((b"briefly", b"concisely", b"shortly", b"tldr"))
_LIMIT_WORDS = frozenset((b"word", b"words", b"sentence", b"sentences", b"more", b"liner", b"tl"))
"""One of these must be a whole word for the pattern below to count; a letter outside ASCII beside it makes another."""
_LIMIT = re.compile(
    rb"\b(?:in\s+\d+\s+(?:words?|sentences?)\b|no\s+more\s+than\s+\d|under\s+\d+\s+words?\b|one[\s-]liner\b|tl;dr\b)"
)

_PRIORITY = (
    ((b"summarize", b"summarizing"), "summarize"),
    ((b"explain",), "explain"),
    ((b"compare", b"comparing"), "compare"),
    ((b"translate", b"translating"), "other"),
    ((b"generate", b"generating"), "generate"),
    ((b"implement",), "implement"),
    ((b"debug",), "other"),
    ((b"refactor",), "other"),
    ((b"list",), "list"),
    ((b"write",), "write"),
    ((b"describe", b"describing"), "describe"),
    ((b"define", b"defining"), "define"),
    ((b"what",), "what"),
    ((b"how",), "how"),
    ((b"why",), "why"),
)
_ONE_HOT = {verb: tuple(float(verb == other) for other in VERBS) for verb in VERBS}
_VERB_OF = tuple((word, _ONE_HOT[verb]) for words, verb in _PRIORITY for word in words)

_KEYWORDS = tuple(
    dict.fromkeys((*(word for word, _ in _VERB_OF), *sorted(_CODE_WORDS | _SHORT_WORDS | _LIMIT_WORDS), *_CLAUSE_WORDS))
)
"""Verbs first, by priority; a keyword's number is its place from 1."""
_, _NUMBERS = word_numbers(b" ".join(_KEYWORDS))
_NUMBER_BITS = 64


def _slots(numbers: npt.NDArray[np.uint64]) -> tuple[np.uint64, npt.NDArray[np.intp]]:
    """The smallest table in which every keyword has a slot of its own: how far to shift a number, and the table."""
    bits = len(numbers).bit_length()
    while len(np.unique(numbers >> np.uint64(_NUMBER_BITS - bits))) < len(numbers):
        bits += 1
    shift = np.uint64(_NUMBER_BITS - bits)
    table = np.zeros(2**bits, dtype=np.intp)
    table[numbers >> shift] = np.arange(1, len(numbers) + 1)
    return shift, table


def _mask(words: Iterable[bytes]) -> int:
    return sum(1 << 8 * (_KEYWORDS.index(word) + 1) for word in words)


_SHIFT, _SLOTS = _slots(_NUMBERS)
_NUMBER_AT = np.concatenate((np.zeros(1, dtype=np.uint64), _NUMBERS))
_CODE, _SHORT, _LIMIT_WORD = _mask(_CODE_WORDS), _mask(_SHORT_WORDS), _mask(_LIMIT_WORDS)
_CLAUSES = tuple((_mask((word,)), b" %b " % word) for word in _CLAUSE_WORDS)


def prompt_features(read: Reading, prompt_tokens: float) -> tuple[float, ...]:
    """The 19 features of `PROMPT_FEATURES`, each finite and not negative.

    `prompt_tokens` is the gateway's estimate of the prompt's length, in tokens.
    """
    lower = read.lower
    keywords = _keywords(read.words)
    found = int.from_bytes(keywords, "little")
    clauses = len(lower) - len(lower.translate(None, _CLAUSE_MARKS))
    for word, between_spaces in _CLAUSES:
        if found & word:
            clauses += lower.count(between_spaces)
    verb = keywords.find(1, 1, len(_VERB_OF) + 1)
    return (
        prompt_tokens,
        float(found & _CODE > 0),
        float(found & _SHORT > 0 or (found & _LIMIT_WORD > 0 and _LIMIT.search(lower) is not None)),
        float(lower.rstrip().endswith(b"?")),
        float(_has_format_word(lower)),
        float(clauses),
        *(_ONE_HOT["other"] if verb < 0 else _VERB_OF[verb - 1][1]),
    )


def _keywords(words: npt.NDArray[np.uint64]) -> bytearray:
    """1 at the number of each keyword that occurs; what is at 0 says nothing."""
    at = _SLOTS.take((words >> _SHIFT).view(np.int64))
    at *= _NUMBER_AT.take(at) == words
    found = bytearray(len(_NUMBER_AT))
    np.frombuffer(found, dtype=np.uint8)[at] = 1
    return found


def _has_format_word(lower: bytes) -> bool:
    for word in _FORMAT_WORDS:  # noqa: SIM110 (a generator costs twice as much)
        if word in lower:
            return True
    return False
