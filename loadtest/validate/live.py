"""Compares the simulator with a live emulated fleet: `python -m loadtest.validate.live`.

The same policy, trace and fleet once over HTTP and once in virtual time. The median and the 90th percentile of TTFT
and TPOT must agree within 10 %, and at least 95 % of the requests must have taken the same path. What differs is what
only the live run has: HTTP, JSON and the clock's own pace, a real tokeniser's chat template, and a gateway that counts
prompts in bytes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Column, Table

from gateway.settings import SettingsError
from loadtest.client.records import Record
from loadtest.engine.presets import UnknownEngine
from loadtest.fleet.pools import parse_pools
from loadtest.fleet.processes import FleetError
from loadtest.traces.spec import TRACE_HELP
from loadtest.traces.types import TraceError
from loadtest.validate.live_runs import Setup, run_live, run_simulated

BOUND = 0.1
"""Of the live percentile."""
PATH_BOUND = 0.95
"""Share of the requests."""
PERCENTILES = (50, 90)
METRICS = ("ttft_s", "tpot_s")
POLICIES = ("dynamo", "local", "remote")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One percentile of one metric, in engine seconds."""

    metric: str
    percentile: int
    live_s: float
    simulated_s: float

    @property
    def error(self) -> float:
        """Of the simulation, relative to the live run."""
        return self.simulated_s / self.live_s - 1

    @property
    def holds(self) -> bool:
        """True within the bound."""
        return abs(self.error) <= BOUND


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """The routes of the same requests in both runs."""

    requests: int
    same_path: int
    same_worker: int
    """Whose decode worker was the same too."""
    failed: int
    """Requests that did not end well in one of the runs; their paths count as different."""
    first_other_path: tuple[Record, Record] | None
    """The earliest request whose path differs, live and simulated."""

    @property
    def holds(self) -> bool:
        """True within the bound."""
        return self.same_path >= PATH_BOUND * self.requests


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRun:
    """One policy, live and simulated."""

    setup: Setup
    comparisons: tuple[Comparison, ...]
    agreement: Agreement
    lag_p90_s: float
    """How late the live client sent, in real seconds: where that is much, the machine was too busy to compare."""

    @property
    def holds(self) -> bool:
        """True where every bound does."""
        return self.agreement.holds and all(each.holds for each in self.comparisons)


def run(setup: Setup) -> LiveRun:
    """Run it live, then simulated, and compare.

    Raises:
        TraceError: the trace cannot be read.
        FleetError: a part of the fleet did not start.
    """
    trace = setup.load()
    return compared(setup, run_live(setup, trace), run_simulated(setup, trace))


def compared(setup: Setup, live: Sequence[Record], simulated: Sequence[Record]) -> LiveRun:
    """Both runs' records, held against one another."""
    return LiveRun(
        setup=setup,
        comparisons=tuple(_comparisons(live, simulated)),
        agreement=agreement(live, simulated),
        lag_p90_s=float(np.percentile(_values(live, "lag_s"), 90)) / setup.speed,
    )


def agreement(live: Sequence[Record], simulated: Sequence[Record]) -> Agreement:
    """Requests are paired by their place in the trace."""
    twins = {record.index: record for record in simulated}
    pairs = [(record, twins[record.index]) for record in live if record.index in twins]
    well = [pair for pair in pairs if all(record.ok for record in pair)]
    same_path = [pair for pair in well if pair[0].path == pair[1].path]
    other = [pair for pair in pairs if pair[0].path != pair[1].path]
    requests = len({record.index for record in (*live, *simulated)})
    return Agreement(
        requests=requests,
        same_path=len(same_path),
        same_worker=sum(one.worker == two.worker for one, two in same_path),
        failed=requests - len(well),
        first_other_path=min(other, key=lambda pair: pair[0].scheduled_s, default=None),
    )


def _comparisons(live: Sequence[Record], simulated: Sequence[Record]) -> Iterator[Comparison]:
    for metric in METRICS:
        values = [
            [value for record in run if (value := getattr(record, metric)) is not None] for run in (live, simulated)
        ]
        for percentile in PERCENTILES:
            live_s, simulated_s = (float(np.percentile(each, percentile)) for each in values)
            yield Comparison(metric=metric, percentile=percentile, live_s=live_s, simulated_s=simulated_s)


def _values(records: Sequence[Record], metric: str) -> list[float]:
    return [value for record in records if (value := getattr(record, metric)) is not None]


def comparison_table(runs: Sequence[LiveRun]) -> Table:
    """Every percentile and the paths of every run, with what its bound says."""
    setup = runs[0].setup
    title = (
        f"{setup.requests} requests of {setup.trace} x {setup.rate_scale:g} on {setup.engine}, {setup.speed:g} x speed"
    )
    numbers = [Column(name, justify="right") for name in ("live", "simulated", "error", "bound")]
    table = Table("policy", "measure", *numbers, "holds", title=title)
    for one in runs:
        for each in one.comparisons:
            table.add_row(one.setup.policy, *_cells(each))
        same = one.agreement
        share = f"{same.same_path / same.requests:.1%}"
        table.add_row(one.setup.policy, "same path", "", share, "", f"{PATH_BOUND:.0%}", _verdict(holds=same.holds))
        table.add_section()
    return table


def _cells(each: Comparison) -> tuple[str, ...]:
    name = f"{each.metric.removesuffix('_s').upper()} P{each.percentile}, ms"
    live, simulated = (f"{seconds * 1e3:,.1f}" for seconds in (each.live_s, each.simulated_s))
    return (name, live, simulated, f"{each.error:+.1%}", f"{BOUND:.0%}", _verdict(holds=each.holds))


def _verdict(*, holds: bool) -> str:
    return "yes" if holds else "[bold red]NO[/]"


def agreement_words(one: LiveRun) -> str:
    """What the paths and the workers came to, and where they first part."""
    same = one.agreement
    words = (
        f"{one.setup.policy}: of {same.requests} requests {same.same_path} took the same path, "
        f"{same.same_worker} of these to the same decode worker; {same.failed} failed; "
        f"the live client sent {one.lag_p90_s * 1e3:.1f} ms late at P90"
    )
    if same.first_other_path is None:
        return words
    live, simulated = same.first_other_path
    at = f"request {live.index} at {live.scheduled_s:.1f} s"
    return f"{words}. The first to differ is {at}: live {live.path}, simulated {simulated.path}"


def main(
    *,
    trace: Annotated[str, typer.Option(help=TRACE_HELP)] = "synthetic:mooncake",
    requests: Annotated[int, typer.Option(min=1, help="How many of the trace.")] = 300,
    rate_scale: Annotated[float, typer.Option(min=0.001, help="2 doubles the trace's arrival rate.")] = 0.3,
    pools: Annotated[str, typer.Option(help="2P2D: 2 prefill and 2 decode workers.")] = "2P2D",
    engine: Annotated[str, typer.Option(help="What the workers run on.")] = "h100-llama70b-tp4",
    policy: Annotated[list[str] | None, typer.Option(help="Path policy, repeatable; dynamo, local and remote.")] = None,
    speed: Annotated[float, typer.Option(min=0.01, help="Engine seconds per second of the live run.")] = 2.0,
    seed: Annotated[int, typer.Option(help="Of the trace, its text and the routers.")] = 0,
) -> None:
    """Compare the simulator with a live emulated fleet; exit status 1 where a bound is missed."""
    console = Console(width=120)
    runs = []
    try:
        for name in policy or POLICIES:
            setup = Setup(
                trace=trace,
                pools=parse_pools(pools),
                engine=engine,
                policy=name,
                requests=requests,
                rate_scale=rate_scale,
                speed=speed,
                seed=seed,
            )
            runs.append(run(setup))
            console.print(agreement_words(runs[-1]))
    except (TraceError, SettingsError, UnknownEngine, FleetError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error
    console.print(comparison_table(runs))
    raise typer.Exit(not all(one.holds for one in runs))


if __name__ == "__main__":
    typer.run(main)
