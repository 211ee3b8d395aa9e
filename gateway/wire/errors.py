"""The gateway's own errors, in OpenAI's shape.

The rule of this module: an error is a value, made here and nowhere else, and it knows its HTTP status, its headers
and its body. A worker's errors are not made into these: they are relayed untouched.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import msgspec

from gateway.core.refusals import CODE, RETRY_AFTER_S, STATUS
from gateway.core.types import Refusal

HeaderList = list[tuple[bytes, bytes]]

_INVALID = "invalid_request_error"
_SERVER = "server_error"
_RATE = "rate_limit_error"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiError:
    """One refusal or failure, as the client will see it."""

    status: int
    message: str
    type: str
    param: str | None = None
    """The request field or header at fault, where there is one."""
    code: str | None = None
    retry_after_s: float | None = None
    headers: tuple[tuple[bytes, bytes], ...] = ()
    """Headers that this kind of error needs beyond those of `response_headers`, e.g. Allow."""


def bad_request(message: str, *, param: str | None = None, code: str | None = None) -> ApiError:
    """400: the request cannot be read or routed as it stands."""
    return ApiError(status=400, message=message, type=_INVALID, param=param, code=code)


def unauthorized(message: str = "Incorrect or missing API key.") -> ApiError:
    """401: no valid key came with the request."""
    challenge = ((b"www-authenticate", b"Bearer"),)
    return ApiError(status=401, message=message, type=_INVALID, code="invalid_api_key", headers=challenge)


def model_not_found(model: str) -> ApiError:
    """404: no worker serves this model or adapter."""
    message = f"The model `{model}` does not exist."
    return ApiError(status=404, message=message, type=_INVALID, param="model", code="model_not_found")


SHOWN_ID_CHARS = 256
"""A client may ask for any text as an id; an error repeats so much of it."""


def response_not_found(response_id: str) -> ApiError:
    """404: nobody keeps this response for the caller."""
    message = f"Response with id '{response_id[:SHOWN_ID_CHARS]}' not found."
    return ApiError(status=404, message=message, type=_INVALID, param="response_id", code="response_not_found")


def previous_response_not_found(response_id: str) -> ApiError:
    """404: the response that a request goes on from is kept by nobody for the caller."""
    message = f"Previous response with id '{response_id[:SHOWN_ID_CHARS]}' not found."
    return ApiError(
        status=404, message=message, type=_INVALID, param="previous_response_id", code="previous_response_not_found"
    )


def method_not_allowed(method: str, *, allow: Sequence[str]) -> ApiError:
    """405: the route exists, but not with this method."""
    allowed = ", ".join(allow)
    return ApiError(
        status=405,
        message=f"Method {method} is not allowed here; use {allowed}.",
        type=_INVALID,
        code="method_not_allowed",
        headers=((b"allow", allowed.encode("latin-1")),),
    )


def request_timeout(message: str) -> ApiError:
    """408: the client did not finish sending its request in time."""
    return ApiError(status=408, message=message, type=_INVALID, code="request_timeout")


def body_too_large(limit_bytes: int) -> ApiError:
    """413: the body is longer than the configured limit."""
    message = f"The request body is longer than {limit_bytes} bytes."
    return ApiError(status=413, message=message, type=_INVALID, code="request_too_large")


def too_many_requests(message: str, *, retry_after_s: float | None = None) -> ApiError:
    """429: the client is over a limit of its own."""
    return ApiError(status=429, message=message, type=_RATE, code="rate_limit_exceeded", retry_after_s=retry_after_s)


def client_closed_request(message: str = "The client closed the request.") -> ApiError:
    """499: the client left; nobody reads this, but the logs and metrics do."""
    return ApiError(status=499, message=message, type=_INVALID, code="client_closed_request")


def internal_error(message: str = "The gateway failed to handle the request.") -> ApiError:
    """500: a fault of the gateway's own."""
    return ApiError(status=500, message=message, type=_SERVER, code="internal_error")


def bad_gateway(message: str, *, retry_after_s: float | None = None) -> ApiError:
    """502: the worker could not be reached, broke off, or answered with something that is not HTTP."""
    return ApiError(status=502, message=message, type=_SERVER, code="bad_gateway", retry_after_s=retry_after_s)


def unavailable(message: str, *, code: str = "service_unavailable", retry_after_s: float | None = None) -> ApiError:
    """503: no worker can take the request now."""
    return ApiError(status=503, message=message, type=_SERVER, code=code, retry_after_s=retry_after_s)


def gateway_timeout(message: str, *, retry_after_s: float | None = None) -> ApiError:
    """504: the worker did not answer in time."""
    return ApiError(status=504, message=message, type=_SERVER, code="gateway_timeout", retry_after_s=retry_after_s)


def from_refusal(refusal: Refusal) -> ApiError:
    """The answer to a request that the core would not route; status, code and retry hint are the core's."""
    status = STATUS[refusal.kind]
    return ApiError(
        status=status,
        message=refusal.words,
        type=_type_of(status),
        param="model" if status == 404 else None,
        code=CODE[refusal.kind],
        retry_after_s=RETRY_AFTER_S[refusal.kind],
    )


def response_headers(error: ApiError) -> HeaderList:
    """The headers of the HTTP answer, names in lower case: type, Retry-After in whole seconds, its own."""
    headers = [(b"content-type", b"application/json"), *error.headers]
    if error.retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % ceil(error.retry_after_s)))
    return headers


def body(error: ApiError) -> bytes:
    """The JSON body: `{"error": {"message", "type", "param", "code"}}`."""
    return msgspec.json.encode(
        {"error": {"message": error.message, "type": error.type, "param": error.param, "code": error.code}}
    )


def sse_error(error: ApiError) -> bytes:
    """The end of a stream that failed after its first byte: an error event, then `[DONE]` (as vLLM does)."""
    return b"data: " + body(error) + b"\n\ndata: [DONE]\n\n"


def _type_of(status: int) -> str:
    if status == 429:
        return _RATE
    return _SERVER if status >= 500 else _INVALID
