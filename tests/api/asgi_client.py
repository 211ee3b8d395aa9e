"""A client of an ASGI application in the same process: the test sends, leaves, and reads as slowly as it likes."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from gateway.api.asgi import AsgiApp, Message

MANY_TURNS = 200
"""More turns of the event loop than anything here needs."""


async def settle(condition: Callable[[], object]) -> None:
    """Let the event loop turn until the condition holds."""
    for _ in range(MANY_TURNS):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came to that")


async def idle() -> None:
    """Let everything run that can."""
    for _ in range(MANY_TURNS):
        await asyncio.sleep(0)


class AsgiClient:
    """One request; `started` by `start`, and over when `task` is done."""

    def __init__(
        self,
        app: AsgiApp,
        path: str = "/v1/chat/completions",
        *,
        method: str = "POST",
        headers: Sequence[tuple[bytes, bytes]] = (),
        query: bytes = b"",
        raw_path: bytes | None = None,
    ) -> None:
        self.sent: list[Message] = []
        self.answered = asyncio.Event()
        """Set with the first bytes of the body."""
        self.send_error: Exception | None = None
        self._app = app
        self._inbox: asyncio.Queue[Message] = asyncio.Queue()
        self._permits: asyncio.Semaphore | None = None
        self._scope: dict[str, Any] = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": query,
            "headers": list(headers),
        }
        if raw_path is not None:
            self._scope["raw_path"] = raw_path
        self.task: asyncio.Task[None]

    # what the test does

    def start(self, *pieces: bytes, more: bool = False) -> "AsgiClient":
        """Send the request with its body in pieces; `more` leaves the body open."""
        self.task = asyncio.ensure_future(self._app(self._scope, self._receive, self._send))
        self.give(*pieces, more=more)
        return self

    def give(self, *pieces: bytes, more: bool = False) -> None:
        """Send further pieces of the body."""
        for number, piece in enumerate(pieces, start=1):
            open_end = {"more_body": True} if more or number < len(pieces) else {}
            self._inbox.put_nowait({"type": "http.request", "body": piece, **open_end})

    def leave(self) -> None:
        """Close the connection."""
        self._inbox.put_nowait({"type": "http.disconnect"})

    def stop_reading(self) -> None:
        """Let no further message through."""
        self._permits = asyncio.Semaphore(0)

    def read(self, messages: int) -> None:
        """Let some messages through."""
        assert self._permits is not None
        for _ in range(messages):
            self._permits.release()

    # what it got

    @property
    def status(self) -> int | None:
        return self.sent[0]["status"] if self.sent else None

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)

    @property
    def whole(self) -> bool:
        """Whether the end of the body was sent."""
        return bool(self.sent) and not self.sent[-1].get("more_body", self.sent[-1]["type"] != "http.response.body")

    def header(self, name: bytes) -> bytes | None:
        return dict(self.sent[0]["headers"]).get(name)

    # the server's side

    async def _receive(self) -> Message:
        return await self._inbox.get()

    async def _send(self, message: Message) -> None:
        if self.send_error is not None:
            raise self.send_error
        if self._permits is not None:
            await self._permits.acquire()
        self.sent.append(message)
        if message.get("body"):
            self.answered.set()
