"""The parent of several processes that serve as one gateway.

The rule of this module: it serves no request of a model. It holds the port, keeps the processes, and stands between
them where something is of all: the admin application, the metrics, the loads. What is wrong with the settings is said
before any process is started.
"""

import asyncio
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import msgspec
import structlog

from gateway.api.admin import require_guarded_admin
from gateway.commands.processes.fan_out import FanOut
from gateway.commands.processes.hub import Hub
from gateway.commands.processes.identity import Process, loads_socket, parent_socket, patience_s, settings_copy
from gateway.commands.processes.ports import port_held
from gateway.commands.processes.siblings import Siblings
from gateway.commands.processes.supervisor import Supervisor
from gateway.commands.processes.unix import served_at
from gateway.commands.serve import admin_served, run_logged, signals
from gateway.core.conversation.rules import Mode, Pinning
from gateway.fleet.members import members_of
from gateway.fleet.shared.loads_local import loads_passed_on
from gateway.policies import build_policy
from gateway.reload import allow_list
from gateway.selection import select
from gateway.settings import Settings
from gateway.settings_routing import ConversationSettings

COMMAND: Final = (sys.executable, "-m", "gateway", "serve", "--stop-with-stdin")


def serve_together(
    settings: Settings, *, config: Path | None, overrides: Sequence[str], stop_with_stdin: bool = False
) -> int:
    """Run `server.workers` processes until SIGTERM or SIGINT.

    Args:
        settings: the whole tree.
        config: the file that it is from.
        overrides: and what was said besides.
        stop_with_stdin: the end of standard input stops them too.

    Returns:
        The exit status: 1 where a process cannot be kept alive.

    Raises:
        SettingsError: the settings cannot be used, or not by several processes.
        OSError: the port, or that of the admin application, is taken.
    """
    _check(settings)
    with port_held(settings.server.host, settings.server.port) as port, TemporaryDirectory(prefix="tidegate-") as made:
        folder = Path(made)
        copy = partial(_copy_settings, config, folder)
        copy()
        arguments = [] if config is None else ["--config", str(config)]
        arguments += [part for override in overrides for part in ("--set", override)]
        main = _run(settings, folder, port, arguments, copy)
        return run_logged(main, settings, stop_with_stdin=stop_with_stdin, process="parent")


async def _run(
    settings: Settings, folder: Path, port: int, arguments: Sequence[str], copy_settings: Callable[[], None]
) -> int:
    return await _Family(settings, folder, port, arguments, copy_settings).run()


class _Family:
    """The parent and its processes."""

    def __init__(
        self,
        settings: Settings,
        folder: Path,
        port: int,
        arguments: Sequence[str],
        copy_settings: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._folder = folder
        self._port = port
        self._arguments = arguments
        self._count = settings.server.workers
        self._siblings = Siblings()
        self._fan_out = FanOut(self._siblings, self._count, reloaded=copy_settings)
        self._supervisor = Supervisor(
            self._count, self._spawn, ended=self._ended, clock=time.monotonic, patience_s=patience_s(settings)
        )
        self._hub = Hub(
            self._siblings,
            self._fan_out,
            serves=self._supervisor.serves,
            restarts=lambda: self._supervisor.restarts,
        )

    async def run(self) -> int:
        """Until all have stopped: the exit status."""
        if (words := conversations_apart(self._settings)) is not None:
            structlog.get_logger().warning("processes.conversations_apart", words=words)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(admin_served(self._fan_out, self._settings.admin))
            await stack.enter_async_context(loads_passed_on(loads_socket(self._folder), time.monotonic))
            await stack.enter_async_context(served_at(parent_socket(self._folder), self._hub))
            stop = self._supervisor.stop
            with signals({signal.SIGTERM: stop, signal.SIGINT: stop}, self._fan_out.reload):
                return await self._supervisor.run()

    def _ended(self, number: int) -> None:
        self._hub.ended(number)

    async def _spawn(self, number: int, generation: int) -> "_Spawned":
        self._hub.begins(number)
        process = Process(
            number=number, of=self._count, generation=generation, folder=str(self._folder), port=self._port
        )
        command = [*COMMAND, *self._arguments, "--process", msgspec.json.encode(process).decode()]
        # In a session of its own: what is typed at the terminal is for the parent alone, which passes it on.
        started = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.PIPE, start_new_session=True)
        return _Spawned(started)


class _Spawned:
    """A process of the system."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        # Its standard input stays open with it: where the parent dies, it ends.
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait(self) -> int:
        return await self._process.wait()

    def send(self, number: int) -> None:
        if self._process.returncode is None:
            self._process.send_signal(number)


def conversations_apart(settings: Settings) -> str | None:
    """What to warn of: conversations that each process would hold by itself; None where there is nothing."""
    conversation = settings.routing.conversation
    if settings.shared.url is not None or not _needs_one_book(conversation):
        return None
    return (
        "conversation.mode conserve and pinning load need one book of conversations, and each of the"
        f" {settings.server.workers} processes keeps its own: a turn that comes to another one is new there."
        " With shared.url they share it."
    )


def _needs_one_book(conversation: ConversationSettings) -> bool:
    modes = {conversation.mode, *conversation.by_model.values()}
    return Mode.CONSERVE in modes or (Mode.AFFINITY in modes and conversation.pinning is Pinning.LOAD)


def _check(settings: Settings) -> None:
    """Find what would keep every process from starting; raises SettingsError."""
    require_guarded_admin(settings)
    members_of(settings)
    allow_list(settings)
    build_policy(settings, select(settings.routing).chosen)
    if settings.shared.url is not None:
        from gateway.fleet.shared.joining import Joining  # noqa: PLC0415 (the library costs most of a second)

        Joining(settings, clock=time.monotonic)


def _copy_settings(config: Path | None, folder: Path) -> None:
    if config is not None:
        shutil.copyfile(config, settings_copy(folder))
