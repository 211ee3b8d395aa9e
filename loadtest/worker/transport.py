"""The connection under a call, for what HTTP servers do not let an application do."""

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from loadtest.worker.app import Receive, Scope

_EXTENSION = "emulator.transport"


class OpenProtocol(HttpToolsProtocol):
    """uvicorn's protocol; it shows each call its transport."""

    def on_message_begin(self) -> None:
        """Put the transport into the scope's extensions."""
        super().on_message_begin()
        self.scope["extensions"] = {_EXTENSION: {"transport": self.transport}}


class Connection:
    """A call's connection, beside its `receive`."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self._transport: asyncio.Transport = scope["extensions"][_EXTENSION]["transport"]
        self._receive = receive

    @property
    def closing(self) -> bool:
        """Whether it has ended, or is about to."""
        return self._transport.is_closing()

    def write(self, data: bytes) -> None:
        """Write past the server."""
        self._transport.write(data)

    async def hang_up(self) -> None:
        """Send what has been written, close, and wait until the server has seen it."""
        self._transport.close()
        while (await self._receive())["type"] != "http.disconnect":
            pass
