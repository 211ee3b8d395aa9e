"""The hot routes as a raw ASGI application: POST /v1/chat/completions and /v1/completions.

The rule of this module: it bridges a journey's callbacks and ASGI's awaits, and decides nothing. It is dispatched
before FastAPI's middleware, which would cost more than the whole journey.
"""

import asyncio
from collections.abc import Mapping
from types import MappingProxyType

from gateway.api.asgi import ClientDisconnected, Headers, Message, Receive, Scope, Send, read_body, send_error
from gateway.api.request_id import request_id_of
from gateway.core.types import Endpoint, Outcome, OutcomeKind, RequestId
from gateway.upstream.journey import CLIENT_CLOSED_REQUEST, Journey
from gateway.upstream.services import ClientRequest, Services
from gateway.wire.errors import ApiError
from gateway.wire.openai import Peeked, peek

HOT_ROUTES: Mapping[str, Endpoint] = MappingProxyType(
    {"/v1/chat/completions": Endpoint.CHAT, "/v1/completions": Endpoint.COMPLETIONS}
)
HIGH_WATER_BYTES = 64 * 1024
"""With more than this waiting for the client, the worker is read no further."""


class AsgiSink:
    """Queues what a journey writes until the ASGI server takes it."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._waiting_bytes = 0
        self._woken = asyncio.Event()
        self.closed = False
        """No message will come any more."""
        self.journey: Journey | None = None

    def start(self, status: int, headers: Headers) -> None:
        """Queue the head."""
        self._put({"type": "http.response.start", "status": status, "headers": headers})

    def write(self, data: bytes) -> None:
        """Queue a piece of the body; pause the worker where too much waits."""
        self._waiting_bytes += len(data)
        self._put({"type": "http.response.body", "body": data, "more_body": True})
        if self._waiting_bytes > HIGH_WATER_BYTES and self.journey is not None:
            self.journey.pause()

    def finish(self) -> None:
        """Queue the end."""
        self.closed = True
        self._put({"type": "http.response.body", "body": b""})

    def break_off(self) -> None:
        """End without an end: the server closes the connection."""
        self.close()

    def close(self) -> None:
        """Nothing more is sent."""
        self.closed = True
        self._woken.set()

    async def pump(self, send: Send) -> None:
        """Send all messages as they come, until the end."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            messages, self._messages = self._messages, []
            for message in messages:
                await send(message)
            if self._waiting_bytes:
                self._waiting_bytes = sum(len(message.get("body", b"")) for message in self._messages)
                if self._waiting_bytes <= HIGH_WATER_BYTES and self.journey is not None:
                    self.journey.resume()
            if self.closed and not self._messages:
                return

    def _put(self, message: Message) -> None:
        self._messages.append(message)
        self._woken.set()


class HotRoutes:
    """Answers the hot routes.

    Args:
        services: what a journey needs.
        max_body_bytes: larger bodies are refused with 413.
        session_headers: names of the headers that name a session, in lower case.
    """

    def __init__(self, services: Services, *, max_body_bytes: int, session_headers: tuple[str, ...]) -> None:
        self._services = services
        self._max_body_bytes = max_body_bytes
        self._session_headers = session_headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        arrived_s = self._services.clock()
        request_id = request_id_of(scope["headers"])
        try:
            body = await read_body(scope, receive, self._max_body_bytes)
        except ClientDisconnected:
            self._record(request_id, OutcomeKind.CANCELLED, CLIENT_CLOSED_REQUEST, arrived_s)
            return
        peeked = body if isinstance(body, ApiError) else self._peek(scope, body, request_id)
        if isinstance(peeked, ApiError):
            self._record(request_id, OutcomeKind.CLIENT_ERROR, peeked.status, arrived_s)
            await send_error(send, peeked, [(b"x-request-id", request_id.encode())])
            return
        assert isinstance(body, bytes)
        request = ClientRequest(
            request_id=request_id,
            method=b"POST",
            target=_target(scope),
            headers=scope["headers"],
            body=body,
            arrived_s=arrived_s,
        )
        await self._travel(request, peeked, receive, send)

    def _peek(self, scope: Scope, body: bytes, request_id: RequestId) -> Peeked | ApiError:
        endpoint = HOT_ROUTES[scope["path"]]
        headers = scope["headers"]
        return peek(body, endpoint, request_id=request_id, headers=headers, session_headers=self._session_headers)

    async def _travel(self, request: ClientRequest, peeked: Peeked, receive: Receive, send: Send) -> None:
        sink = AsgiSink()
        journey = sink.journey = Journey(self._services, request, peeked, sink)
        journey.begin()
        watcher = asyncio.ensure_future(_watch_client(receive, journey, sink))
        try:
            await sink.pump(send)
        finally:
            watcher.cancel()
            journey.client_gone()

    def _record(self, request_id: RequestId, kind: OutcomeKind, status: int, arrived_s: float) -> None:
        outcome = Outcome(kind=kind, status=status, duration_s=self._services.clock() - arrived_s)
        self._services.telemetry.finished(None, outcome, request_id=request_id, model=None)


async def _watch_client(receive: Receive, journey: Journey, sink: AsgiSink) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    journey.client_gone()
    sink.close()


def _target(scope: Scope) -> bytes:
    path: bytes = scope.get("raw_path") or scope["path"].encode()
    query: bytes = scope.get("query_string", b"")
    return path + b"?" + query if query else path
