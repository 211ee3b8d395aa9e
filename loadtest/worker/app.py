"""The HTTP side of a worker as a plain ASGI application.

A call is one request and its answer. Nothing here knows what the routes do; unknown paths and methods are answered
as FastAPI does it, an `ApiError` as vLLM does it, and a client that leaves ends its call without an answer.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, MutableMapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qsl

from loadtest.worker.cuts import Cut
from loadtest.worker.errors import ApiError
from loadtest.worker.generation import ClientLeft

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

CUT_EXTENSION = "emulator.cut"
"""Under this name a scope's extensions may have a `Cut` of the answer."""
ANY_SEGMENT = "{}"
JSON = b"application/json"
EVENT_STREAM = b"text/event-stream; charset=utf-8"
Headers = Iterable[tuple[bytes, bytes]]


class HttpCall:
    """One request, and the means to answer it."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.cut: Cut | None = scope.get("extensions", {}).get(CUT_EXTENSION)
        """Where the answer is to end before its time, if anywhere."""
        self._query: bytes = scope.get("query_string", b"")
        self._headers: Headers = scope["headers"]
        self._receive = receive
        self._send = send

    def header(self, name: bytes) -> str | None:
        """The value of a header, whose name is given in lower case."""
        return next((value.decode("latin-1") for key, value in self._headers if key == name), None)

    def query(self, name: str) -> str | None:
        """The first value of a query parameter."""
        return next((value for key, value in parse_qsl(self._query.decode("latin-1")) if key == name), None)

    async def json_body(self) -> bytes:
        """The body, not yet decoded; raises ApiError where it is not announced as JSON."""
        media_type = (self.header(b"content-type") or "").partition(";")[0].strip().lower()
        if media_type != "application/json":
            raise ApiError.media_type()
        return await self.body()

    async def body(self) -> bytes:
        """The body, whatever it is announced as; raises ClientLeft where it does not come."""
        parts = []
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientLeft
            parts.append(message.get("body", b""))
            if not message.get("more_body", False):
                return b"".join(parts)

    async def reply(
        self, status: int, body: bytes, *, content_type: bytes | None = JSON, headers: Headers = ()
    ) -> None:
        """A whole answer."""
        headers = [*headers, (b"content-length", b"%d" % len(body))]
        if content_type is not None:
            headers.append((b"content-type", content_type))
        await self._start(status, headers)
        await self.end(body)

    async def refuse(self, status: int, detail: str, headers: Headers = ()) -> None:
        """An answer of the router itself."""
        body = b'{"detail":"%b"}' % detail.encode()
        standing = [(b"content-length", b"%d" % len(body)), (b"content-type", JSON)]
        await self._start(status, [*headers, *standing])
        await self.end(body)

    async def start_stream(self) -> None:
        """The head of a stream of events; `write` and `end` follow."""
        await self._start(200, [(b"content-type", EVENT_STREAM)])

    async def write(self, data: bytes) -> None:
        """A part of a stream; waits while the client reads more slowly than it is written to."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes = b"") -> None:
        """The last part of an answer."""
        await self._send({"type": "http.response.body", "body": data})

    @asynccontextmanager
    async def watching(self, on_left: Callable[[], None]) -> AsyncIterator[None]:
        """Call `on_left` if the client goes away inside the block; the body must have been read."""
        watcher = asyncio.create_task(self._until_left(on_left))
        try:
            yield
        finally:
            watcher.cancel()

    async def _start(self, status: int, headers: Headers) -> None:
        await self._send({"type": "http.response.start", "status": status, "headers": list(headers)})

    async def _until_left(self, on_left: Callable[[], None]) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        on_left()


Handler = Callable[[HttpCall], Awaitable[None]]
Routes = Mapping[str, Mapping[str, Handler]]
"""Handlers by path and method; `{}` in a path stands for one segment of any kind."""


class WorkerApp:
    """The ASGI application over a table of routes."""

    def __init__(self, routes: Routes) -> None:
        self._routes = {path: methods for path, methods in routes.items() if ANY_SEGMENT not in path}
        self._patterns = [(path.split("/"), methods) for path, methods in routes.items() if ANY_SEGMENT in path]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP call."""
        assert scope["type"] == "http", "the server is run without lifespan and websockets"
        call = HttpCall(scope, receive, send)
        try:
            await self._dispatch(call)
        except ApiError as error:
            await call.reply(error.status, error.body())
        except ClientLeft:
            return

    async def _dispatch(self, call: HttpCall) -> None:
        methods = self._routes.get(call.path) or self._methods_of(call.path.split("/"))
        if methods is None:
            await call.refuse(404, "Not Found")
        elif call.method not in methods:
            await call.refuse(405, "Method Not Allowed", [(b"allow", ", ".join(methods).encode())])
        else:
            await methods[call.method](call)

    def _methods_of(self, segments: list[str]) -> Mapping[str, Handler] | None:
        for pattern, methods in self._patterns:
            if len(pattern) == len(segments) and all(
                own == asked or (own == ANY_SEGMENT and asked) for own, asked in zip(pattern, segments, strict=True)
            ):
                return methods
        return None
