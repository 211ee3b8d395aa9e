"""An error as a whole answer.

The rule of this module: whoever refuses a request, and however its answer is written, the client gets the same one.
"""

from gateway.api.asgi import Headers
from gateway.core.record import record
from gateway.core.types import RequestId
from gateway.wire import errors as api_errors
from gateway.wire.dialects import ROUTES, Dialect
from gateway.wire.errors import ApiError


@record
class WholeAnswer:
    """An answer of the gateway's own, ready to be written."""

    status: int
    headers: Headers
    """Names in lower case; the content-length is not among them."""
    body: bytes


def refusal(error: ApiError, path: str, request_id: RequestId) -> WholeAnswer:
    """The error in the dialect of its route; in OpenAI's on a path that is no engine's."""
    return refusal_in(ROUTES.get(path), error, request_id)


def refusal_in(dialect: Dialect | None, error: ApiError, request_id: RequestId) -> WholeAnswer:
    """The same, of a dialect that is known."""
    return WholeAnswer(
        status=error.status,
        headers=[*api_errors.response_headers(error), (b"x-request-id", request_id.encode())],
        body=api_errors.body(error) if dialect is None else dialect.error_body(error),
    )
