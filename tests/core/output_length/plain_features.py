"""The features of a text in plain Python, word by word: what the quick way must agree with."""

import math
import re

from gateway.core.output_length.text import HEAD_BYTES, TAIL_BYTES

_WORD = re.compile(rb"[a-z0-9_\x80-\xff]+")
_CODE = set(
    b"code function def class script program implement algorithm debug refactor import variable loop recursion api sql "
    b"regex react angular vue nextjs typescript javascript html css node express django flask component endpoint "
    b"middleware query".split()
)
_FORMAT = (
    b"list",
    b"table",
    b"bullet",
    b"step by step",
    b"enumerate",
    b"outline",
    b"numbered",
    b"format",
    b"structure",
)
_LIMIT = re.compile(
    rb"\b(?:in\s+\d+\s+(?:words?|sentences?)\b|no\s+more\s+than\s+\d|under\s+\d+\s+words?\b|one[\s-]liner\b|tl;dr\b)"
)
_LIMIT_WORDS = {b"word", b"words", b"sentence", b"sentences", b"more", b"liner", b"tl"}
_VERBS = {
    "summarize": "summarize", "summarizing": "summarize", "explain": "explain", "compare": "compare",
    "comparing": "compare", "translate": "other", "translating": "other", "generate": "generate",
    "generating": "generate", "implement": "implement", "debug": "other", "refactor": "other", "list": "list",
    "write": "write", "describe": "describe", "describing": "describe", "define": "define", "defining": "define",
    "what": "what", "how": "how", "why": "why",
}  # fmt: skip
_ORDER = (
    "what", "write", "explain", "summarize", "how", "list", "implement", "compare", "describe", "generate", "why",
    "define", "other",
)  # fmt: skip
_UNITS = {
    "word": 1.4, "sentence": 25.0, "line": 14.0, "bullet": 25.0, "paragraph": 110.0, "page": 650.0, "example": 60.0,
    "step": 40.0, "question": 30.0, "idea": 40.0, "way": 50.0, "item": 25.0, "minute": 180.0,
}  # fmt: skip


def plain_read(text: str) -> tuple[int, bytes, list[bytes]]:
    """Bytes of the whole text, what is read of it, and its words in lower case."""
    whole = text.encode("utf-8", "surrogatepass")
    read = whole
    if len(whole) > HEAD_BYTES + TAIL_BYTES:
        read = whole[:HEAD_BYTES] + b"\n" + whole[-TAIL_BYTES:]
    return len(whole), read, _WORD.findall(read.lower())


def plain_prompt(text: str, prompt_tokens: float) -> tuple[float, ...]:
    """The paper's 19 features."""
    _, read, words = plain_read(text)
    lower = read.lower()
    verb = next((verb for word, verb in _VERBS.items() if word.encode() in words), "other")
    limited = bool({b"briefly", b"concisely", b"shortly", b"tldr"}.intersection(words)) or (
        bool(_LIMIT_WORDS.intersection(words)) and _LIMIT.search(lower) is not None
    )
    return (
        prompt_tokens,
        float(any(word in _CODE for word in words)),
        float(limited),
        float(lower.rstrip().endswith(b"?")),
        float(any(word in lower for word in _FORMAT)),
        float(sum(lower.count(clause) for clause in (b",", b";", b" and ", b" but ", b" because "))),
        *(float(verb == other) for other in _ORDER),
    )


def plain_shape(text: str) -> tuple[float, ...]:
    """The layout's features."""
    size, read, words = plain_read(text)
    length, count = max(1, len(read)), max(1, len(words))
    return (
        math.log1p(size),
        float(read.count(b"\n")),
        float(len(words)),
        len(set(words)) / count,
        len(read) / count,
        float(read.count(b"```")),
        float(sum(48 <= byte < 58 for byte in read)),
        *(float(read.count(mark)) for mark in (b"?", b":", b"=", b"{", b"$")),
        sum(65 <= byte < 91 for byte in read) / length,
        sum(byte >= 128 for byte in read) / length,
        *_asked(words),
    )


def _asked(words: list[bytes]) -> tuple[float, float]:
    tokens, largest, seen = 0.0, 0, set()
    for at, word in enumerate(words):
        if not re.fullmatch(rb"[0-9]{1,5}", word) or word in seen:
            continue
        seen.add(word)
        largest = max(largest, int(word) if int(word) <= 50 else 0)
        for unit in words[at + 1 : at + 3]:
            one = unit.decode("latin-1").removesuffix("s")
            tokens = max(tokens, int(word) * _UNITS.get(one, 0.0))
    return tokens, float(largest)
