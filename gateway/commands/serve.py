"""`tidegate serve`: run the gateway until it is told to stop.

The rule of this module: uvicorn owns the socket and the signals; the gateway lives inside its event loop.
"""

import asyncio
import math
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import structlog
import uvicorn
import uvloop

from gateway import __version__
from gateway.app import open_gateway
from gateway.settings import Settings
from gateway.telemetry.logs import LogFormat, LogLevel, configure_logging

KEEP_ALIVE_S = 75
"""Longer than clients' pools keep idle connections, so that the client is the one to close them."""


def serve(settings: Settings, *, stop_with_stdin: bool = False) -> None:
    """Run until SIGTERM or SIGINT; streams in flight may finish within `server.drain_s`.

    With `stop_with_stdin`, the end of standard input stops it too: a child that must not outlive its parent.

    Raises:
        SettingsError: the policy cannot be built.
    """
    telemetry = settings.telemetry
    log_format, level = LogFormat(telemetry.log_format), LogLevel(telemetry.log_level)
    configure_logging(log_format=log_format, level=level, stream=sys.stdout)
    if stop_with_stdin:
        threading.Thread(target=_stop_at_end_of_input, daemon=True).start()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings))


def _stop_at_end_of_input() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


async def _serve(settings: Settings) -> None:
    async with open_gateway(settings) as gateway:
        config = uvicorn.Config(
            gateway.asgi,
            host=settings.server.host,
            port=settings.server.port,
            http="httptools",
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=math.ceil(settings.server.drain_s),
        )
        await _Server(config).serve()


class _Server(uvicorn.Server):
    """A server that says where it listens, and returns when it is told to stop."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        # Uvicorn raises the signal again at the end, which would kill the process before the gateway is closed and
        # its last decisions and calls are written.
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def startup(self, sockets: list[object] | None = None) -> None:  # type: ignore[override] # same shape
        await super().startup(sockets=sockets)  # type: ignore[arg-type] # passed on as it came
        for server in self.servers:
            for socket in server.sockets:
                host, port = socket.getsockname()[:2]
                structlog.get_logger().info("gateway.started", url=f"http://{host}:{port}", version=__version__)
