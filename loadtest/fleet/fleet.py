"""Starting workers and a gateway.

The rule of this module: a fleet is described by one frozen value, and everything that it starts ends with it.
"""

import contextlib
import json
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import yaml

from loadtest.engine.presets import load_engine
from loadtest.fleet.pools import Pools
from loadtest.fleet.processes import first_line, running, wait_until_ready
from loadtest.worker.config import WorkerConfig

DEFAULT_MODEL = "emulated-llm"


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSpec:
    """What to start."""

    pools: Pools
    engine: str
    port: int = 0
    """The gateway's; 0 takes a free one."""
    speed: float = 1.0
    model: str = DEFAULT_MODEL
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Gateway settings beside `server` and `workers`; without `admin` there is no admin application."""
    worker_overrides: Mapping[str, Any] = field(default_factory=dict)
    """Fields of every worker's configuration, such as `total_blocks`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningFleet:
    """What has been started."""

    url: str
    """The gateway's, without /v1."""
    workers: Sequence[Mapping[str, Any]]
    directory: Path
    """Logs of the children, and the gateway's settings."""

    @property
    def openai_url(self) -> str:
        """The base URL for OpenAI clients."""
        return self.url + "/v1"

    def as_json(self) -> str:
        """All URLs, on one line."""
        workers = {worker["name"]: worker["url"] for worker in self.workers}
        return json.dumps({"url": self.openai_url, "metrics": self.url + "/metrics", "workers": workers})


@contextlib.contextmanager
def running_fleet(spec: FleetSpec) -> Iterator[RunningFleet]:
    """Start a fleet, and end it on the way out.

    Raises:
        FleetError: a part of it did not start.
        UnknownEngine: no such preset.
    """
    budget = load_engine(spec.engine)[0].max_batched_tokens
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidegate-fleet-")))
        workers = _start_workers(spec, directory, stack)
        url = _start_gateway(spec, workers, budget, directory, stack)
        yield RunningFleet(url=url, workers=workers, directory=directory)


def _start_workers(spec: FleetSpec, directory: Path, stack: contextlib.ExitStack) -> list[Mapping[str, Any]]:
    configs = [
        WorkerConfig(
            name=name, role=role, engine=spec.engine, model=spec.model, speed=spec.speed, **spec.worker_overrides
        )
        for name, role in spec.pools.roles()
    ]
    log = directory / "workers.log"
    arguments = ["loadtest.worker", "--config-json", msgspec.json.encode(configs).decode()]
    process = stack.enter_context(running(arguments, log=log, pipe_output=True))
    return list(first_line(process, log)["workers"])


def _start_gateway(
    spec: FleetSpec,
    workers: Sequence[Mapping[str, Any]],
    max_batched_tokens: int,
    directory: Path,
    stack: contextlib.ExitStack,
) -> str:
    port = spec.port or free_port()
    tree = {
        "admin": {"port": None},
        **spec.settings,
        "server": {"host": "127.0.0.1", "port": port},
        "workers": [
            {
                "id": worker["name"],
                "url": worker["url"],
                "role": worker["role"],
                "max_batched_tokens": max_batched_tokens,
            }
            for worker in workers
        ],
    }
    config, log = directory / "gateway.yaml", directory / "gateway.log"
    config.write_text(yaml.safe_dump(tree))
    process = stack.enter_context(running(["gateway", "serve", "--stop-with-stdin", "--config", str(config)], log=log))
    url = f"http://127.0.0.1:{port}"
    wait_until_ready(process, url + "/readyz", log)
    return url


def free_port() -> int:
    """A port of this machine's loopback that nothing listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port
