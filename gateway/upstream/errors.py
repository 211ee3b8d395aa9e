"""How an exchange with a worker fails.

Every failure of the upstream client is one leaf of this tree. An error may be retried on another worker exactly
when nothing of the response had been handed to the listener.
"""

import socket
from enum import StrEnum

from gateway.upstream.origin import Origin


class ErrorKind(StrEnum):
    """Why an exchange failed: a closed list, used as a metric label."""

    CONNECT_REFUSED = "connect_refused"
    CONNECT_DNS = "connect_dns"
    CONNECT_TIMEOUT = "connect_timeout"
    CONNECT_FAILED = "connect_failed"
    """Any other failure to connect: no route, no free descriptor."""
    POOL_TIMEOUT = "pool_timeout"
    """The origin's connections were all busy for the whole connect timeout: load, not a fault of the worker."""
    FIRST_BYTE_TIMEOUT = "first_byte_timeout"
    IDLE_TIMEOUT = "idle_timeout"
    CLOSED_BEFORE_HEAD = "closed_before_head"
    TRUNCATED = "truncated"
    """The connection closed inside the body."""
    MALFORMED = "malformed"
    """The bytes are not HTTP/1.1, or are framed in two ways at once."""
    POOL_CLOSED = "pool_closed"
    """The gateway is stopping."""


class UpstreamError(Exception):
    """An exchange failed; the message names the origin."""

    def __init__(self, origin: Origin, kind: ErrorKind, words: str, *, retryable_elsewhere: bool) -> None:
        super().__init__(f"{origin}: {words}")
        self.origin = origin
        self.kind = kind
        self.retryable_elsewhere = retryable_elsewhere


# The leaves say what happened, as httpcore's do; only the root is named an error.
class ConnectFailed(UpstreamError):  # noqa: N818
    """No connection was had, so the worker never saw the request."""

    def __init__(self, origin: Origin, kind: ErrorKind, words: str) -> None:
        super().__init__(origin, kind, words, retryable_elsewhere=True)


class FirstByteTimeout(UpstreamError):  # noqa: N818
    """The request was sent and no final response head came in time."""

    def __init__(self, origin: Origin, timeout_s: float) -> None:
        words = f"no response head within {timeout_s:g} s"
        super().__init__(origin, ErrorKind.FIRST_BYTE_TIMEOUT, words, retryable_elsewhere=True)


class IdleTimeout(UpstreamError):  # noqa: N818
    """The body stopped coming."""

    def __init__(self, origin: Origin, timeout_s: float) -> None:
        words = f"no body bytes for {timeout_s:g} s"
        super().__init__(origin, ErrorKind.IDLE_TIMEOUT, words, retryable_elsewhere=False)


class BrokenResponse(UpstreamError):  # noqa: N818
    """The worker closed before its response ended, or sent what cannot be parsed safely."""


class PoolClosed(UpstreamError):  # noqa: N818
    """The pool was closed under the exchange, or before it was started."""

    def __init__(self, origin: Origin) -> None:
        super().__init__(origin, ErrorKind.POOL_CLOSED, "the pool is closed", retryable_elsewhere=False)


def connect_failed(origin: Origin, cause: BaseException) -> ConnectFailed:
    """Classify what a connector raised."""
    match cause:
        case socket.gaierror() | UnicodeError():
            kind = ErrorKind.CONNECT_DNS
        case ConnectionRefusedError():
            kind = ErrorKind.CONNECT_REFUSED
        case TimeoutError():
            kind = ErrorKind.CONNECT_TIMEOUT
        case _:
            kind = ErrorKind.CONNECT_FAILED
    error = ConnectFailed(origin, kind, f"cannot connect: {cause!r}")
    error.__cause__ = cause
    return error
