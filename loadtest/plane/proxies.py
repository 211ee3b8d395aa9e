"""What is measured: this gateway, vllm-router and nginx, each as its users run it.

The rule of this module: the gateway has everything on that it has: keys, retries, metrics, the decision log, request
ids, limits, conversations and a policy. Of its defaults only the number of connections to a worker is raised, for
loads of thousands of streams. The others have their defaults, and nginx keeps its connections.
"""

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml

from gateway.core.types import Role
from loadtest.fleet.fleet import free_port
from loadtest.fleet.processes import wait_until_ready
from loadtest.plane.processes import pinned
from loadtest.plane.rivals import NGINX, VLLM_ROUTER

MODEL = "mock"
API_KEY = "sk-abc"
"""The load generator's."""
OURS = "tidegate"
MODES = ("auto", "asgi")
"""Of `server.data_plane`."""
MAX_CONNECTIONS = 8192
ALWAYS_REMOTE: Mapping[str, Any] = {"routing": {"policy": "remote"}}
"""On a pair. By default a prompt that the decode worker has cached stays there, and all of the load's are alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One worker of the fleet."""

    name: str
    role: Role
    port: int

    @property
    def url(self) -> str:
        """Its base URL."""
        return f"http://127.0.0.1:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxy:
    """Something that can be started in front of the workers."""

    name: str
    command: tuple[str, ...]
    port: int
    ready_path: str
    """Answers 200 once requests are served."""

    @property
    def url(self) -> str:
        """Its base URL."""
        return f"http://127.0.0.1:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A proxy that serves."""

    proxy: Proxy
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def pid(self) -> int:
        """Of the process that was started; others may be below it."""
        return self.process.pid


@contextlib.contextmanager
def serving(proxy: Proxy, directory: Path, *, core: int) -> Iterator[Running]:
    """A proxy on one core, ready, until the end; raises FleetError where it does not start."""
    log = directory / f"{proxy.name.replace(' ', '-')}.log"
    with pinned(proxy.command, core=core, log=log) as process:
        wait_until_ready(process, proxy.url + proxy.ready_path, log)
        yield Running(proxy=proxy, process=process, log=log)


def name_of(mode: str) -> str:
    """What this gateway is called in tables, by its data plane."""
    return f"{OURS} {mode}"


def tidegate(
    workers: Sequence[Worker],
    directory: Path,
    *,
    mode: str = MODES[0],
    settings: Mapping[str, Any] | None = None,
) -> Proxy:
    """This gateway.

    Args:
        workers: where requests go.
        directory: for its settings and logs.
        mode: its data plane, one of `MODES`.
        settings: further sections, which take the place of those here.
    """
    name, port = name_of(mode), free_port()
    place = directory / name.replace(" ", "-")
    place.mkdir(exist_ok=True)
    tree = {
        "server": {"host": "127.0.0.1", "port": port, "data_plane": mode},
        "admin": {"port": 0},
        "auth": {"keys": [{"name": "load", "sha256": sha256(API_KEY.encode()).hexdigest()}]},
        "workers": [_worker_tree(worker) for worker in workers],
        "upstream": {leg: {"max_connections": MAX_CONNECTIONS} for leg in ("prefill", "decode")},
        "telemetry": {"decision_log": str(place / "decisions.jsonl")},
        **(settings or {}),
    }
    config = place / "tidegate.yaml"
    config.write_text(yaml.safe_dump(tree))
    command = (sys.executable, "-m", "gateway", "serve", "--stop-with-stdin", "--config", str(config))
    return Proxy(name=name, command=command, port=port, ready_path="/readyz")


def _worker_tree(worker: Worker) -> dict[str, Any]:
    return {"id": worker.name, "url": worker.url, "role": str(worker.role), "models": [MODEL]}


def vllm_router(program: Path, workers: Sequence[Worker]) -> Proxy:
    """vllm-router with its defaults, but for the policy that makes one call a request."""
    port = free_port()
    place = ["--host", "127.0.0.1", "--port", str(port)]
    metrics = ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port())]
    rest = ["--policy", "round_robin", "--worker-startup-check-interval", "1"]
    fleet = _router_fleet(workers)
    return Proxy(
        name=VLLM_ROUTER, command=(str(program), *place, *metrics, *rest, *fleet), port=port, ready_path="/health"
    )


def _router_fleet(workers: Sequence[Worker]) -> list[str]:
    if all(worker.role is Role.BOTH for worker in workers):
        return ["--worker-urls", *(worker.url for worker in workers)]
    flags = ["--vllm-pd-disaggregation"]
    for worker in workers:
        flags += ["--prefill" if worker.role is Role.PREFILL else "--decode", worker.url]
    return flags


def nginx(program: Path, workers: Sequence[Worker], directory: Path) -> Proxy:
    """Nginx as a proxy of streams without a log of requests: the practical limit."""
    port = free_port()
    place = directory / NGINX
    place.mkdir(exist_ok=True)
    config = place / "nginx.conf"
    config.write_text(_nginx_config(workers, place, port))
    command = (str(program), "-p", str(place), "-e", str(place / "error.log"), "-c", str(config))
    return Proxy(name=NGINX, command=command, port=port, ready_path="/health")


def _nginx_config(workers: Sequence[Worker], place: Path, port: int) -> str:
    servers = " ".join(f"server 127.0.0.1:{worker.port};" for worker in workers)
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "\n  ".join(f"{kind}_temp_path {place}/{kind};" for kind in kinds)
    return f"""\
daemon off;
worker_processes 1;
pid {place}/nginx.pid;
events {{ worker_connections 16384; }}
http {{
  access_log off;
  keepalive_requests 1000000000;
  {temporary}
  upstream workers {{ {servers} keepalive 4096; keepalive_requests 1000000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      proxy_pass http://workers;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
      proxy_read_timeout 600s;
    }}
  }}
}}
"""
