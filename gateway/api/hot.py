"""The routes of the engines as a raw ASGI application.

The rule of this module: it bridges a journey's callbacks and ASGI's awaits, and decides nothing. It is dispatched
before FastAPI's middleware, which would cost more than the whole journey.
"""

import asyncio
from typing import Protocol

from gateway.api.asgi import ClientDisconnected, Headers, Message, Receive, Scope, Send, read_body, send_json
from gateway.api.intake import Intake
from gateway.api.reception import Before, Reception
from gateway.api.refusal import WholeAnswer
from gateway.api.request_id import request_id_of
from gateway.upstream.services import Services

HIGH_WATER_BYTES = 64 * 1024
"""With more than this waiting for the client, the worker is read no further."""


class Traveller(Protocol):
    """Whoever carries a request and writes to a sink."""

    def client_gone(self) -> None:
        """The client left, or has its answer."""

    def pause(self) -> None:
        """The client reads slower than the worker writes."""

    def resume(self) -> None:
        """The client has caught up."""


class AsgiSink:
    """Queues what a journey writes until the ASGI server takes it."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._waiting_bytes = 0
        self._woken = asyncio.Event()
        self.closed = False
        """No message will come any more."""
        self.journey: Traveller | None = None

    def start(self, status: int, headers: Headers) -> None:
        """Queue the head."""
        self._put({"type": "http.response.start", "status": status, "headers": headers})

    def write(self, data: bytes) -> None:
        """Queue a piece of the body; pause the worker where too much waits."""
        self._waiting_bytes += len(data)
        self._put({"type": "http.response.body", "body": data, "more_body": True})
        if self._waiting_bytes > HIGH_WATER_BYTES and self.journey is not None:
            self.journey.pause()

    def flush(self) -> None:
        """All goes out as soon as the server takes it."""

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
    """Answers the hot routes; for the arguments see `Reception`."""

    def __init__(
        self, services: Services, intake: Intake, *, max_body_bytes: int, before: Before | None = None
    ) -> None:
        self.reception = Reception(services, intake, max_body_bytes=max_body_bytes, before=before)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        reception = self.reception
        arrived_s = reception.clock()
        request_id = request_id_of(scope["headers"])
        try:
            body = await read_body(scope, receive, reception.max_body_bytes)
        except ClientDisconnected:
            reception.left(request_id, arrived_s)
            return
        taken = reception.take(scope, body, request_id, arrived_s)
        if isinstance(taken, WholeAnswer):
            await send_json(send, taken.status, taken.headers, taken.body)
            return
        request, peeked = taken
        if (wanted := reception.wanted(peeked)) is not None:
            await wanted
        sink = AsgiSink()
        journey = reception.journey(request, peeked, sink)
        if isinstance(journey, WholeAnswer):
            await send_json(send, journey.status, journey.headers, journey.body)
            return
        sink.journey = journey
        journey.begin()
        await carry(journey, sink, receive, send)


async def carry(journey: Traveller, sink: AsgiSink, receive: Receive, send: Send) -> None:
    """Bring what a journey that has begun writes to the client, and tell it where that leaves."""
    watcher = asyncio.ensure_future(_watch_client(receive, journey, sink))
    try:
        await sink.pump(send)
    finally:
        watcher.cancel()
        journey.client_gone()


async def _watch_client(receive: Receive, journey: Traveller, sink: AsgiSink) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    journey.client_gone()
    sink.close()
