"""Token counts as the worker reports them.

The rule of this module: a count that is absent, null or no natural number is None, and a broken answer has no
usage; nothing here raises.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import msgspec

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one answer, in all its choices."""

    input_tokens: int | None = None
    cached_tokens: int | None = None
    """Prompt tokens found in the worker's prefix cache; vLLM leaves them out, or null, without
    --enable-prompt-tokens-details."""
    output_tokens: int | None = None


class _Details(msgspec.Struct):
    cached_tokens: _Count | None = None


class _WireUsage(msgspec.Struct):
    prompt_tokens: _Count | None = None
    completion_tokens: _Count | None = None
    prompt_tokens_details: _Details | None = None


class _ResponsesUsage(msgspec.Struct):
    input_tokens: _Count | None = None
    output_tokens: _Count | None = None
    input_tokens_details: _Details | None = None


class _MessagesUsage(msgspec.Struct):
    input_tokens: _Count | None = None
    cache_read_input_tokens: _Count | None = None
    cache_creation_input_tokens: _Count | None = None
    output_tokens: _Count | None = None


class _Answer(msgspec.Struct):
    usage: msgspec.Raw = msgspec.Raw()


_decode_usage = msgspec.json.Decoder(_WireUsage | None).decode
_decode_responses_usage = msgspec.json.Decoder(_ResponsesUsage | None).decode
_decode_messages_usage = msgspec.json.Decoder(_MessagesUsage | None).decode
_decode_answer = msgspec.json.Decoder(_Answer).decode


def usage_from_raw(usage: bytes | msgspec.Raw) -> Usage | None:
    """Read the JSON value of a `usage` field; None where it is empty, null or malformed."""
    try:
        wire = _decode_usage(usage)
    except (msgspec.DecodeError, RecursionError):
        return None
    if wire is None or (wire.prompt_tokens is None and wire.completion_tokens is None):
        return None
    details = wire.prompt_tokens_details
    return Usage(
        input_tokens=wire.prompt_tokens,
        cached_tokens=details.cached_tokens if details else None,
        output_tokens=wire.completion_tokens,
    )


def responses_usage(usage: bytes | msgspec.Raw) -> Usage | None:
    """Read the `usage` of a /v1/responses answer; None where it is empty, null or malformed."""
    try:
        wire = _decode_responses_usage(usage)
    except (msgspec.DecodeError, RecursionError):
        return None
    if wire is None or (wire.input_tokens is None and wire.output_tokens is None):
        return None
    details = wire.input_tokens_details
    return Usage(
        input_tokens=wire.input_tokens,
        cached_tokens=details.cached_tokens if details else None,
        output_tokens=wire.output_tokens,
    )


def messages_usage(*usages: bytes | msgspec.Raw) -> Usage | None:
    """Read Anthropic's `usage`, which a stream gives in several pieces: of each count the last one stands.

    Anthropic's `input_tokens` are those neither read from a cache nor written to one, so the prompt is the sum of
    all three, and the cached tokens are `cache_read_input_tokens`. An engine that sends only `input_tokens`, as
    older vLLM does, means the whole prompt by it, and the sum is right for it too.
    """
    whole = _MessagesUsage()
    for usage in usages:
        _overlay(whole, usage)
    if whole.input_tokens is None and whole.output_tokens is None:
        return None
    cached = (whole.cache_read_input_tokens or 0) + (whole.cache_creation_input_tokens or 0)
    return Usage(
        input_tokens=None if whole.input_tokens is None else whole.input_tokens + cached,
        cached_tokens=whole.cache_read_input_tokens,
        output_tokens=whole.output_tokens,
    )


def _overlay(whole: _MessagesUsage, usage: bytes | msgspec.Raw) -> None:
    try:
        piece = _decode_messages_usage(usage)
    except (msgspec.DecodeError, RecursionError):
        return
    for name in _MessagesUsage.__struct_fields__ if piece else ():
        value = getattr(piece, name)
        if value is not None:
            setattr(whole, name, value)


def usage_from_json(body: bytes, read: Callable[[msgspec.Raw], Usage | None] = usage_from_raw) -> Usage | None:
    """The usage of a whole (not streamed) answer, as its dialect reads it; None where it has none or is not JSON."""
    try:
        return read(_decode_answer(body).usage)
    except (msgspec.DecodeError, RecursionError):
        return None
