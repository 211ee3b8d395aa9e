"""Hosts emulated workers in one process and one event loop, each on a port of its own.

This is where a worker's parts are put together. The sockets are bound first, so that a worker knows the port that
it tells other workers.
"""

import asyncio
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import uvicorn

from gateway.core.types import Role
from loadtest.engine.engine import Engine
from loadtest.engine.presets import UnknownEngine, load_engine
from loadtest.worker.api import Worker
from loadtest.worker.app import WorkerApp
from loadtest.worker.config import WorkerConfig
from loadtest.worker.control import FaultRoutes, FleetControl
from loadtest.worker.faults import FaultSwitches
from loadtest.worker.host import Clock, EngineHost, LoopClock
from loadtest.worker.pd import HttpKvPeers, KvPeers
from loadtest.worker.sabotage import Saboteur
from loadtest.worker.transport import OpenProtocol

BACKLOG = 2048
KEEP_ALIVE_S = 5
"""vLLM's: an idle connection is closed after this long."""
STOP_PATIENCE_S = 2.0
"""How long answers in flight may take to end when the server stops; the rest end with an error."""
STOP_LIMIT_S = 5
"""How long the server waits for clients that do not read their answers' end."""
_WILDCARDS = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - compared with, not bound to


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundWorker:
    """A worker that listens."""

    name: str
    role: Role
    model: str
    host: str
    port: int
    url: str
    """Where it can be reached from other hosts, as far as it knows."""


def build_worker(config: WorkerConfig, *, address: tuple[str, int], peers: KvPeers, clock: Clock) -> Worker:
    """A worker with a fresh engine; raises UnknownEngine or, for a setting that cannot be, ValueError.

    Clients do not run faster when the engine does: the lease on held KV is kept at its length in real seconds.
    """
    spec, costs = load_engine(config.engine)
    spec = replace(
        spec,
        block_tokens=config.block_tokens or spec.block_tokens,
        total_blocks=config.total_blocks or spec.total_blocks,
        hold_lease_s=spec.hold_lease_s * max(1.0, config.speed),
    )
    host = EngineHost(Engine(spec, costs), speed=config.speed, clock=clock)
    return Worker(config, spec, host=host, peers=peers, address=address)


async def serve_workers(
    configs: Sequence[WorkerConfig],
    *,
    stop: asyncio.Event,
    on_ready: Callable[[list[BoundWorker]], None],
    control: FleetControl | None = None,
) -> None:
    """Serve until `stop` is set; `on_ready` is called once, when every worker answers.

    `control` is filled with the workers, whose faults it turns on and off. Raises OSError for an address that cannot
    be bound, UnknownEngine or ValueError for a worker that cannot be built.
    """
    peers = HttpKvPeers()
    clock = LoopClock()
    control = FleetControl() if control is None else control
    servers = [_bind(config, peers, clock, control) for config in configs]
    async with asyncio.TaskGroup() as tasks:
        serving = [tasks.create_task(server.serve(sockets=[server.listener])) for server in servers]
        for server in servers:
            await server.ready.wait()
        await control.begin()
        on_ready([server.bound for server in servers])
        await stop.wait()
        for server in servers:
            server.leave_off()
        await asyncio.wait(serving, timeout=STOP_PATIENCE_S)
        for server in servers:
            server.worker.break_off()
    await peers.drain()


class _Server(uvicorn.Server):
    """A server that tells when it is ready, leaves signals to the process, and can close its door for a while."""

    def __init__(self, worker: Worker, listener: socket.socket, bound: BoundWorker, *, control: FleetControl) -> None:
        switches = FaultSwitches(worker.config.faults)
        control.add(bound.name, switches, self)
        app = WorkerApp({**worker.routes(), **FaultRoutes(control, bound.name).routes()})
        self._saboteur = Saboteur(app, switches, drop_kv=worker.serving.drop_kv)
        config = uvicorn.Config(
            self._saboteur,
            http=OpenProtocol,
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            log_level="warning",
            proxy_headers=False,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=STOP_LIMIT_S,
        )
        super().__init__(config)
        self.worker = worker
        self.listener = listener
        self.bound = bound
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self.ready.set()

    async def refuse(self) -> None:
        """Stop listening and end every connection, as a process does that dies."""
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.transport.close()
        self.listener.close()
        # uvloop lets go of the socket a turn of the loop later, and tells nobody.
        while self.listener.fileno() != -1:  # noqa: ASYNC110
            await asyncio.sleep(0)

    async def listen(self) -> None:
        """Listen again, on the same port; raises OSError if it has been taken."""
        self.listener = _listener(self.worker.config.host, self.bound.port)
        await self.startup(sockets=[self.listener])

    def leave_off(self) -> None:
        """Begin to stop; calls that hang have no answer to wait for."""
        self.should_exit = True
        self._saboteur.break_off()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _listener(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=BACKLOG)


def _bind(config: WorkerConfig, peers: KvPeers, clock: Clock, control: FleetControl) -> _Server:
    listener = _listener(config.host, config.port)
    port: int = listener.getsockname()[1]
    host = _advertised_host(config)
    bound = BoundWorker(
        name=config.name,
        role=config.role,
        model=config.model,
        host=config.host,
        port=port,
        url=f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}",
    )
    try:
        worker = build_worker(config, address=(host, port), peers=peers, clock=clock)
        return _Server(worker, listener, bound, control=control)
    except (UnknownEngine, ValueError):
        listener.close()
        raise


def _advertised_host(config: WorkerConfig) -> str:
    if config.advertise_host is not None:
        return config.advertise_host
    return socket.gethostname() if config.host in _WILDCARDS else config.host
