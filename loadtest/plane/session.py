"""One run of the benchmark, from compiling to the report.

The rule of this module: it puts the parts together and decides nothing. Whatever is started is started and ended here.
"""

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from gateway.core.types import Role
from loadtest.fleet.fleet import free_port
from loadtest.fleet.processes import wait_until_ready
from loadtest.plane.building import TAIL_VARIABLE, Programs, Skipped, build, hand_over_tail
from loadtest.plane.claims import PAIR, SINGLE
from loadtest.plane.hand_over import measure_hand_overs, timed_pair
from loadtest.plane.measuring import REST_S, Bench, Say, measure_cpu, measure_latency, measure_memory, warm_up
from loadtest.plane.processes import pinned
from loadtest.plane.profiling import end_profile, start_profile
from loadtest.plane.proxies import (
    ALWAYS_REMOTE,
    Proxy,
    Running,
    Worker,
    name_of,
    nginx,
    serving,
    tidegate,
    vllm_router,
)
from loadtest.plane.results import HandOver, MemorySample, Report, Sample
from loadtest.plane.rivals import NGINX, VLLM_ROUTER, NotToBeHad, find
from loadtest.plane.scenarios import LATENCY, MEMORY, MEMORY_STREAMS, scenarios_named

HAND_OVER = "hand-over"
"""The name of the remote path's gap among scenarios; it belongs to the pair of workers."""
LEAST_PROFILE_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to run."""

    bench: Path
    cache: Path
    fleets: Sequence[str]
    scenarios: Sequence[str]
    ours: Sequence[str]
    against: Sequence[str]
    rounds: int
    seconds: float
    hand_overs: int
    proxy_core: int
    load_core: int
    profile: Path | None
    profile_of: str
    """The name of the scenario that is looked at."""


@dataclass(slots=True)
class _Found:
    """What has been measured so far."""

    skipped: list[str] = field(default_factory=list)
    proxies: dict[str, None] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    memory: list[MemorySample] = field(default_factory=list)
    hand_overs: list[HandOver] = field(default_factory=list)


def play(options: Options, say: Say) -> Report:
    """Run everything.

    Raises:
        Skipped: what it cannot do without is not here.
        BuildError, FleetError, LoadError, HandOverError: a part failed, and how.
    """
    with tempfile.TemporaryDirectory(prefix="tidegate-plane-") as name:
        directory = Path(name)
        programs = build(options.bench, directory)
        found = _Found()
        rivals = _rivals(options, found, say)
        # Beside the load: this process would otherwise run now and then where the proxy does.
        os.sched_setaffinity(0, {options.load_core})
        for fleet in options.fleets:
            _play_fleet(options, fleet, programs, rivals, directory, found, say)
    return Report(
        rounds=options.rounds,
        seconds=options.seconds,
        proxies=list(found.proxies),
        ours=[name_of(mode) for mode in options.ours],
        skipped=found.skipped,
        samples=found.samples,
        memory=found.memory,
        hand_overs=found.hand_overs,
    )


def _rivals(options: Options, found: _Found, say: Say) -> dict[str, Path]:
    rivals = {}
    for name in options.against:
        try:
            rivals[name] = find(name, options.cache)
        except NotToBeHad as error:
            found.skipped.append(str(error))
            say(f"skipped: {error}")
    return rivals


def _play_fleet(
    options: Options,
    fleet: str,
    programs: Programs,
    rivals: dict[str, Path],
    directory: Path,
    found: _Found,
    say: Say,
) -> None:
    place = directory / fleet
    place.mkdir()
    with _mocks(programs, fleet, place, core=options.load_core) as workers:
        proxies = _proxies(options, fleet, workers, rivals, place)
        found.proxies.update((proxy.name, None) for proxy in proxies)
        bench = _bench(options, fleet, programs, workers[-1].port)
        _play_loads(options, bench, proxies, place, found, say)
        if MEMORY in options.scenarios and fleet == SINGLE:
            for streams in MEMORY_STREAMS:
                found.memory += measure_memory(bench, proxies, streams, place, say)
    if fleet == PAIR and HAND_OVER in options.scenarios:
        found.hand_overs += _hand_overs(options, rivals, place, say)


def _play_loads(options: Options, bench: Bench, proxies: Sequence[Proxy], place: Path, found: _Found, say: Say) -> None:
    scenarios = scenarios_named(options.scenarios)
    if not scenarios and LATENCY.name not in options.scenarios and options.profile is None:
        return
    with ExitStack() as stack:
        running = [stack.enter_context(serving(proxy, place, core=options.proxy_core)) for proxy in proxies]
        for each in running:
            warm_up(bench, each)
        for scenario in scenarios:
            found.samples += measure_cpu(bench, scenario, running, say)
        if LATENCY.name in options.scenarios:
            found.samples += measure_latency(bench, running, say)
        if options.profile is not None and bench.fleet == options.fleets[0]:
            _profile(options.profile, options.profile_of, bench, running[0], found, say)


def _profile(file: Path, scenario_name: str, bench: Bench, running: Running, found: _Found, say: Say) -> None:
    (scenario,) = scenarios_named([scenario_name])
    seconds = max(bench.seconds, LEAST_PROFILE_S)
    try:
        looking = start_profile(running.pid, file, seconds)
        time.sleep(REST_S)
        bench.load(scenario, running.proxy.port, seconds)
        end_profile(looking, file)
        say(f"profile of {running.proxy.name}, {scenario_name}: {file}")
    except Skipped as error:
        found.skipped.append(str(error))
        say(f"skipped: {error}")


def _hand_overs(options: Options, rivals: dict[str, Path], place: Path, say: Say) -> Iterator[HandOver]:
    """Each proxy alone in front of the timed pair."""
    with timed_pair() as pair:
        workers = [each.worker for each in pair]
        for proxy in _proxies(options, PAIR, workers, rivals, place):
            with serving(proxy, place, core=options.proxy_core):
                one = measure_hand_overs(
                    proxy.name, proxy.port, pair, requests=options.hand_overs, echo_core=options.proxy_core
                )
            say(f"{HAND_OVER} {proxy.name}: {len(one.gaps_us)} gaps")
            yield one


def _proxies(
    options: Options, fleet: str, workers: Sequence[Worker], rivals: dict[str, Path], place: Path
) -> list[Proxy]:
    settings = ALWAYS_REMOTE if fleet == PAIR else None
    proxies = [tidegate(workers, place, mode=mode, settings=settings) for mode in options.ours]
    if VLLM_ROUTER in rivals:
        proxies.append(vllm_router(rivals[VLLM_ROUTER], workers))
    if NGINX in rivals and fleet == SINGLE:  # it knows nothing of prefill and decode
        proxies.append(nginx(rivals[NGINX], workers, place))
    return proxies


def _bench(options: Options, fleet: str, programs: Programs, direct_port: int) -> Bench:
    return Bench(
        programs=programs,
        fleet=fleet,
        direct_port=direct_port,
        proxy_core=options.proxy_core,
        load_core=options.load_core,
        seconds=options.seconds,
        rounds=options.rounds,
    )


@contextmanager
def _mocks(programs: Programs, fleet: str, place: Path, *, core: int) -> Iterator[list[Worker]]:
    """The workers, on the load's core; the last one is the one that answers."""
    roles = {"worker-0": Role.BOTH} if fleet == SINGLE else {"prefill-0": Role.PREFILL, "decode-0": Role.DECODE}
    workers = [Worker(name=name, role=role, port=free_port()) for name, role in roles.items()]
    with ExitStack() as stack:
        for worker in workers:
            log = place / f"{worker.name}.log"
            environment = {TAIL_VARIABLE: hand_over_tail()} if worker.role is Role.PREFILL else None
            command = (str(programs.mock), str(worker.port))
            process = stack.enter_context(pinned(command, core=core, log=log, environment=environment))
            wait_until_ready(process, f"{worker.url}/health", log)
        yield workers
