"""Loads on proxies, and what they cost.

The rule of this module: rounds are interleaved, A B A B, load by load, so that whatever else the machine does falls on
all alike. Only one proxy at a time is under load. A proxy's CPU time is read right before and right after.
"""

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from loadtest.plane.building import Programs
from loadtest.plane.processes import cpu_ns, end, pinned_command, rss_bytes
from loadtest.plane.proxies import Proxy, Running, serving
from loadtest.plane.results import DIRECT, MemorySample, Sample
from loadtest.plane.scenarios import BURST, LATENCY, PLAIN, Scenario, Unit, memory_options, ramp_s

NANOS_PER_MICRO = 1e3
DRAIN_S = 60.0
"""How much longer than asked for a load may last; it waits for its streams by itself."""
WARM_UP_S = 1.5
REST_S = 0.3
"""Between two loads: what the last one left behind is done then."""
HOLD_S = 3.0
"""All streams are there and have had their first events."""
LEAVING_S = 2.0

Say = Callable[[str], None]


class LoadError(RuntimeError):
    """The load generator gave up, and what it said."""


class LoadResult(msgspec.Struct, frozen=True, kw_only=True):
    """What the load generator prints, as far as it is used; latencies in microseconds, -1 where there are none."""

    ok: int
    err: int
    el: float
    ev: int
    lat50: float
    lat99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Where and how long loads run."""

    programs: Programs
    fleet: str
    direct_port: int
    """The worker's that answers."""
    proxy_core: int
    load_core: int
    seconds: float
    rounds: int

    def load(self, scenario: Scenario, port: int, seconds: float | None = None) -> LoadResult:
        """One load; raises LoadError."""
        seconds = max(seconds or self.seconds, scenario.least_seconds)
        command = [str(self.programs.load), "-p", str(port), "-d", f"{seconds:g}", *scenario.options]
        return run_load(pinned_command(command, self.load_core), scenario, seconds)


def run_load(command: Sequence[str], scenario: Scenario, seconds: float) -> LoadResult:
    """Run a load to its end; raises LoadError."""
    try:
        done = subprocess.run(  # noqa: S603 (our own program)
            command,
            env={**os.environ, **scenario.environment},
            capture_output=True,
            check=True,
            timeout=seconds + DRAIN_S,
        )
        return msgspec.json.decode(done.stdout, type=LoadResult)
    except subprocess.TimeoutExpired:
        raise LoadError(f"{scenario.name}: the load did not end within {seconds + DRAIN_S:.0f} s") from None
    except (subprocess.CalledProcessError, msgspec.MsgspecError) as error:
        said = getattr(error, "stderr", b"") or b""
        raise LoadError(f"{scenario.name}: {said.decode(errors='replace').strip() or error}") from None


def warm_up(bench: Bench, running: Running) -> None:
    """Let a proxy open its connections and fill its caches; raises LoadError."""
    for scenario in (PLAIN, BURST):
        bench.load(scenario, running.proxy.port, WARM_UP_S)


def measure_cpu(bench: Bench, scenario: Scenario, proxies: Sequence[Running], say: Say) -> Iterator[Sample]:
    """All rounds of one scenario; raises LoadError."""
    for number in range(1, bench.rounds + 1):
        for running in proxies:
            time.sleep(REST_S)
            before_ns = cpu_ns(running.pid)
            result = bench.load(scenario, running.proxy.port)
            spent_ns = cpu_ns(running.pid) - before_ns
            if running.process.poll() is not None:
                raise LoadError(f"{scenario.name}: {running.proxy.name} ended with {running.process.returncode}")
            sample = sample_of(bench.fleet, scenario, running.proxy.name, number, result, spent_ns)
            say(_words(sample, scenario))
            yield sample


def measure_latency(bench: Bench, proxies: Sequence[Running], say: Say) -> Iterator[Sample]:
    """All rounds at a low rate, each beginning without a proxy; raises LoadError."""
    ports = [(DIRECT, bench.direct_port), *((each.proxy.name, each.proxy.port) for each in proxies)]
    for number in range(1, bench.rounds + 1):
        for name, port in ports:
            time.sleep(REST_S)
            sample = sample_of(bench.fleet, LATENCY, name, number, bench.load(LATENCY, port), None)
            say(f"{LATENCY.name} {number} {name}: P50 {sample.p50_us or 0.0:.0f} us, {sample.failed} failed")
            yield sample


def measure_memory(
    bench: Bench, proxies: Sequence[Proxy], streams: int, directory: Path, say: Say
) -> Iterator[MemorySample]:
    """What streams take in a fresh process that has served others; raises LoadError and FleetError."""
    for number in range(1, bench.rounds + 1):
        for proxy in proxies:
            with serving(proxy, directory, core=bench.proxy_core) as running:
                warm_up(bench, running)
                time.sleep(LEAVING_S)
                before = rss_bytes(running.pid)
                grown = _grown_to(bench, running, streams) - before
            sample = MemorySample(
                fleet=bench.fleet,
                proxy=proxy.name,
                round=number,
                streams=streams,
                bytes_per_stream=grown / streams,
            )
            say(f"memory {number} {proxy.name}: {sample.bytes_per_stream / 1024:.1f} KB for each of {streams} streams")
            yield sample


def _grown_to(bench: Bench, running: Running, streams: int) -> int:
    """Resident memory while so many streams are open."""
    command = [str(bench.programs.load), "-p", str(running.proxy.port), *memory_options(streams)]
    load = subprocess.Popen(  # noqa: S603 (our own program)
        pinned_command(command, bench.load_core),
        env={**os.environ, **BURST.environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        time.sleep(ramp_s(streams) + HOLD_S)
        if load.poll() is not None:
            raise LoadError(f"memory: the load ended early with {load.returncode}")
        return rss_bytes(running.pid)
    finally:
        end(load)


def sample_of(
    fleet: str, scenario: Scenario, proxy: str, number: int, result: LoadResult, spent_ns: int | None
) -> Sample:
    """A load's result and what it cost."""
    units = result.ok if scenario.unit is Unit.REQUEST else result.ev
    return Sample(
        fleet=fleet,
        scenario=scenario.name,
        proxy=proxy,
        round=number,
        done=result.ok,
        failed=result.err,
        units=units,
        cpu_us=None if spent_ns is None or not units else spent_ns / NANOS_PER_MICRO / units,
        per_s=units / result.el,
        p50_us=result.lat50 if result.lat50 >= 0.0 else None,
        p99_us=result.lat99 if result.lat99 >= 0.0 else None,
    )


def _words(sample: Sample, scenario: Scenario) -> str:
    cost = "nothing came" if sample.cpu_us is None else f"{sample.cpu_us:.1f} CPU us per {scenario.unit}"
    return f"{scenario.name} {sample.round} {sample.proxy}: {cost}, {sample.per_s:,.0f}/s, {sample.failed} failed"
