"""`python -m loadtest.simulator.bench`: what a simulated request costs, from small fleets to large ones.

Every case runs in a process of its own, so that its memory is its own, and workers have the same load in all of them.
A request of the largest fleet may cost at most twice as much as one of the cheapest, and 100,000 requests at most a
minute of one core. Seconds are CPU seconds: they do not depend on what else the machine does, as far as that can be.
"""

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from resource import RUSAGE_SELF, getrusage
from time import process_time
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Column, Table

from loadtest.engine.presets import UnknownEngine
from loadtest.fleet.pools import parse_pools
from loadtest.simulator.scenario import Scenario, run_workload
from loadtest.traces.loaders import load_workload
from loadtest.traces.types import TraceError

FLEETS = ("1P1D", "2P2D", "2P6D", "4P12D", "8P24D")
ENGINES = ("h100-llama8b", "h100-llama70b-tp4")
TRACE = "synthetic:mooncake"
REQUESTS = 20_000
RATE_PER_WORKER_RPS = 0.15
"""Low enough for every fleet to keep up with prompts of the Mooncake trace's lengths, whatever its share of prefill."""
GROWTH_BOUND = 2.0
REQUEST_BOUND_S = 60.0 / 100_000
KIB = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One fleet under load."""

    fleet: str
    engine: str
    trace: str
    policy: str
    requests: int
    rate_per_worker_rps: float

    @property
    def workers(self) -> int:
        """How many the fleet has."""
        return len(parse_pools(self.fleet).roles())


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a case took."""

    case: Case
    cpu_s: float
    """Of the run, without loading the trace."""
    events: int
    simulated_s: float
    ended_well: int
    peak_memory_mib: float
    """Of the process, trace and records included."""

    @property
    def request_s(self) -> float:
        """CPU seconds per request."""
        return self.cpu_s / self.case.requests


def measure(case: Case) -> Cost:
    """Run a case in this process.

    Raises:
        TraceError: the trace cannot be read.
        UnknownEngine: no such engine.
    """
    spec = f"{case.trace}{'&' if '?' in case.trace else '?'}rate={case.rate_per_worker_rps * case.workers:g}"
    workload = load_workload(spec, limit=case.requests)
    scenario = Scenario(trace=spec, pools=parse_pools(case.fleet), engine=case.engine, policy=case.policy)
    began_s = process_time()
    run = run_workload(scenario, workload, seed=0)
    return Cost(
        case=case,
        cpu_s=process_time() - began_s,
        events=run.events,
        simulated_s=run.simulated_s,
        ended_well=sum(record.ok for record in run.records),
        peak_memory_mib=getrusage(RUSAGE_SELF).ru_maxrss / KIB,
    )


def measure_apart(case: Case) -> Cost:
    """Run a case in a new process."""
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as pool:
        return pool.submit(measure, case).result()


def growth(costs: Sequence[Cost], engine: str) -> float:
    """How many times as much as on the cheapest fleet a request costs on the dearest."""
    each = [cost.request_s for cost in costs if cost.case.engine == engine]
    return max(each) / min(each)


def cost_table(costs: Sequence[Cost]) -> Table:
    """All cases as a table."""
    case = costs[0].case
    title = f"{case.trace}, {case.rate_per_worker_rps:g} requests/s per worker, policy {case.policy}"
    right = ("requests", "events", "simulated, s", "CPU, s", "µs/request", "peak, MiB")
    table = Table("fleet", "engine", *(Column(name, justify="right") for name in right), title=title)
    for cost in costs:
        table.add_row(
            cost.case.fleet,
            cost.case.engine,
            f"{cost.ended_well:,}/{cost.case.requests:,}",
            f"{cost.events:,}",
            f"{cost.simulated_s:,.0f}",
            f"{cost.cpu_s:.1f}",
            f"{cost.request_s * 1e6:,.0f}",
            f"{cost.peak_memory_mib:,.0f}",
        )
    return table


def main(
    *,
    fleet: Annotated[list[str] | None, typer.Option(help="Repeatable; by default from 1P1D to 8P24D.")] = None,
    engine: Annotated[list[str] | None, typer.Option(help="Repeatable; by default an 8B and a 70B model's.")] = None,
    requests: Annotated[int, typer.Option(min=1, help="Per case.")] = REQUESTS,
    trace: Annotated[str, typer.Option(help="As for `tidegate simulate`, without a rate.")] = TRACE,
    policy: Annotated[str, typer.Option(help="Path policy.")] = "dynamo",
    rate: Annotated[float, typer.Option(min=0.001, help="Requests per second and worker.")] = RATE_PER_WORKER_RPS,
) -> None:
    """Measure what a simulated request costs; exit status 1 where a bound is missed."""
    console = Console(width=120)
    engines = engine or ENGINES
    costs = []
    try:
        for engine_name in engines:
            for fleet_name in fleet or FLEETS:
                case = Case(
                    fleet=fleet_name,
                    engine=engine_name,
                    trace=trace,
                    policy=policy,
                    requests=requests,
                    rate_per_worker_rps=rate,
                )
                costs.append(measure_apart(case))
    except (TraceError, UnknownEngine, ValueError) as error:
        raise typer.BadParameter(str(error)) from error
    console.print(cost_table(costs))
    growths = {name: growth(costs, name) for name in engines}
    dearest_s = max(cost.request_s for cost in costs)
    for name, times in growths.items():
        console.print(f"{name}: a request costs {times:.2f} times as much on one fleet as on another")
    console.print(f"100,000 requests take at most {dearest_s * 100_000:,.0f} s of one core")
    raise typer.Exit(max(growths.values()) > GROWTH_BOUND or dearest_s > REQUEST_BOUND_S)


if __name__ == "__main__":
    typer.run(main)
