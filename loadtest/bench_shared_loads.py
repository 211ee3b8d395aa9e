"""`python -m loadtest.bench_shared_loads`: what gateways that tell each other their loads cost one Redis.

The rule of this module: the gateway's own script on a real server, which nothing else uses, called by made-up gateways
one after the other, as far apart in what they are told as they would be in time. CPU is that of the server's one
thread, so what else the machine does changes little. Needs `redis-server`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from redis import Redis
from rich.console import Console
from rich.table import Table

from loadtest.replicas.fleet import RedisProcess

SCRIPT = files("gateway").joinpath("fleet/shared/loads.lua")
KEYS = [f"{{bench}}:loads:{name}" for name in ("log", "whole", "marks", "alive", "state")]
GATEWAYS = (10, 30, 100, 200)
WORKERS = 1000
REQUESTS_PER_S = 1000.0
CHANGES = 5
"""Loads at workers that a request changes from its beginning to its end."""
SECONDS_IN_FLIGHT = 8.0
LOAD_S, LEAST_S_PER_GATEWAY = 0.025, 0.00025
"""As `gateway.fleet.shared.loads` has them."""
LOG_BYTES, WHOLE_BYTES = 1 << 20, 1 << 18
"""As `gateway.fleet.shared.loads_server` has them."""
GONE_MS = 600_000
ROUNDS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """So many gateways."""

    gateways: int
    interval_s: float
    calls: int
    script_us: float
    """Of a call in the server, by its own clock."""
    cpu_us: float
    """Of the server's thread for a call, reading and writing included."""
    heard_bytes: float
    """That a call returns."""

    @property
    def core_share(self) -> float:
        """Of one core of the server."""
        return self.cpu_us * 1e-6 * self.gateways / self.interval_s


class _Gateway:
    """Tells made-up loads."""

    def __init__(self, number: int, client: Redis, rng: Random, changes: float, workers: int) -> None:
        self._name = f"{number:016x}"
        self._client = client
        self._script = client.register_script(SCRIPT.read_text(encoding="utf-8"))
        self._rng, self._changes = rng, changes
        # What it has anywhere, as lines: workers have names as in a cluster.
        self._lines = [
            f"3 4096 24576 1 8192 decode-{number:04d}.workers.inference.svc:8000\n" for number in range(workers)
        ]
        self._epoch, self._number, self._whole_at = "", 0, 0

    def call(self) -> int:
        """One call; the bytes that it heard."""
        is_due = not self._number or self._number - self._whole_at > WHOLE_BYTES
        whole = f"={self._name}\n{''.join(self._lines)}" if is_due else ""
        count = int(self._changes) + (self._rng.random() < self._changes % 1)
        changed = "".join(self._rng.choices(self._lines, k=count))
        text = f"+{self._name}\n{changed}" if changed else ""
        args: list[str | int] = [self._name, GONE_MS, self._epoch, self._number, text, whole, LOG_BYTES]
        known, self._number, _, texts = self._script(keys=KEYS, args=args)
        self._epoch = known.decode()
        if is_due:
            self._whole_at = self._number
        return sum(map(len, texts))


def measure(server: RedisProcess, gateways: int, *, rounds: int = ROUNDS) -> Measured:
    """Call in turn, `rounds` times each, after all have joined and the log has been cut."""
    interval_s = max(LOAD_S, LEAST_S_PER_GATEWAY * gateways)
    per_gateway = REQUESTS_PER_S / gateways
    busy = min(WORKERS, round(per_gateway * SECONDS_IN_FLIGHT * 2))
    rng = Random(1)  # noqa: S311 (not a secret)
    with Redis.from_url(server.url, protocol=2) as client:
        client.flushall()
        callers = [
            _Gateway(number, client, rng, per_gateway * interval_s * CHANGES, busy) for number in range(gateways)
        ]
        for _ in range(rounds):
            for caller in callers:
                caller.call()
        client.config_resetstat()
        before_s = _cpu_s(client)
        heard = sum(caller.call() for _ in range(rounds) for caller in callers)
        calls, script_us = rounds * gateways, _script_us(client)
        cpu_us = (_cpu_s(client) - before_s) / calls * 1e6
    return Measured(
        gateways=gateways,
        interval_s=interval_s,
        calls=calls,
        script_us=script_us,
        cpu_us=cpu_us,
        heard_bytes=heard / calls,
    )


def table(found: Iterator[Measured]) -> Table:
    """A line for each number of gateways."""
    shown = Table(title=f"{WORKERS} workers, {REQUESTS_PER_S:.0f} requests/s", caption="CPU of the server's one thread")
    for heading in ("gateways", "told every", "script", "CPU a call", "heard a call", "of one core"):
        shown.add_column(heading, justify="right")
    for one in found:
        shown.add_row(
            str(one.gateways),
            f"{one.interval_s * 1e3:.0f} ms",
            f"{one.script_us:.0f} µs",
            f"{one.cpu_us:.0f} µs",
            f"{one.heard_bytes / 1e3:.1f} kB",
            f"{one.core_share:.1%}",
        )
    return shown


def main() -> None:
    """Measure and print."""
    with TemporaryDirectory(prefix="tidegate-bench-") as folder:
        server = RedisProcess(Path(folder))
        try:
            server.start()
            Console().print(table(measure(server, gateways) for gateways in GATEWAYS))
        finally:
            server.kill()


def _cpu_s(client: Redis) -> float:
    info: Any = client.info("cpu")
    return float(info["used_cpu_user_main_thread"] + info["used_cpu_sys_main_thread"])


def _script_us(client: Redis) -> float:
    stats: Any = client.info("commandstats")
    return float(stats["cmdstat_evalsha"]["usec_per_call"])


if __name__ == "__main__":
    main()
