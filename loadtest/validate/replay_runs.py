"""One trace through Dynamo's replay and through our simulator with Dynamo's rules.

The rule of this module: both get the same arrivals, the file's own, in the file's order; nothing is compared here.
"""

import gzip
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

import msgspec

from loadtest.engine.engine import Engine
from loadtest.simulator.dynamo import SPEC, KvRouter, ReplayCosts, RoundRobin
from loadtest.simulator.host import Simulation
from loadtest.traces.loaders import load_workload
from loadtest.traces.workload import Workload

DRIVER = Path(__file__).with_name("replay_driver.py")
ROUND_ROBIN = "round_robin"
KV_ROUTER = "kv_router"
TIMEOUT_S = 900.0


class ReplayError(Exception):
    """Dynamo's replay did not run; the message has its last words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """A fleet and a way to place requests."""

    prefill: int
    decode: int
    router: str

    @property
    def name(self) -> str:
        """The fleet, as in `2P2D` or `8 aggregated`."""
        return f"{self.prefill}P{self.decode}D" if self.prefill else f"{self.decode} aggregated"


class Latencies(msgspec.Struct, frozen=True, kw_only=True):
    """What one run gave."""

    took_s: float
    """Reading the trace included."""
    ttft_ms: list[float]
    tpot_ms: list[float]

    def percentile(self, metric: str, share: float) -> float:
        """Of `ttft` or `tpot`, as the replay counts: the value at the nearest rank, halves up."""
        values = sorted(self.ttft_ms if metric == "ttft" else self.tpot_ms)
        return values[int((len(values) - 1) * share + 0.5)]


def run_dynamo(python: Path, trace: Path, setup: Setup) -> Latencies:
    """Dynamo's replay, in a process of its own.

    Raises:
        ReplayError: it failed.
    """
    command = [str(python), str(DRIVER), str(trace), str(setup.prefill), str(setup.decode), setup.router]
    environment = {**os.environ, "DYN_LOG": "error"}
    done = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, env=environment, check=False)  # noqa: S603
    if done.returncode:
        raise ReplayError(done.stderr.decode(errors="replace")[-500:])
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Latencies)


def run_ours(trace: Path, setup: Setup, *, seed: int = 0) -> Latencies:
    """Our simulator with an engine that follows the replay's rules."""
    began = time.perf_counter()
    workload = load_workload(f"mooncake:{trace}?jitter=0")
    return _simulate(workload, setup, seed, began)


def _simulate(workload: Workload, setup: Setup, seed: int, began: float) -> Latencies:
    costs = ReplayCosts(SPEC.total_blocks * SPEC.block_tokens)
    engines = [Engine(SPEC, costs, tells_every_token=False) for _ in range(setup.prefill + setup.decode)]
    prefill, decode = range(setup.prefill), range(setup.prefill, len(engines))
    place = (
        RoundRobin(prefill, decode) if setup.router == ROUND_ROBIN else KvRouter(engines, prefill, decode, Random(seed))  # noqa: S311 (not a secret)
    )
    flights = Simulation(engines, place, workload.driver()).run().flights
    took_s = time.perf_counter() - began
    return Latencies(
        took_s=took_s,
        ttft_ms=[flight.ttft_s * 1e3 for flight in flights if flight.ttft_s is not None],
        tpot_ms=[tpot_s * 1e3 for flight in flights if (tpot_s := flight.tpot_s) is not None],
    )


@contextmanager
def unpacked(trace: Path) -> Iterator[Path]:
    """The trace as plain text, which is all that the replay reads."""
    with tempfile.TemporaryDirectory(prefix="tidegate-replay-") as directory:
        plain = Path(directory) / "trace.jsonl"
        with gzip.open(trace) as packed, plain.open("wb") as file:
            shutil.copyfileobj(packed, file)
        yield plain


@cache
def has_dynamo(python: Path) -> bool:
    """Whether that Python can import Dynamo's replay."""
    probe: Sequence[str] = (str(python), "-c", "import dynamo.replay")
    try:
        return subprocess.run(probe, capture_output=True, timeout=60, check=False).returncode == 0  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return False
