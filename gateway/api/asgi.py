"""The small part of ASGI that this package speaks.

The rule of this module: types and two helpers, no routes.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any

from gateway.wire import errors as api_errors
from gateway.wire.errors import ApiError

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]


READ_OFF_BYTES = 8 * 2**20
READ_OFF_S = 2.0


class ClientDisconnected(Exception):  # noqa: N818 (it is no error of the gateway's)
    """The client left before its request was whole."""


async def read_body(scope: Scope, receive: Receive, max_bytes: int) -> bytes | ApiError:
    """The whole request body, counted as it comes; a body over the limit is refused without being kept.

    Raises:
        ClientDisconnected: the client left.
    """
    if declares_too_large(scope["headers"], max_bytes):
        # A client that waits for 100 Continue has sent nothing yet, and asking for its body would make it.
        if not any(name == b"expect" for name, _ in scope["headers"]):
            await _read_off(receive)
        return api_errors.body_too_large(max_bytes)
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        piece: bytes = message.get("body", b"")
        size += len(piece)
        if size > max_bytes:
            if message.get("more_body", False):
                await _read_off(receive)
            return api_errors.body_too_large(max_bytes)
        pieces.append(piece)
        if not message.get("more_body", False):
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def declares_too_large(headers: Headers, max_bytes: int) -> bool:
    """Whether a request says that its body is over the limit."""
    for name, value in headers:
        if name == b"content-length":
            return value.isdigit() and int(value) > max_bytes
    return False


async def _read_off(receive: Receive) -> None:
    """Read some more of a body that is refused: closed on unread bytes, the socket would be reset under the answer."""
    size = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(READ_OFF_S):
            while size <= READ_OFF_BYTES:
                message = await receive()
                size += len(message.get("body", b""))
                if not message.get("more_body", False):
                    return


async def send_json(send: Send, status: int, headers: Headers, body: bytes) -> None:
    """Answer with a whole body; `headers` hold its type."""
    head = [*headers, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})
