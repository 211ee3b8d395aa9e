"""The emulated tokenizer: one token is four bytes of UTF-8.

A prompt is bytes, whichever way it came: text is its UTF-8, a list of token ids is four little-endian bytes per
id. So a text and its own ids have the same blocks and the same hashes.
"""

import struct
from collections.abc import Iterable

import xxhash

TOKEN_BYTES = 4
EOS_ID = 0
"""Ends a natural answer; it has no text."""
ONE_USER_MESSAGE_TOKENS = 6
"""What the chat template adds to a single user message, exactly: 24 bytes."""


def count_tokens(data: bytes) -> int:
    """Tokens of a prompt; the last one may stand for fewer than four bytes."""
    return -(-len(data) // TOKEN_BYTES)


def cache_seed(model: str, cache_salt: str | None) -> int:
    """The hash that a prompt's first block is chained to: KV is shared only under one model and one salt."""
    return xxhash.xxh3_64_intdigest(f"{model}\0{cache_salt or ''}".encode())


def block_hashes(data: bytes, *, block_tokens: int, seed: int) -> tuple[int, ...]:
    """Chained 64-bit hashes of the prompt's full blocks: equal leading hashes are equal leading bytes."""
    size = block_tokens * TOKEN_BYTES
    view = memoryview(data)
    hashes = []
    for start in range(0, len(data) - size + 1, size):
        seed = xxhash.xxh3_64_intdigest(view[start : start + size], seed=seed)
        hashes.append(seed)
    return tuple(hashes)


def encode(data: bytes) -> list[int]:
    """Token ids of a prompt; the last token is padded with NUL bytes."""
    count = count_tokens(data)
    return list(struct.unpack(f"<{count}I", data.ljust(count * TOKEN_BYTES, b"\0")))


def decode(token_ids: Iterable[int]) -> bytes:
    """The prompt that a list of token ids stands for.

    Raises struct.error for an id outside the vocabulary, which is every unsigned 32-bit number.
    """
    ids = list(token_ids)
    return struct.pack(f"<{len(ids)}I", *ids)


def text_of(data: bytes) -> str:
    """A prompt as readable text: padding is dropped, what is not UTF-8 is replaced."""
    return data.replace(b"\0", b"").decode(errors="replace")


def render_chat(
    messages: Iterable[tuple[str, str]], *, tools: bytes | None = None, generation_prompt: bool = True
) -> bytes:
    r"""The chat template: the tools' JSON, then per message `<|role|>\ntext\n`, then `<|assistant|>\n`.

    The next turn of a conversation therefore starts with the bytes of this one and its answer.
    """
    parts = [] if tools is None else [b"<|tools|>\n", tools, b"\n"]
    parts += [f"<|{role}|>\n{text}\n".encode() for role, text in messages]
    if generation_prompt:
        parts.append(b"<|assistant|>\n")
    return b"".join(parts)
