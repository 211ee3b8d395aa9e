"""`python -m loadtest.plane.soak`: a million requests of every kind, with faults of workers; nothing may be left.

It starts an emulated fleet and a gateway. Memory after the last tenth must be that after the first within 2 %, and at
the end there may be no reservation, connection, file or thread more than before. Exit status 1 where something does
not hold, 2 where a part did not start.
"""

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from gateway.core.types import Role
from loadtest.fleet.processes import FleetError, first_line, running
from loadtest.plane.processes import end, open_files, rss_bytes, threads
from loadtest.plane.proxies import MODEL, MODES, Running, Worker, serving, tidegate
from loadtest.plane.soak_checks import Ending, Resources, soak_checks
from loadtest.plane.soaking import EmulatedWorker, Soak, Told
from loadtest.plane.state import GatewayState, settled
from loadtest.replicas.checks import check_lines
from loadtest.worker.config import WorkerConfig

REQUESTS = 1_000_000
MOST_WARM_UP = 20_000
ENGINE, SPEED = "h100-llama8b", 1000.0
ROLES = {"prefill-0": Role.PREFILL, "prefill-1": Role.PREFILL, "decode-0": Role.DECODE, "decode-1": Role.DECODE}
SETTLE_S = 60.0
"""Idle connections are closed after some seconds."""
SETTINGS: Mapping[str, Any] = {
    # What is remembered has its full size before memory is first looked at.
    "routing": {"policy": "remote", "index_blocks_per_worker": 500, "conversation": {"capacity": 500}},
    # Ejections end sooner than by default: this soaks a fleet that serves, not one that is away.
    "health": {"open_s": 0.5, "max_open_s": 1.0},
    "upstream": {"prefill": {"first_byte_timeout_s": 2.0}, "decode": {"first_byte_timeout_s": 2.0}},
}

Say = Callable[[str], None]


def main(argv: Sequence[str] | None = None) -> None:
    """Run, print, and exit with 1 where something does not hold."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.plane.soak", description=__doc__)
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--mode", choices=MODES, default=MODES[0], help="the gateway's data plane")
    parser.add_argument("--core", type=int, default=0, help="the gateway's")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that what was started is ended too
    began_s = time.monotonic()

    def said(words: str) -> None:
        print(f"{time.monotonic() - began_s:7.1f} s  {words}", flush=True)

    try:
        told, ending = play(arguments.requests, mode=arguments.mode, core=arguments.core, seed=arguments.seed, say=said)
    except FleetError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        sys.exit(2)
    found = soak_checks(told, ending, requests=arguments.requests)
    print("outcomes: " + ", ".join(f"{name} {count:,}" for name, count in told.outcomes.most_common()))
    print(*check_lines(found), sep="\n")
    sys.exit(not all(check.holds for check in found))


def play(requests: int, *, mode: str, core: int, seed: int, say: Say) -> tuple[Told, Ending]:
    """Warm up, send all, and look at what is left; raises FleetError."""
    with tempfile.TemporaryDirectory(prefix="tidegate-soak-") as name, _workers(Path(name)) as workers:
        proxy = tidegate([one for one, _ in workers], Path(name), mode=mode, settings=_settings(Path(name)))
        emulated = [each for _, each in workers]
        with ExitStack() as stack:
            gateway = stack.enter_context(serving(proxy, Path(name), core=core))
            warm_up = min(MOST_WARM_UP, requests)
            _soak(gateway, emulated, warm_up, seed + 1, lambda _: None)
            _settle(gateway)
            before = _resources(gateway)
            say(f"{warm_up:,} requests to warm up")
            told = _soak(gateway, emulated, requests, seed, say)
            state = _settle(gateway)
            after = _resources(gateway)
            stop_s = _stop_s(gateway)
            ending = Ending(
                state=state,
                before=before,
                after=after,
                stop_s=stop_s,
                exit_status=gateway.process.returncode,
                log=gateway.log.read_text(errors="replace"),
                workers=len(workers),
            )
    return told, ending


def _soak(gateway: Running, workers: Sequence[EmulatedWorker], requests: int, seed: int, say: Say) -> Told:
    soak = Soak(gateway.proxy.url, workers, requests=requests, memory_bytes=lambda: rss_bytes(gateway.pid), seed=seed)
    return uvloop.run(soak.run(say))


def _settle(gateway: Running) -> GatewayState:
    return settled(gateway.proxy.url, lambda state: state.is_empty and not state.connections, within_s=SETTLE_S)


def _resources(gateway: Running) -> Resources:
    return Resources(files=open_files(gateway.pid), threads=threads(gateway.pid))


def _stop_s(gateway: Running) -> float:
    """How long the gateway takes to stop: a task of a request that was left would hold it up."""
    began_s = time.monotonic()
    end(gateway.process)
    return time.monotonic() - began_s


def _settings(directory: Path) -> dict[str, Any]:
    log = {"decision_log": str(directory / "decisions.jsonl"), "decision_log_max_bytes": 2**24, "decision_log_files": 1}
    return {**SETTINGS, "telemetry": {**log, "recent_decisions": 500, "request_log": False}}


@contextmanager
def _workers(directory: Path) -> Iterator[list[tuple[Worker, EmulatedWorker]]]:
    configs = [
        WorkerConfig(name=name, role=role, engine=ENGINE, model=MODEL, speed=SPEED) for name, role in ROLES.items()
    ]
    log = directory / "workers.log"
    arguments = ["loadtest.worker", "--config-json", msgspec.json.encode(configs).decode()]
    with running(arguments, log=log, pipe_output=True) as process:
        told = first_line(process, log)["workers"]
        yield [
            (
                Worker(name=one["name"], role=Role(one["role"]), port=one["port"]),
                EmulatedWorker(name=one["name"], url=one["url"]),
            )
            for one in told
        ]


if __name__ == "__main__":
    main()
