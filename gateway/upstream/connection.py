"""One TCP connection to a worker. Every change of a connection's state happens in this file.

    dialling -> busy <-> idle -> closed        (busy and dialling may close too)

It carries at most one exchange and never pipelines. Its books, and its owner's, are settled before a listener is
called, so a listener may abort the exchange or start the next one from any callback.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, cast

from gateway.upstream.alarm import Alarm, Scheduler
from gateway.upstream.errors import (
    BrokenResponse,
    ConnectFailed,
    ErrorKind,
    FirstByteTimeout,
    IdleTimeout,
    UpstreamError,
    connect_failed,
)
from gateway.upstream.exchange import Exchange, Limits
from gateway.upstream.origin import Origin
from gateway.upstream.response import ResponseParser

JOINED_BYTES = 32 * 1024
"""A head and a body up to this size are written as one."""

Connector = Callable[[asyncio.Protocol, Origin], Coroutine[Any, Any, None]]
"""Connects a protocol to an origin, or raises OSError."""


async def open_tcp(protocol: asyncio.Protocol, origin: Origin) -> None:
    """Connect over TCP; asyncio and uvloop set TCP_NODELAY themselves."""
    loop = asyncio.get_running_loop()
    await loop.create_connection(lambda: protocol, origin.host, origin.port)


class Owner(Protocol):
    """Told what becomes of a connection."""

    def connection_freed(self, connection: "Connection", /) -> None:
        """It ended an exchange and can carry another."""

    def connection_closed(self, connection: "Connection", /) -> None:
        """It will carry nothing more."""

    def connection_stale(self, connection: "Connection", exchange: Exchange, /) -> None:
        """It closed while idle, as was noticed only after `exchange` had been written to it."""

    def socket_gone(self, connection: "Connection", /) -> None:
        """Its socket is closed, or never came to be."""


class Connection(asyncio.Protocol):
    """A connection and the exchange it carries."""

    __slots__ = (
        "_alarm",
        "_closed",
        "_dialling",
        "_exchange",
        "_owner",
        "_parser",
        "_transport",
        "_untouched",
        "expires_at_s",
        "limits",
        "origin",
        "reused",
    )

    def __init__(self, origin: Origin, limits: Limits, owner: Owner, scheduler: Scheduler) -> None:
        self.origin = origin
        self.limits = limits
        """Of the exchange that it carries or carried last."""
        self.reused = False
        """Whether it carried an exchange before the present one."""
        self.expires_at_s = 0.0
        """When to close it, while it is idle; kept by the owner."""
        self._owner = owner
        self._parser = ResponseParser()
        self._alarm = Alarm(scheduler, self._time_is_up)
        self._transport: asyncio.Transport | None = None
        self._dialling: asyncio.Task[None] | None = None
        self._exchange: Exchange | None = None
        self._untouched = True  # no response byte of the present exchange has come
        self._closed = False

    # what the owner asks

    def dial(self, connector: Connector, exchange: Exchange) -> None:
        """Connect, then send `exchange`."""
        self._exchange = exchange
        exchange.carrier = self
        self._alarm.set(exchange.limits.connect_timeout_s)
        self._dialling = asyncio.get_running_loop().create_task(connector(self, self.origin))
        self._dialling.add_done_callback(self._dialled)

    def usable(self) -> bool:
        """Return False where an idle connection is already known to be closing."""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, exchange: Exchange) -> None:
        """Write `exchange` on an idle connection."""
        self.limits = exchange.limits
        self._exchange = exchange
        exchange.carrier = self
        self._write(exchange)

    def retire(self) -> None:
        """Close; a request on it is forgotten without a word."""
        if not self._closed:
            self._shut()
            self._owner.connection_closed(self)

    def fail(self, error: UpstreamError) -> None:
        """Close, and report `error` to the exchange on it, if any."""
        exchange = self._exchange
        self.retire()
        if exchange is not None:
            exchange.fail(error)

    # what the exchange asks

    def drop(self, exchange: Exchange) -> None:
        """Close under an aborted exchange."""
        assert exchange is self._exchange
        self.retire()

    def reading_changed(self, exchange: Exchange) -> None:
        """Pause or resume the socket; while dialling, the write will look at `paused` itself."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if exchange.paused:
            transport.pause_reading()
        else:
            transport.resume_reading()
        self._watch(exchange)

    # what the event loop tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the exchange that was waiting for this."""
        made = cast("asyncio.Transport", transport)
        if self._exchange is None:
            # The dial was cancelled too late. uvloop reports no loss for this transport, so it is not adopted.
            made.abort()
        else:
            self._transport = made
            self._write(self._exchange)

    def data_received(self, data: bytes) -> None:
        """Parse one read and pass on what it held."""
        exchange = self._exchange
        if exchange is None:
            self.retire()  # nothing was asked: an idle connection that speaks is not to be trusted
            return
        if self._untouched:
            self._untouched = False
            exchange.segments = ()  # no retry from here on, so the body need not be kept
        had_head = self._parser.head_seen
        self._parser.feed(data)
        self._deliver(exchange, had_head=had_head)

    def eof_received(self) -> None:
        """End a body that only the close delimits; otherwise the worker has left us."""
        self._input_ended(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Treat a loss like an end of input, except that a reset never ends a body well."""
        self._owner.socket_gone(self)
        self._input_ended(exc)

    # transitions

    def _dialled(self, task: asyncio.Task[None]) -> None:
        self._dialling = None
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if self._transport is not None:
            return
        self._owner.socket_gone(self)
        if error is not None:
            self.fail(connect_failed(self.origin, error))

    def _write(self, exchange: Exchange) -> None:
        assert self._transport is not None
        self._untouched = True
        self._parser.reset(head_only=exchange.head_only)
        if exchange.paused:
            self._transport.pause_reading()
        self._watch(exchange)
        segments = exchange.segments
        # One short write is cheaper than a vector of two; a long body is not to be copied.
        if len(segments) == 2 and len(segments[1]) <= JOINED_BYTES:
            segments = (segments[0] + segments[1],)
        self._transport.writelines(segments)

    def _deliver(self, exchange: Exchange, *, had_head: bool) -> None:
        parser = self._parser
        if parser.head_seen and not had_head:
            exchange.listener.on_head(parser.status, parser.headers)
            if exchange.done:
                return
        body = parser.take_body()
        if body:
            exchange.listener.on_body(body)
            if exchange.done:
                return
        if parser.ended:
            self._finish(exchange)
        elif parser.fault is not None:
            self.fail(self._broken(ErrorKind.MALFORMED, parser.fault))
        elif parser.head_seen:
            self._watch(exchange)
            exchange.listener.on_lull()

    def _finish(self, exchange: Exchange) -> None:
        transport = self._transport
        assert transport is not None
        # An early answer leaves part of the request unsent: what follows on this connection would be misread.
        if self._parser.reusable and not transport.get_write_buffer_size() and not transport.is_closing():
            self._rest(transport, exchange)
        else:
            self.retire()
        exchange.end()

    def _rest(self, transport: asyncio.Transport, exchange: Exchange) -> None:
        self._exchange = None
        self._alarm.clear()
        self.reused = True
        if exchange.paused:
            transport.resume_reading()  # an idle connection must see the worker close
        self._owner.connection_freed(self)

    def _input_ended(self, cause: Exception | None) -> None:
        exchange = self._exchange
        if exchange is None:
            self.retire()
        elif cause is None and self._parser.may_end_here:
            self.retire()
            exchange.end()
        elif self.reused and self._untouched:
            self._shut()
            self._owner.connection_stale(self, exchange)
        else:
            self.fail(self._lost(cause))

    def _time_is_up(self) -> None:
        assert self._exchange is not None
        limit_s = self._limit_s(self._exchange.limits)
        assert limit_s is not None
        if self._transport is None:
            words = f"no connection within {limit_s:g} s"
            self.fail(ConnectFailed(self.origin, ErrorKind.CONNECT_TIMEOUT, words))
        elif self._parser.head_seen:
            self.fail(IdleTimeout(self.origin, limit_s))
        else:
            self.fail(FirstByteTimeout(self.origin, limit_s))

    def _shut(self) -> None:
        self._closed = True
        self._exchange = None
        self._alarm.close()
        if self._transport is not None:
            self._transport.abort()
        elif self._dialling is not None:
            self._dialling.cancel()

    # details

    def _watch(self, exchange: Exchange) -> None:
        limit_s = self._limit_s(exchange.limits)
        if limit_s is None or exchange.paused:
            self._alarm.clear()
        else:
            self._alarm.set(limit_s)

    def _limit_s(self, limits: Limits) -> float | None:
        if self._transport is None:
            return limits.connect_timeout_s
        return limits.idle_timeout_s if self._parser.head_seen else limits.first_byte_timeout_s

    def _lost(self, cause: Exception | None) -> BrokenResponse:
        reason = "" if cause is None else f": {cause!r}"
        if self._parser.head_seen:
            return self._broken(ErrorKind.TRUNCATED, f"the connection closed inside the body{reason}")
        return self._broken(ErrorKind.CLOSED_BEFORE_HEAD, f"the connection closed before a response{reason}")

    def _broken(self, kind: ErrorKind, words: str) -> BrokenResponse:
        return BrokenResponse(self.origin, kind, words, retryable_elsewhere=not self._parser.head_seen)
