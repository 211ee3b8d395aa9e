"""What a route's dialect is.

The rule of this package: a dialect is one frozen value with everything that the gateway must know of a route's
format; whoever carries a request asks the dialect and never the path.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from gateway.core.output_length.carried import PromptReader
from gateway.core.types import Endpoint, RequestId
from gateway.wire import errors
from gateway.wire.conversation_names import ConversationReader
from gateway.wire.errors import ApiError
from gateway.wire.json_object import replace
from gateway.wire.peeked import DEFAULT_BLOCK_BYTES, Arrival, Headers, Peeked, look
from gateway.wire.scanner import Scanner
from gateway.wire.sse import SseScanner
from gateway.wire.usage import Usage, usage_from_json


class Peek(Protocol):
    """Reads one request; never raises."""

    def __call__(
        self,
        body: bytes,
        *,
        request_id: RequestId,
        headers: Headers = (),
        block_bytes: int = DEFAULT_BLOCK_BYTES,
        reader: PromptReader | None = None,
        conversation: ConversationReader | None = None,
    ) -> Peeked | ApiError:
        """See `gateway.wire.openai.peek` for the arguments."""


def retarget_json(body: bytes, headers: Headers, model: str) -> bytes:  # noqa: ARG001 - multipart needs the headers
    """Name another model; every other value keeps its bytes.

    Raises:
        ValueError: `body` is not a JSON object; one that was peeked at is.
    """
    return replace(body, {"model": msgspec.json.encode(model)})


def chat_scanner() -> Scanner:
    """The scanner of a chat's stream, which transcriptions share; what never streams needs no other."""
    return SseScanner(Endpoint.CHAT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One route's format. The defaults are those of OpenAI's JSON routes."""

    endpoint: Endpoint
    peek: Peek
    scanner: Callable[[], Scanner] = chat_scanner
    """A fresh scanner for one streamed answer."""
    usage_of: Callable[[bytes], Usage | None] = usage_from_json
    """The usage of a whole answer."""
    response_id_of: Callable[[bytes], str | None] | None = None
    """The id of a whole answer that the worker keeps by it; None where a dialect's answers are kept by nobody."""
    error_body: Callable[[ApiError], bytes] = errors.body
    """An error as the answer's body; its headers are `errors.response_headers`."""
    sse_error: Callable[[ApiError], bytes] = errors.sse_error
    """The end of a stream that failed after its first byte."""
    retarget: Callable[[bytes, Headers, str], bytes] = retarget_json
    """(body, headers, model) -> the body with another model in it."""


def json_peek(read: Callable[[bytes, Arrival], Peeked | ApiError]) -> Peek:
    """Make a `Peek` of a reader of JSON bodies."""

    def peek(
        body: bytes,
        *,
        request_id: RequestId,
        headers: Headers = (),
        block_bytes: int = DEFAULT_BLOCK_BYTES,
        reader: PromptReader | None = None,
        conversation: ConversationReader | None = None,
    ) -> Peeked | ApiError:
        return look(
            body,
            read,
            request_id=request_id,
            headers=headers,
            block_bytes=block_bytes,
            reader=reader,
            conversation=conversation,
        )

    return peek
