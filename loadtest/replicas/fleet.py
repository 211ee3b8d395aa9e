"""The parts of a run: a Redis, emulated workers and gateways, each of which can be stopped or killed.

The rule of this module: every process is ended by its own id, and nothing outlives the fleet. Calls block; what takes
long says so.
"""

import contextlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec
import yaml

from gateway.core.types import Role
from loadtest.engine.presets import load_engine
from loadtest.fleet.fleet import DEFAULT_MODEL, free_port
from loadtest.fleet.processes import READY_TIMEOUT_S, FleetError, first_line, running, wait_until_ready
from loadtest.worker.config import WorkerConfig

REPLICAS = 3
PREFILLERS, DECODERS = 2, 4
ENGINE = "h100-llama8b"
SPEED = 0.5
"""Of the engines: slow enough for streams that last some tenths of a second, and cheaper than fast ones, for one step
serves more of them."""
TOTAL_BLOCKS = 40_000
"""Of each worker: room for all conversations, so that none has to give way and every move is a fault's."""
POLL_S = 0.02


class NoRedis(RuntimeError):  # noqa: N818 (it says what is the case)
    """There is no Redis or Valkey server to start."""


class RedisProcess:
    """A server without persistence.

    Raises:
        NoRedis: there is no program of that name.
    """

    def __init__(self, directory: Path) -> None:
        found = shutil.which("redis-server") or shutil.which("valkey-server")
        if found is None:
            raise NoRedis("neither redis-server nor valkey-server is in PATH (apt-get install redis-server)")
        self._port = free_port()
        place = ["--port", str(self._port), "--bind", "127.0.0.1", "--dir", str(directory)]
        self._command = [found, *place, "--save", "", "--appendonly", "no", "--loglevel", "warning"]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """For a gateway's `shared.url`."""
        return f"redis://127.0.0.1:{self._port}/0"

    def start(self) -> None:
        """Start it, empty, and wait until it answers; raises FleetError."""
        process = self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)  # noqa: S603 (our own)
        deadline_s = time.monotonic() + READY_TIMEOUT_S
        while not self._answers():
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise FleetError("the Redis server does not answer")
            time.sleep(POLL_S)

    def hang(self) -> None:
        """From now on it takes connections and answers nothing."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)

    def kill(self) -> None:
        """End it, and all that it knew."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port), timeout=1.0) as line:
            line.sendall(b"PING\r\n")
            return line.recv(16).startswith(b"+PONG")
        return False


class ReplicaFleet:
    """Gateways that share a Redis, over the same workers.

    Args:
        directory: for settings and logs.
        stack: ends what was started.
    """

    def __init__(self, directory: Path, stack: contextlib.ExitStack) -> None:
        self._directory = directory
        self._stack = stack
        self.redis = RedisProcess(directory)
        stack.callback(self.redis.kill)
        self.redis.start()
        self._victim, self._workers = self._start_workers()
        self._ports = {f"gateway-{number}": free_port() for number in range(REPLICAS)}
        self._gateways = {name: self._launch(name) for name in self._ports}
        for name in self._ports:
            self._wait(name)

    @classmethod
    @contextlib.contextmanager
    def started(cls) -> Iterator[Self]:
        """A fleet, until the end.

        Raises:
            NoRedis: there is no server to start.
            FleetError: a part did not start.
        """
        with contextlib.ExitStack() as stack:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidegate-replicas-")))
            yield cls(directory, stack)

    @property
    def urls(self) -> Mapping[str, str]:
        """Of the gateways, by name."""
        return {name: f"http://127.0.0.1:{port}" for name, port in self._ports.items()}

    @property
    def model(self) -> str:
        """That all workers serve."""
        return DEFAULT_MODEL

    @property
    def victim(self) -> str:
        """The decode worker that has a process of its own."""
        return str(self._workers[-1]["name"])

    def kill_gateway(self, name: str) -> None:
        """As `kill -9` does; returns when it is gone."""
        _kill(self._gateways[name])

    def start_gateway(self, name: str) -> None:
        """A fresh one in the place of one that was killed; returns when it is ready. Raises FleetError."""
        self._gateways[name] = self._launch(name)
        self._wait(name)

    def kill_decoder(self) -> None:
        """The victim, as `kill -9` does; returns when it is gone."""
        _kill(self._victim)

    def _start_workers(self) -> tuple[subprocess.Popen[bytes], list[Mapping[str, Any]]]:
        prefillers = [_worker(f"prefill-{number}", Role.PREFILL) for number in range(PREFILLERS)]
        decoders = [_worker(f"decode-{number}", Role.DECODE) for number in range(DECODERS)]
        _, others = self._serve([*prefillers, *decoders[:-1]], "workers.log")
        process, last = self._serve(decoders[-1:], "victim.log")
        return process, [*others, *last]

    def _serve(
        self, configs: Sequence[WorkerConfig], log_name: str
    ) -> tuple[subprocess.Popen[bytes], list[Mapping[str, Any]]]:
        log = self._directory / log_name
        arguments = ["loadtest.worker", "--config-json", msgspec.json.encode(configs).decode()]
        process = self._stack.enter_context(running(arguments, log=log, pipe_output=True))
        return process, list(first_line(process, log)["workers"])

    def _launch(self, name: str) -> subprocess.Popen[bytes]:
        config = self._directory / f"{name}.yaml"
        config.write_text(yaml.safe_dump(self._settings(self._ports[name])))
        arguments = ["gateway", "serve", "--stop-with-stdin", "--config", str(config)]
        return self._stack.enter_context(running(arguments, log=self._log(name)))

    def _wait(self, name: str) -> None:
        wait_until_ready(self._gateways[name], f"{self.urls[name]}/readyz", self._log(name))

    def _log(self, name: str) -> Path:
        return self._directory / f"{name}.log"

    def _settings(self, port: int) -> dict[str, Any]:
        budget = load_engine(ENGINE)[0].max_batched_tokens
        return {
            "admin": {"port": None},
            "server": {"host": "127.0.0.1", "port": port},
            "routing": {"policy": "remote", "replicas": REPLICAS, "conversation": {"mode": "conserve"}},
            "shared": {"url": self.redis.url},
            "telemetry": {"request_log": False, "recent_decisions": 500},
            "workers": [
                {"id": each["name"], "url": each["url"], "role": each["role"], "max_batched_tokens": budget}
                for each in self._workers
            ],
        }


def _worker(name: str, role: Role) -> WorkerConfig:
    return WorkerConfig(
        name=name, role=role, engine=ENGINE, model=DEFAULT_MODEL, speed=SPEED, total_blocks=TOTAL_BLOCKS
    )


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
