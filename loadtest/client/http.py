"""A small HTTP/1.1 client for one origin: raw asyncio and httptools, keep-alive, streamed bodies.

The rule of this module: bytes reach the sink inside the read that brought them, so the sink's clock is the
socket's. Connections are never queued for: a request that finds none idle opens one, or an open-loop schedule
would wait here.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, cast
from urllib.parse import urlsplit

import httptools


class HttpError(Exception):
    """An exchange that did not come to its end; `kind` is its name in a record."""

    kind = "protocol"


class ConnectError(HttpError):
    """No connection could be made."""

    kind = "connect"


class DisconnectedError(HttpError):
    """The server closed the connection before the answer ended."""

    kind = "disconnected"


class Sink(Protocol):
    """Receives one answer as it comes in."""

    def on_sent(self) -> None:
        """The request was handed to the socket."""

    def on_head(self, status: int, headers: Mapping[str, str]) -> None:
        """Status and headers arrived; header names are in lower case."""

    def on_body(self, data: bytes) -> None:
        """A piece of the body arrived; a ValueError from here ends the exchange."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where the requests go: `https` only changes the transport."""

    host: str
    port: int
    tls: bool = False

    @classmethod
    def of(cls, url: str) -> "Origin":
        """Of an http or https URL; raises ValueError for anything else."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"not an http or https URL: {url!r}")
        tls = parts.scheme == "https"
        return cls(host=parts.hostname, port=parts.port or (443 if tls else 80), tls=tls)

    @property
    def authority(self) -> str:
        """The Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class _Connection(asyncio.Protocol):
    """One connection, with at most one exchange under way."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._sink: Sink | None = None
        self._ended: asyncio.Future[None] | None = None
        self._headers: dict[str, str] = {}
        self.answered = False
        """A byte of the current exchange's answer has come."""
        self.reusable = True

    async def exchange(self, request: bytes, sink: Sink) -> None:
        """Sends one request and returns when its answer has ended."""
        if not self.reusable:
            raise DisconnectedError("the server closed the connection before the request")
        assert self._transport is not None
        self._sink, self._ended = sink, asyncio.get_running_loop().create_future()
        self.answered, self._headers = False, {}
        self._transport.write(request)
        sink.on_sent()
        try:
            await self._ended
        finally:
            self._sink = self._ended = None

    def abort(self) -> None:
        self.reusable = False
        if self._transport is not None:
            self._transport.abort()

    def _end(self, error: HttpError | None) -> None:
        if self._ended is None or self._ended.done():
            return
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)

    # asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.answered = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._end(HttpError(str(error.__context__ or error)))
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.reusable = False
        closed_to_end = exc is None and self._headers and not self._framed
        self._end(None if closed_to_end else DisconnectedError(str(exc or "the server closed the connection")))

    @property
    def _framed(self) -> bool:
        return "content-length" in self._headers or "transfer-encoding" in self._headers

    # httptools' callbacks

    def on_message_begin(self) -> None:
        self._headers = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if self._sink is not None and status >= 200:
            self._sink.on_head(status, self._headers)

    def on_body(self, body: bytes) -> None:
        if self._sink is not None:
            self._sink.on_body(body)

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() < 200:
            return
        self.reusable = self.reusable and self._parser.should_keep_alive()
        self._end(None)


class HttpClient:
    """Exchanges with one origin; idle connections are kept for the next request."""

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self._idle: list[_Connection] = []

    async def send(
        self,
        method: str,
        target: str,
        sink: Sink,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> None:
        """One exchange, to its end.

        A kept connection that the server closed before it answered is replaced once by a fresh one. Raises
        `HttpError`; when cancelled, the connection is cut.
        """
        request = _head(method, target, self._origin, headers or {}, len(body)) + body
        connection = self._take_idle()
        if connection is not None:
            try:
                return await self._exchange(connection, request, sink)
            except DisconnectedError:
                if connection.answered:
                    raise
        return await self._exchange(await self._connect(), request, sink)

    async def get(self, target: str, *, headers: Mapping[str, str] | None = None) -> tuple[int, bytes]:
        """Status and whole body of a GET."""
        sink = Collected()
        await self.send("GET", target, sink, headers=headers)
        return sink.status, bytes(sink.body)

    def close(self) -> None:
        """Cuts the idle connections."""
        while self._idle:
            self._idle.pop().abort()

    async def _exchange(self, connection: _Connection, request: bytes, sink: Sink) -> None:
        try:
            await connection.exchange(request, sink)
        except BaseException:
            connection.abort()
            raise
        if connection.reusable:
            self._idle.append(connection)
        else:
            connection.abort()

    def _take_idle(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable:
                return connection
        return None

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        origin = self._origin
        try:
            _, connection = await loop.create_connection(_Connection, origin.host, origin.port, ssl=origin.tls or None)
        except OSError as error:
            raise ConnectError(str(error)) from error
        return connection


class Collected:
    """Keeps a whole answer."""

    def __init__(self) -> None:
        self.status = 0
        self.body = bytearray()

    def on_sent(self) -> None:
        """Begin anew: an earlier try may have brought a part."""
        self.body.clear()

    def on_head(self, status: int, headers: Mapping[str, str]) -> None:
        """Keep the status."""
        del headers
        self.status = status

    def on_body(self, data: bytes) -> None:
        """Add to the body."""
        self.body += data


def _head(method: str, target: str, origin: Origin, headers: Mapping[str, str], length: int) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", f"host: {origin.authority}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if method != "GET":
        lines.append(f"content-length: {length}")
    return "\r\n".join((*lines, "", "")).encode("latin-1")
