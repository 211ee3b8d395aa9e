"""`tidegate serve`: run the gateway until it is told to stop.

The rule of this module: uvicorn owns the sockets, this module the signals; the gateway lives inside their event loop.
The first SIGTERM or SIGINT drains: readiness off, requests still served for `server.drain_delay_s`; then the listener
closes and streams may finish within `server.drain_s`. The second ends at once. SIGHUP reads the settings anew.
"""

import asyncio
import math
import os
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

import structlog
import uvicorn
import uvloop

from gateway import __version__
from gateway.api.asgi import AsgiApp
from gateway.api.live import Live
from gateway.api.protocol import BoundedHeads
from gateway.app import open_gateway
from gateway.reload import Reloader
from gateway.settings import AdminSettings, ServerSettings, Settings, SettingsError
from gateway.telemetry.logs import LogFormat, LogLevel, configure_logging

T = TypeVar("T")

KEEP_ALIVE_S = 75
"""Longer than clients' pools keep idle connections, so that the client is the one to close them."""
ADMIN_CLOSE_S = 1
"""How long answers of the admin application may take to end, once all else has stopped."""


def serve(settings: Settings, *, reread: Callable[[], Settings], stop_with_stdin: bool = False) -> None:
    """Run until SIGTERM or SIGINT.

    With `stop_with_stdin`, the end of standard input stops it too: a child that must not outlive its parent.

    Args:
        settings: the whole tree.
        reread: reads it anew from where it came.
        stop_with_stdin: see above.

    Raises:
        SettingsError: the policy cannot be built, or a worker's URL is none.
        OSError: the admin application's port is taken.
    """
    run_logged(_serve(settings, reread), settings, stop_with_stdin=stop_with_stdin)


def run_logged(
    main: Coroutine[Any, Any, T], settings: Settings, *, stop_with_stdin: bool, process: int | str | None = None
) -> T:
    """Run a process of the gateway, with its logs on standard output.

    Args:
        main: all that it does.
        settings: how it logs.
        stop_with_stdin: see `serve`.
        process: which one it is, in every line; None where there are no others.
    """
    telemetry = settings.telemetry
    log_format, level = LogFormat(telemetry.log_format), LogLevel(telemetry.log_level)
    configure_logging(log_format=log_format, level=level, stream=sys.stdout, process=process)
    if stop_with_stdin:
        threading.Thread(target=_stop_at_end_of_input, daemon=True).start()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def _stop_at_end_of_input() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


async def _serve(settings: Settings, reread: Callable[[], Settings]) -> None:
    async with (
        open_gateway(settings, reread=reread) as gateway,
        admin_served(gateway.admin, settings.admin),
    ):
        server = data_server(gateway.asgi, gateway.http, settings.server)
        drain = Drain(server, gateway.live, delay_s=settings.server.drain_delay_s)
        with signals(
            {signal.SIGTERM: drain.stop, signal.SIGINT: drain.stop}, partial(reread_settings, gateway.reloader)
        ):
            await server.serve()


def data_server(app: AsgiApp, http: type[BoundedHeads], settings: ServerSettings) -> "GatewayServer":
    """The server of the data routes."""
    drain_s = math.ceil(settings.drain_s)
    return GatewayServer(app, settings.host, settings.port, drain_s, name="gateway", http=http)


class Drain:
    """What signals do to a server: `stop` is called once for each."""

    def __init__(self, server: uvicorn.Server, live: Live, *, delay_s: float) -> None:
        self._server = server
        self._live = live
        self._delay_s = delay_s
        self._log = structlog.get_logger()

    def stop(self) -> None:
        """Begin to drain; called again, end at once."""
        if self._live.draining:
            self.end()
        else:
            self.begin()

    def begin(self) -> None:
        """Begin to drain, unless that has begun."""
        if self._live.draining:
            return
        self._live.draining = True
        self._log.info("gateway.draining", delay_s=self._delay_s)
        if self._delay_s > 0:
            asyncio.get_running_loop().call_later(self._delay_s, self._close)
        else:
            self._close()

    def _close(self) -> None:
        self._server.should_exit = True

    def end(self) -> None:
        """End at once."""
        self._live.draining = True
        self._log.warning("gateway.ended_at_once")
        self._server.should_exit = self._server.force_exit = True
        # Their connections would keep the server from closing.
        for task in self._server.server_state.tasks:
            task.cancel()


@contextmanager
def signals(
    stopping: Mapping[int, Callable[[], None]], reload: Callable[[], Coroutine[Any, Any, None]]
) -> Iterator[None]:
    """Let these signals stop the gateway, and SIGHUP read its settings anew."""
    loop = asyncio.get_running_loop()
    reloads: set[asyncio.Task[None]] = set()

    def begin() -> None:
        task = loop.create_task(reload())
        reloads.add(task)
        task.add_done_callback(reloads.discard)

    handlers = {**stopping, signal.SIGHUP: begin}
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)
        for task in reloads:
            task.cancel()


async def reread_settings(reloader: Reloader) -> None:
    """Reload; the reloader logs why it refuses, and nothing has changed then."""
    with suppress(SettingsError):
        await reloader.reload()


@asynccontextmanager
async def admin_served(app: AsgiApp, settings: AdminSettings) -> AsyncIterator[None]:
    """The admin application on its own port, up before the gateway and down after it."""
    if settings.port is None:
        yield
        return
    # Bound here: a port that is taken is then an OSError with its address, before any client is served.
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.create_server((settings.host, settings.port), family=family)
    server = GatewayServer(app, settings.host, settings.port, ADMIN_CLOSE_S, name="admin")
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield
    finally:
        server.should_exit = True
        await serving


class GatewayServer(uvicorn.Server):
    """A server that says where it listens, and leaves signals to others."""

    def __init__(
        self, app: AsgiApp, host: str, port: int, close_s: int, *, name: str, http: type[BoundedHeads] = BoundedHeads
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                host=host,
                port=port,
                http=http,
                ws="none",
                lifespan="off",
                access_log=False,
                log_config=None,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=close_s,
            )
        )
        self._name = name

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave them alone."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        await super().startup(sockets=sockets)
        for server in self.servers:
            for bound in server.sockets:
                host, port = bound.getsockname()[:2]
                address = f"[{host}]" if ":" in host else host
                structlog.get_logger().info(
                    f"{self._name}.started", url=f"http://{address}:{port}", version=__version__
                )
