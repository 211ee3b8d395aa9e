"""Speech to text: POST /v1/audio/transcriptions and /v1/audio/translations.

The rule of this module: the upload is multipart/form-data, of which only the small fields are read and only the
model's bytes are ever replaced.
"""

import re
from collections.abc import Mapping, Sequence

from gateway.core.output_length.carried import PromptReader
from gateway.core.types import Endpoint, RequestId
from gateway.wire.conversation_names import ConversationReader
from gateway.wire.dialects.base import Dialect
from gateway.wire.errors import ApiError, bad_request
from gateway.wire.multipart import Part, boundary_of, parts_of
from gateway.wire.peeked import (
    DEFAULT_BLOCK_BYTES,
    MAX_COUNT,
    Arrival,
    Headers,
    Peeked,
    Prompt,
    peeked,
)
from gateway.wire.slo_headers import read_hints

_ON = frozenset({"true", "1", "on", "yes", "t", "y"})
_COUNT = re.compile(r"[1-9][0-9]{0,18}")
_MAX_VALUE_BYTES = 4096
"""A longer field is none of those read here."""


def _peek(
    body: bytes,
    *,
    request_id: RequestId,
    headers: Headers = (),
    block_bytes: int = DEFAULT_BLOCK_BYTES,
    reader: PromptReader | None = None,  # noqa: ARG001 - how long speech is does not show in its fields
    conversation: ConversationReader | None = None,
) -> Peeked | ApiError:
    hints = read_hints(headers)
    if isinstance(hints, ApiError):
        return hints
    try:
        parts = _parts(body, headers)
    except ValueError as error:
        return bad_request(f"The request body is not valid multipart/form-data: {error}.")
    values = _values(body, parts)
    model = values.get("model")
    if not model:
        return bad_request("Missing required parameter: 'model'.", param="model")
    arrival = Arrival(
        request_id=request_id, hints=hints, headers=headers, block_bytes=block_bytes, conversation=conversation
    )
    return peeked(
        arrival,
        Endpoint.AUDIO,
        model=model,
        prompt=Prompt(
            text_bytes=sum(part.end - part.start for part in parts if part.name == "prompt" and not part.is_file),
            media_parts=sum(part.is_file for part in parts),
        ),
        stream=_is_on(values, "stream"),
        include_usage=_is_on(values, "stream_include_usage"),
        max_output_tokens=_positive(values, "max_completion_tokens"),
    )


def _retarget(body: bytes, headers: Headers, model: str) -> bytes:
    """Put another model into every part that names one.

    Raises:
        ValueError: the body is not valid multipart/form-data; one that was peeked at is.
    """
    pieces: list[bytes | memoryview] = []
    at = 0
    for part in _parts(body, headers):
        if part.name == "model" and not part.is_file:
            pieces += (memoryview(body)[at : part.start], model.encode())
            at = part.end
    return b"".join((*pieces, memoryview(body)[at:]))


def _parts(body: bytes, headers: Headers) -> Sequence[Part]:
    content_type = next((value for name, value in headers if name == b"content-type"), b"")
    boundary = boundary_of(content_type)
    if boundary is None:
        raise ValueError("the content type names no boundary")
    return parts_of(body, boundary)


def _values(body: bytes, parts: Sequence[Part]) -> Mapping[str, str]:
    """The short fields; of a repeated one the last counts, as it does for the worker."""
    return {
        part.name: body[part.start : part.end].decode("utf-8", "replace")
        for part in parts
        if not part.is_file and part.end - part.start <= _MAX_VALUE_BYTES
    }


def _is_on(values: Mapping[str, str], name: str) -> bool:
    return values.get(name, "").lower() in _ON


def _positive(values: Mapping[str, str], name: str) -> int | None:
    text = values.get(name, "")
    return min(int(text), MAX_COUNT) if _COUNT.fullmatch(text) else None


AUDIO = Dialect(endpoint=Endpoint.AUDIO, peek=_peek, retarget=_retarget)
