"""One request in flight, seen from both sides.

The caller holds an `Exchange` and can only pause or abort it; the pool and the connection carry it. An exchange
ends exactly once: by `on_end`, by `on_error`, or silently by `abort`, after which nothing is called.
"""

from dataclasses import dataclass
from typing import Protocol

from gateway.upstream.errors import UpstreamError
from gateway.upstream.origin import Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one role of worker is given; a limit that is None does not apply."""

    connect_timeout_s: float = 5.0
    """For the wait for a free connection, and again for the connect itself."""
    first_byte_timeout_s: float | None = 600.0
    """From the request's write to the final response head (an unstreamed answer comes whole, after its last token)."""
    idle_timeout_s: float | None = None
    """Between two reads of the body; does not run while the caller has paused reading."""
    max_connections: int = 2048
    """Open connections per origin; further exchanges wait in order of arrival."""
    max_idle: int = 256
    """Idle connections kept per origin."""
    idle_expiry_s: float = 4.0
    """Below the 5 s after which uvicorn, so vLLM, closes an idle connection."""

    def __post_init__(self) -> None:
        if self.max_connections < 1:
            raise ValueError(f"max_connections must be at least 1, not {self.max_connections}")


class ResponseListener(Protocol):
    """Told of a response as it arrives. Calls come from the event loop and must not block."""

    def on_head(self, status: int, headers: list[tuple[bytes, bytes]], /) -> None:
        """The final response head; header names are in lower case, those of one hop are still there."""

    def on_body(self, data: bytes, /) -> None:
        """The body bytes of one read, without their framing; may still come once after `pause_reading`."""

    def on_lull(self) -> None:
        """One read has been delivered and the response is not over: no more will come at once."""

    def on_end(self) -> None:
        """The response is whole."""

    def on_error(self, error: UpstreamError, /) -> None:
        """The exchange failed; whatever was delivered before is all there will be."""


class Carrier(Protocol):
    """Who holds an exchange at the moment: its origin's queue or a connection."""

    def drop(self, exchange: "Exchange", /) -> None:
        """Let go of an aborted exchange, closing whatever it occupies."""

    def reading_changed(self, exchange: "Exchange", /) -> None:
        """Follow `exchange.paused`."""


class Exchange:
    """The caller's handle of a request in flight: `pause_reading`, `resume_reading`, `abort`, `done`.

    The other attributes belong to the pool and its connections.
    """

    __slots__ = ("carrier", "done", "head_only", "limits", "listener", "origin", "paused", "segments")

    def __init__(
        self,
        *,
        origin: Origin,
        segments: tuple[bytes, ...],
        head_only: bool,
        listener: ResponseListener,
        limits: Limits,
        carrier: Carrier,
    ) -> None:
        self.origin = origin
        self.segments = segments
        self.head_only = head_only
        self.listener = listener
        self.limits = limits
        self.carrier = carrier
        self.paused = False
        self.done = False

    def pause_reading(self) -> None:
        """Stop reading from the worker; its kernel, then the worker, will notice."""
        if not self.done and not self.paused:
            self.paused = True
            self.carrier.reading_changed(self)

    def resume_reading(self) -> None:
        """Read on."""
        if not self.done and self.paused:
            self.paused = False
            self.carrier.reading_changed(self)

    def abort(self) -> None:
        """Give the request up: close its connection at once and call nothing back. Harmless when already over."""
        if not self.done:
            self.done = True
            self.segments = ()
            self.carrier.drop(self)

    def end(self) -> None:
        """Report a whole response."""
        self.done = True
        self.listener.on_end()

    def fail(self, error: UpstreamError) -> None:
        """Report a failure."""
        self.done = True
        self.segments = ()
        self.listener.on_error(error)
