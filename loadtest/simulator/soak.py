"""`python -m loadtest.simulator.soak`: a run of a million events loses no request.

Short prompts on a fleet of eight. When all is over every request of the trace must have one record that ended well,
and neither the core's ledger nor an engine may hold anything. It takes about a minute.
"""

from dataclasses import dataclass
from time import process_time
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from loadtest.fleet.pools import Pools
from loadtest.simulator.records import to_records
from loadtest.simulator.scenario import Scenario, assemble
from loadtest.traces.loaders import load_workload

EVENTS = 1_000_000
REQUESTS = 95_000
"""Of which each makes some eleven events."""
SCENARIO = Scenario(
    trace="synthetic:azure-conv",
    pools=Pools(prefill=4, decode=4),
    engine="h100-llama8b",
    rate_scale=3.0,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Soak:
    """What is left after a run."""

    requests: int
    events: int
    records: int
    """Distinct requests that have one."""
    well: int
    reservations: int
    """In the core's ledger."""
    busy_engines: int
    """Engines that hold a request, a block, or something to do."""
    cpu_s: float

    @property
    def holds(self) -> bool:
        """True where nothing was lost and nothing was left."""
        return self.requests == self.records == self.well and not self.reservations and not self.busy_engines


def soak(requests: int, *, seed: int = 0) -> Soak:
    """Run so many requests to their end."""
    workload = load_workload(SCENARIO.trace, limit=requests, seed=seed, rate_scale=SCENARIO.rate_scale)
    assembly = assemble(SCENARIO, workload, seed=seed)
    began_s = process_time()
    run = assembly.simulation.run()
    cpu_s = process_time() - began_s
    records = to_records(run)
    left = [engine.snapshot() for engine in assembly.engines]
    due = [engine.next_event_at_s() is not None for engine in assembly.engines]
    return Soak(
        requests=requests,
        events=run.events,
        records=len({record.index for record in records}),
        well=sum(record.ok for record in records),
        reservations=len(assembly.dispatcher.router.ledger),
        busy_engines=sum(
            bool(each.running or each.waiting or each.kv_used_ratio or is_due)
            for each, is_due in zip(left, due, strict=True)
        ),
        cpu_s=cpu_s,
    )


def soak_table(found: Soak) -> Table:
    """All figures."""
    table = Table("measure", "value", title="A long run")
    table.add_row("requests", f"{found.requests:,}")
    table.add_row("events", f"{found.events:,}")
    table.add_row("requests with a record", f"{found.records:,}")
    table.add_row("ended well", f"{found.well:,}")
    table.add_row("reservations left in the ledger", f"{found.reservations:,}")
    table.add_row("engines that are not empty", f"{found.busy_engines:,}")
    table.add_row("CPU seconds", f"{found.cpu_s:.1f}")
    return table


def main(
    *,
    requests: Annotated[int, typer.Option(min=1, help="How many; as many as make the events, by default.")] = REQUESTS,
    events: Annotated[int, typer.Option(min=0, help="Fewer events are a failure too.")] = EVENTS,
    seed: Annotated[int, typer.Option(help="Of the trace and the run.")] = 0,
) -> None:
    """Run a million events; exit status 1 where a request was lost or something was left."""
    found = soak(requests, seed=seed)
    Console().print(soak_table(found))
    raise typer.Exit(not (found.holds and found.events >= events))


if __name__ == "__main__":
    typer.run(main)
