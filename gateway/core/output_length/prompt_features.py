"""Clairvoyant's 19 features of a prompt (arXiv 2606.07248) [F], in the paper's order.

Where the released code differs between training and serving, one choice stands here for both: the prompt's length is
the caller's estimate, the keywords are those of the runtime (the larger set), case never matters, and lengths are never
a mixture of bytes and characters. As in the paper translate, debug and refactor count as "other".

The rule of this module: the paper's features and no others; ours are in `shape` and `history`.
"""

import re

from gateway.core.output_length.text import Reading

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
_CLAUSES = (b",", b";", b" and ", b" but ", b" because ")

_SHORT_WORDS = frozenset((b"briefly", b"concisely", b"shortly", b"tldr"))
_LIMIT_WORDS = frozenset((b"word", b"words", b"sentence", b"sentences", b"more", b"liner", b"tl"))
"""Without one of these the pattern below cannot match."""
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


def prompt_features(read: Reading, prompt_tokens: float) -> tuple[float, ...]:
    """The 19 features of `PROMPT_FEATURES`, each finite and not negative.

    `prompt_tokens` is the gateway's estimate of the prompt's length, in tokens.
    """
    lower, distinct = read.lower, read.distinct
    clauses = 0
    for clause in _CLAUSES:
        clauses += lower.count(clause)
    verb = _ONE_HOT["other"]
    for word, one_hot in _VERB_OF:
        if word in distinct:
            verb = one_hot
            break
    return (
        prompt_tokens,
        float(not _CODE_WORDS.isdisjoint(distinct)),
        float(_is_limited(lower, distinct)),
        float(lower.rstrip().endswith(b"?")),
        float(_has_format_word(lower)),
        float(clauses),
        *verb,
    )


def _is_limited(lower: bytes, distinct: frozenset[bytes]) -> bool:
    if not _SHORT_WORDS.isdisjoint(distinct):
        return True
    return not _LIMIT_WORDS.isdisjoint(distinct) and _LIMIT.search(lower) is not None


def _has_format_word(lower: bytes) -> bool:
    for word in _FORMAT_WORDS:  # noqa: SIM110 (a generator costs twice as much)
        if word in lower:
            return True
    return False
