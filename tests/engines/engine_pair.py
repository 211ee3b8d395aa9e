"""A prefill and a decode worker of real vLLM on loopback: found or started, killed and started again.

The rule of this module: only processes that this check started (their ids are in its run folder) are ever ended, each
by its own id with its own group.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx

START_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 30.0
POLL_S = 0.5
DEFAULT_ENGINES_DIR = Path.home() / ".cache" / "tidegate-engines"


class EnginesAbsentError(Exception):
    """There are no engines on this machine, and which part is missing."""


class EngineError(RuntimeError):
    """A worker did not start or did not stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines:
    """Where the engines are installed, and the script that starts them."""

    home: Path
    script: Path
    model: Path
    run: Path
    """For the workers' logs and process ids."""

    @classmethod
    def find(cls, model: str) -> "Engines":
        """Look under ENGINES_DIR and TIDEGATE_SHARED; raises EnginesAbsentError with what is missing."""
        home = Path(os.environ.get("ENGINES_DIR", DEFAULT_ENGINES_DIR))
        shared = Path(os.environ.get("TIDEGATE_SHARED", Path(__file__).parents[3] / "shared"))
        engines = cls(
            home=home,
            script=shared / "engines" / "start_real_workers.sh",
            model=home / "models" / model,
            run=Path(os.environ.get("RUN", home / "run-check")),
        )
        for path in (engines.script, home / "venv-vllm" / "bin" / "vllm", engines.model):
            if not path.exists():
                raise EnginesAbsentError(f"{path} does not exist (set ENGINES_DIR and TIDEGATE_SHARED)")
        return engines


@dataclass(slots=True)
class Worker:
    """One vLLM server; without a `pid` it is somebody else's."""

    name: str
    port: int
    log: Path
    pid_file: Path
    pid: int | None = None
    _arguments: list[str] = field(default_factory=list)
    _environment: dict[str, str] = field(default_factory=dict)
    _child: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Its base URL."""
        return f"http://127.0.0.1:{self.port}"

    def adopt(self) -> None:
        """Take over a process that the script started in our run folder, if it lives."""
        with contextlib.suppress(OSError, ValueError):
            pid = int(self.pid_file.read_text())
            arguments = _proc_strings(pid, "cmdline")
            if str(self.port) in arguments:
                self.pid, self._arguments = pid, arguments
                self._environment = dict(pair.split("=", 1) for pair in _proc_strings(pid, "environ") if "=" in pair)

    def kill(self) -> None:
        """SIGKILL to the server and its engine processes, as a lost machine would end them."""
        assert self.pid is not None
        os.killpg(self.pid, signal.SIGKILL)
        self._wait_gone()

    def keep_to_core(self, core: int) -> None:
        """Run all its processes on one core: an idle engine polls with two threads, and would take turns with others.

        Linux only, and threads that it starts later do the same.
        """
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it may have ended
                if os.getpgid(int(process.name)) == self.pid:
                    for thread in process.glob("task/[0-9]*"):
                        os.sched_setaffinity(int(thread.name), {core})

    def start_again(self) -> None:
        """Start the killed worker as it was started first, and wait until it is healthy."""
        if not self._is_gone():
            raise EngineError(f"{self.name} (process {self.pid}) was not killed")
        with self.log.open("ab") as output:
            self._child = subprocess.Popen(
                self._arguments,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.pid = self._child.pid
        self.pid_file.write_text(f"{self.pid}\n")
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not self.is_healthy():
            if self._is_gone() or time.monotonic() > deadline_s:
                raise EngineError(f"{self.name} did not start again; see {self.log}")
            time.sleep(POLL_S)

    def stop(self) -> None:
        """End a worker of ours, gently at first."""
        if self.pid is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGINT)
            with contextlib.suppress(EngineError):
                self._wait_gone()
            os.killpg(self.pid, signal.SIGKILL)
        self.pid_file.unlink(missing_ok=True)

    def is_healthy(self) -> bool:
        """Whether /health answers 200."""
        try:
            return httpx.get(f"{self.url}/health", timeout=5.0, trust_env=False).is_success
        except httpx.HTTPError:
            return False

    def _wait_gone(self) -> None:
        deadline_s = time.monotonic() + STOP_TIMEOUT_S
        while not self._is_gone():
            if time.monotonic() > deadline_s:
                raise EngineError(f"{self.name} (process {self.pid}) did not end")
            time.sleep(POLL_S)

    def _is_gone(self) -> bool:
        if self._child is not None and self._child.pid == self.pid:
            return self._child.poll() is not None
        try:
            state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        return state in "ZX"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Both workers."""

    prefill: Worker
    decode: Worker
    model: str
    """The name that both serve it by."""

    @property
    def workers(self) -> tuple[Worker, Worker]:
        """Both."""
        return self.prefill, self.decode

    @property
    def is_ours(self) -> bool:
        """Whether this check started both, and so may kill them."""
        return all(worker.pid is not None for worker in self.workers)


@contextlib.contextmanager
def running_pair(engines: Engines, *, keep: bool) -> Iterator[Pair]:
    """The pair on P_PORT and D_PORT (8101 and 8102): found healthy, or started.

    It is stopped at the end where it is ours, unless `keep` leaves it to the next run.
    """
    run = engines.run
    run.mkdir(parents=True, exist_ok=True)
    prefill, decode = (
        Worker(name, int(os.environ.get(f"{name}_PORT", port)), run / f"{name}.log", run / f"{name}.pid")
        for name, port in (("P", "8101"), ("D", "8102"))
    )
    pair = Pair(prefill=prefill, decode=decode, model=engines.model.name)
    try:
        if not all(worker.is_healthy() for worker in pair.workers):
            _start(engines)
        for worker in pair.workers:
            worker.adopt()
            _must_serve(worker, pair.model)
        yield pair
    finally:
        if not keep:
            for worker in pair.workers:
                worker.adopt()
                worker.stop()


def _start(engines: Engines) -> None:
    environment = {
        **os.environ,
        "ENGINES_DIR": str(engines.home),
        "RUN": str(engines.run),
        "MODEL": str(engines.model),
        "NAME": engines.model.name,
        "WAIT": f"{START_TIMEOUT_S:.0f}",
    }
    with (engines.run / "start.log").open("ab") as output:
        script = subprocess.run([engines.script], env=environment, stdout=output, stderr=output, check=False)
    if script.returncode != 0:
        raise EngineError(f"{engines.script} failed; see {engines.run}/start.log")


def _must_serve(worker: Worker, model: str) -> None:
    page = httpx.get(f"{worker.url}/v1/models", timeout=30.0, trust_env=False).json()
    served = [card["id"] for card in page["data"]]
    if model not in served:
        raise EngineError(f"{worker.name} at {worker.url} serves {served}, not {model}")


def _proc_strings(pid: int, name: str) -> list[str]:
    return Path(f"/proc/{pid}/{name}").read_bytes().decode().split("\0")[:-1]
