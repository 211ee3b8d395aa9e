"""An application on a Unix socket, for the processes of one gateway alone.

The rule of this module: the socket's folder keeps others out.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

import uvicorn

from gateway.api.asgi import AsgiApp

KEEP_ALIVE_S: Final = 75
"""Longer than httpx keeps idle connections: a call on one that is being closed would fail."""
CLOSE_S: Final = 1
"""How long answers may take to end, once all else has stopped."""


@asynccontextmanager
async def served_at(path: Path, app: AsgiApp) -> AsyncIterator[None]:
    """Serve the application on a socket that is made at `path`, from here on.

    Raises:
        OSError: it cannot be made.
    """
    server = _Server(
        uvicorn.Config(
            app,
            uds=str(path),
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=CLOSE_S,
        )
    )
    serving = asyncio.create_task(server.serve())
    listening = asyncio.create_task(server.listening.wait())
    try:
        await asyncio.wait({serving, listening}, return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            await serving
        yield
    finally:
        listening.cancel()
        server.should_exit = True
        await serving


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        await super().startup(sockets=sockets)
        self.listening.set()

    def _log_started_message(self, listeners: Sequence[socket.SocketType]) -> None:
        """Say nothing: nobody is to use it."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave them alone."""
        yield
