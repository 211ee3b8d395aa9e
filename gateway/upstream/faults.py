"""What a worker's failure means: whose fault it is, what it is called, and whether another worker may be asked.

The rule of this module: overload is no fault of a worker, and a client's mistake is no failure at all.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from gateway.core.types import OutcomeKind
from gateway.telemetry.labels import UpstreamErrorKind
from gateway.upstream.errors import ErrorKind, UpstreamError
from gateway.wire.errors import ApiError, bad_gateway, gateway_timeout, unavailable

RETRYABLE_STATUSES = frozenset({429, 500, 502, 503, 504})
"""Answers after which another worker may be asked, as long as the client has seen nothing."""
OVERLOAD_STATUSES = frozenset({429, 503})

_LABEL: Mapping[ErrorKind, UpstreamErrorKind] = MappingProxyType(
    {
        ErrorKind.CONNECT_REFUSED: UpstreamErrorKind.CONNECT,
        ErrorKind.CONNECT_DNS: UpstreamErrorKind.CONNECT,
        ErrorKind.CONNECT_TIMEOUT: UpstreamErrorKind.CONNECT,
        ErrorKind.CONNECT_FAILED: UpstreamErrorKind.CONNECT,
        ErrorKind.POOL_TIMEOUT: UpstreamErrorKind.OVERLOADED,
        ErrorKind.FIRST_BYTE_TIMEOUT: UpstreamErrorKind.TIMEOUT,
        ErrorKind.IDLE_TIMEOUT: UpstreamErrorKind.TIMEOUT,
        ErrorKind.CLOSED_BEFORE_HEAD: UpstreamErrorKind.BROKEN,
        ErrorKind.TRUNCATED: UpstreamErrorKind.BROKEN,
        ErrorKind.MALFORMED: UpstreamErrorKind.PROTOCOL,
        ErrorKind.POOL_CLOSED: UpstreamErrorKind.BROKEN,
    }
)
_BLAMELESS = frozenset({ErrorKind.POOL_TIMEOUT, ErrorKind.POOL_CLOSED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One failed leg."""

    label: UpstreamErrorKind
    blames_worker: bool
    retryable: bool
    outcome: OutcomeKind
    error: ApiError
    """What the client is told if nothing better comes."""


def fault_of_error(failure: UpstreamError) -> Fault:
    """A leg that got no whole answer."""
    timed_out = failure.kind in (ErrorKind.FIRST_BYTE_TIMEOUT, ErrorKind.IDLE_TIMEOUT, ErrorKind.CONNECT_TIMEOUT)
    if failure.kind in _BLAMELESS:
        error = unavailable("No connection to a worker was free in time.", retry_after_s=1.0)
    elif timed_out:
        error = gateway_timeout("The worker did not answer in time.")
    else:
        error = bad_gateway("The worker could not be reached or broke off its answer.")
    return Fault(
        label=_LABEL[failure.kind],
        blames_worker=failure.kind not in _BLAMELESS,
        retryable=failure.retryable_elsewhere,
        outcome=OutcomeKind.TIMEOUT if timed_out else OutcomeKind.UPSTREAM_ERROR,
        error=error,
    )


def fault_of_status(status: int) -> Fault | None:
    """A leg that was answered with an error of the worker's own; None for an answer that is none."""
    if status < 500 and status not in RETRYABLE_STATUSES:
        return None
    overloaded = status in OVERLOAD_STATUSES
    return Fault(
        label=UpstreamErrorKind.OVERLOADED if overloaded else UpstreamErrorKind.SERVER_ERROR,
        blames_worker=not overloaded,
        retryable=status in RETRYABLE_STATUSES,
        outcome=OutcomeKind.UPSTREAM_ERROR,
        error=bad_gateway(f"The worker answered with status {status}."),
    )
