"""One of several processes that serve as one gateway.

The rule of this module: it is the gateway as it is alone, with a socket on a shared port, its parent beside it and no
admin listener. Before it listens it is made what its siblings are. Its signals are its parent's: SIGTERM drains,
however often it comes, and SIGINT ends at once.
"""

import os
import shutil
import signal
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec

from gateway.app import open_gateway
from gateway.commands.processes.identity import Process, loads_socket, parent_socket, settings_copy
from gateway.commands.processes.inner import Inner, MetricsOfAll, begin_as, join, parent_client
from gateway.commands.processes.ports import listeners
from gateway.commands.processes.unix import served_at
from gateway.commands.serve import Drain, data_server, reread_settings, run_logged, signals
from gateway.settings import Settings, load_settings


def serve_told(told: str, config: Path | None, overrides: Sequence[str]) -> None:
    """Run until the parent says so, or has gone.

    Args:
        told: which process this is, as the parent has told it.
        config: the settings file, read anew by a reload; the parent has a copy of it as it is in force.
        overrides: what was said besides.

    Raises:
        SettingsError: see `gateway.commands.serve.serve`.
        OSError: the port is taken, or the parent does not answer.
    """
    process = msgspec.json.decode(told, type=Process)
    parent_id = os.getppid()
    in_force = None if config is None else settings_copy(Path(process.folder))
    settings = process.own(load_settings(in_force, overrides=overrides))
    main = _serve(process, settings, lambda: process.own(load_settings(config, overrides=overrides)))
    try:
        run_logged(main, settings, stop_with_stdin=True, process=process.number)
    finally:
        if os.getppid() != parent_id:
            # It could not clear up itself.
            shutil.rmtree(process.folder, ignore_errors=True)


async def _serve(process: Process, settings: Settings, reread: Callable[[], Settings]) -> None:
    folder, server_settings = Path(process.folder), settings.server
    async with (
        open_gateway(settings, reread=reread, instance=process.instance, parent_loads=loads_socket(folder)) as gateway,
        parent_client(parent_socket(folder)) as parent,
    ):
        server = data_server(MetricsOfAll(gateway.asgi, parent), gateway.http, server_settings)
        drain = Drain(server, gateway.live, delay_s=server_settings.drain_delay_s)
        inner = Inner(gateway)
        with signals(
            {signal.SIGTERM: drain.begin, signal.SIGINT: drain.end}, partial(reread_settings, gateway.reloader)
        ):
            async with served_at(process.socket, inner):
                await begin_as(gateway, await join(parent, process.number, process.socket))
                inner.ready.set()
                await server.serve(sockets=listeners(server_settings.host, process.port))
