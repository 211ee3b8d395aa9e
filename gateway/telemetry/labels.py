"""The values that labels may take.

The rule of this module: every label is a closed list or has a cap, so that no client can grow the number of
series.
"""

from enum import StrEnum
from typing import Final

NO_PATH: Final = "none"
"""The `path` of a request that was never routed."""

NO_MODEL: Final = "none"
"""The `served_model` of a request that was never routed."""

OTHER: Final = "other"
"""The `model` past the cap, and of a request that was not routed and names a model never served before."""

MODEL_CAP: Final = 1000
"""Distinct values of `model` before `other` (llm-d's cap)."""


class TokenType(StrEnum):
    """The `type` of `tokens_total`; cached tokens are a part of the input tokens."""

    INPUT = "input"
    CACHED = "cached"
    OUTPUT = "output"


class Leg(StrEnum):
    """The `role` of `worker_selected_total`: what the worker was chosen for."""

    PREFILL = "prefill"
    DECODE = "decode"


class UpstreamErrorKind(StrEnum):
    """What went wrong with a worker: `kind` of `upstream_errors_total`, `cause` of `retries_total`."""

    CONNECT = "connect"
    """No connection could be made."""
    STALE_CONNECTION = "stale_connection"
    """A kept connection turned out to be closed before any byte of the answer."""
    BROKEN = "broken"
    """The connection broke off before the answer was complete."""
    TIMEOUT = "timeout"
    """No byte in the time allowed."""
    OVERLOADED = "overloaded"
    """The worker answered 429 or 503."""
    SERVER_ERROR = "server_error"
    """The worker answered another 5xx."""
    PROTOCOL = "protocol"
    """The answer was not valid HTTP, or a prefill leg's answer held no usable hand-off."""


class MissedBound(StrEnum):
    """The `bound` of `slo_missed_total`."""

    TTFT = "ttft"
    TPOT = "tpot"
    BOTH = "both"
    """Both bounds, or the sum of both budgets where the answer came whole."""
    FAILED = "failed"
    """The request failed or timed out."""


class SharedOutcome(StrEnum):
    """The `outcome` of `shared_calls_total`."""

    ANSWERED = "answered"
    TIMED_OUT = "timed_out"
    """Given up at the deadline."""
    REFUSED = "refused"
    """Not asked, because the server was down, or lost with it."""


class LagStat(StrEnum):
    """The `stat` of `event_loop_lag_seconds`."""

    EWMA = "ewma"
    MAX = "max"
    """The largest since the last scrape."""


class LabelCap:
    """Lets the first `cap` distinct values through and turns all later ones into `other`."""

    __slots__ = ("_admitted", "_cap")

    def __init__(self, cap: int) -> None:
        self._cap: Final = cap
        self._admitted: Final[set[str]] = set()

    def admit(self, value: str) -> str:
        """`value` where it is known or there is room for it, else `other`."""
        if value in self._admitted:
            return value
        if len(self._admitted) >= self._cap:
            return OTHER
        self._admitted.add(value)
        return value

    def known(self, value: str) -> str:
        """`value` where it was admitted before, else `other`: for values that only a client vouches for."""
        return value if value in self._admitted else OTHER
