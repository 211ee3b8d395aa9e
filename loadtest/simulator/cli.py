"""The `tidegate simulate` command.

The rule of this module: it turns options into runs and prints them; nothing is simulated or counted here.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import Annotated

import msgspec
import typer
from rich.console import Console, Group, RenderableType

from gateway.settings import SettingsError
from loadtest.client.records import write_records
from loadtest.engine.presets import UnknownEngine
from loadtest.fleet.pools import parse_pools
from loadtest.report.slo import parse_slo
from loadtest.report.summary import Summary, summarise
from loadtest.report.tables import comparison_table, headlines, latency_table, path_table
from loadtest.simulator.host import ScrapePlan
from loadtest.simulator.scenario import NAMED_POLICIES, Scenario, Simulated, simulate
from loadtest.traces.spec import TRACE_HELP
from loadtest.traces.types import TraceError

KIB = 1024


class SeedResult(msgspec.Struct, frozen=True, kw_only=True):
    """One run as `--json` prints it."""

    seed: int
    simulated_s: float
    wall_s: float
    events: int
    peak_memory_mib: float
    """Of the process so far."""
    summary: Summary


def simulate_command(
    *,
    trace: Annotated[str, typer.Option(help=TRACE_HELP)] = "synthetic:mooncake",
    pools: Annotated[str, typer.Option(help="2P2D: 2 prefill and 2 decode workers; 4A: 4 that do both.")] = "2P2D",
    engine: Annotated[
        str, typer.Option(help="A preset, or the file that `tidegate calibrate` wrote.")
    ] = "h100-llama70b-tp4",
    policy: Annotated[
        str, typer.Option(help=f"{', '.join(NAMED_POLICIES[:-1])}, or the directory of a policy bundle.")
    ] = "dynamo",
    override: Annotated[
        list[str] | None, typer.Option("--set", help="A gateway setting: routing.dynamo.policy=isl_or_load.")
    ] = None,
    requests: Annotated[int | None, typer.Option(min=1, help="How many requests of the trace; unset is all.")] = None,
    rate_scale: Annotated[float, typer.Option(min=0.001, help="2 doubles the trace's arrival rate.")] = 1.0,
    slo: Annotated[str, typer.Option(help="Latency objective.")] = "ttft=2s,tpot=40ms",
    seed: Annotated[int, typer.Option(help="The first seed.")] = 0,
    seeds: Annotated[int, typer.Option(min=1, help="How many runs, each with the next seed.")] = 1,
    scrape_interval: Annotated[float, typer.Option(min=0.001, help="Seconds between scrapes of a worker.")] = 1.0,
    scrape_age: Annotated[float, typer.Option(min=0.0, help="How old a scrape is when the gateway uses it.")] = 0.0,
    until: Annotated[float, typer.Option(min=0.001, help="Simulated seconds to stop at.")] = float("inf"),
    out: Annotated[Path | None, typer.Option(help="Directory for each seed's records, as JSON lines.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON lines, one per seed.")] = False,
) -> None:
    """Predict what a policy, a split of workers and a load do to latencies and SLOs, in virtual time.

    The gateway's own decision core routes the requests; the workers are the engine model that `tidegate fleet` runs.
    The same seed gives the same run, byte for byte.
    """
    console = Console()
    try:
        scenario = Scenario(
            trace=trace,
            pools=parse_pools(pools),
            engine=engine,
            policy=policy,
            settings=tuple(override or ()),
            slo=parse_slo(slo),
            requests=requests,
            rate_scale=rate_scale,
            scrape=ScrapePlan(interval_s=scrape_interval, age_s=scrape_age),
            until_s=until,
        )
        runs = []
        for each in range(seed, seed + seeds):
            run = simulate(scenario, seed=each)
            if out is not None:
                out.mkdir(parents=True, exist_ok=True)
                write_records(out / f"seed-{each}.jsonl", run.records)
            result = _result(run, scenario)
            runs.append(result)
            if as_json:
                sys.stdout.write(msgspec.json.encode(result).decode() + "\n")
    except (TraceError, SettingsError, UnknownEngine, ValueError, OSError) as error:
        raise typer.BadParameter(str(error)) from error
    if not as_json:
        console.print(_report(runs, scenario))


def _result(run: Simulated, scenario: Scenario) -> SeedResult:
    return SeedResult(
        seed=run.seed,
        simulated_s=run.simulated_s,
        wall_s=run.wall_s,
        events=run.events,
        peak_memory_mib=getrusage(RUSAGE_SELF).ru_maxrss / KIB,
        summary=summarise(run.records, scenario.slo),
    )


def _report(results: Sequence[SeedResult], scenario: Scenario) -> Group:
    first = results[0]
    parts: list[RenderableType] = [
        *headlines(first.summary, scenario.slo),
        latency_table(first.summary),
        path_table(first.summary),
    ]
    if len(results) > 1:
        parts = [comparison_table({f"seed {result.seed}": result.summary for result in results})]
    requests = sum(result.summary.asked for result in results)
    wall_s = sum(result.wall_s for result in results)
    pace = f"simulated {sum(result.simulated_s for result in results):,.0f} s in {wall_s:.1f} s"
    return Group(*parts, f"{pace}, {requests / wall_s:,.0f} requests/s, {results[-1].peak_memory_mib:,.0f} MiB at most")
