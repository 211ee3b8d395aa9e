"""Token counts as the worker reports them.

The rule of this module: a count that is absent, null or no natural number is None, and a broken answer has no
usage; nothing here raises.
"""

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


class _Answer(msgspec.Struct):
    usage: msgspec.Raw = msgspec.Raw()


_decode_usage = msgspec.json.Decoder(_WireUsage | None).decode
_decode_answer = msgspec.json.Decoder(_Answer).decode


def usage_from_json(body: bytes) -> Usage | None:
    """The usage of a whole (not streamed) answer; None where it has none or is not JSON."""
    try:
        return usage_from_raw(_decode_answer(body).usage)
    except (msgspec.DecodeError, RecursionError):
        return None


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
