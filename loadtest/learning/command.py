"""The `tidegate learn` commands.

The rule of this module: it turns options into a plan and prints what came of it; nothing is learned here. What learns
is imported when it is to be used, for it brings scikit-learn and SciPy with it.
"""

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from loadtest.fleet.pools import parse_pools
from loadtest.learning.kinds import Kind
from loadtest.report.slo import parse_slo
from loadtest.traces.spec import TRACE_HELP
from policy_store.learn.extras import needed

learn = typer.Typer(no_args_is_help=True)


@learn.callback()
def _learn() -> None:
    """Learn policies from traffic."""


@learn.command("paths")
def paths(
    *,
    trace: Annotated[str, typer.Option(help=TRACE_HELP)] = "synthetic:mooncake",
    pools: Annotated[str, typer.Option(help="2P2D: 2 prefill and 2 decode workers.")] = "2P2D",
    engine: Annotated[
        str, typer.Option(help="A preset, or the file that `tidegate calibrate` wrote.")
    ] = "h100-llama70b-tp4",
    kind: Annotated[Kind, typer.Option(help="What is learned.")] = Kind.JOINT,
    slo: Annotated[str, typer.Option(help="Latency objective.")] = "ttft=2s,tpot=40ms",
    requests: Annotated[int | None, typer.Option(min=200, help="How many requests of the trace; unset is all.")] = None,
    rate_scale: Annotated[float, typer.Option(min=0.001, help="2 doubles the trace's arrival rate.")] = 1.0,
    share: Annotated[float, typer.Option(min=0.1, max=0.9, help="Share of the trace to learn from.")] = 0.5,
    budget: Annotated[int, typer.Option(min=4, help="Price weights to try.")] = 48,
    table_requests: Annotated[
        int, typer.Option(min=3000, help="Requests to serve while a table learns; a scan goes on to its end.")
    ] = 30_000,
    seed: Annotated[int, typer.Option(help="Of all that is drawn.")] = 0,
    seeds: Annotated[int, typer.Option(min=1, help="How many times the rest of the trace judges.")] = 5,
    jobs: Annotated[int, typer.Option(help="Processes; -1 is one per core.")] = -1,
    out: Annotated[Path, typer.Option(help="Where the bundle's directory is put.")] = Path("out/policies"),
    store: Annotated[Path | None, typer.Option(help="A policy store to add the bundle to.")] = None,
) -> None:
    """Learn when to prefill locally and where to send what, on a simulated fleet like yours.

    The first part of the trace teaches, the rest judges: the best-tuned Dynamo rule learns and is judged beside it.
    """
    with needed("learning paths", extras="loadtest,learn"):
        from loadtest.learning import paths as learning  # noqa: PLC0415 (see the module's rule)
        from loadtest.learning.prices import Traffic, Trial  # noqa: PLC0415
        from loadtest.learning.simulated import SimulatedFleet  # noqa: PLC0415
        from loadtest.learning.verdict import table_words, verdict_table  # noqa: PLC0415

    console = Console()
    began = time.perf_counter()
    try:
        fleet = SimulatedFleet(pools=parse_pools(pools), engine=engine, slo=parse_slo(slo))
        traffic = Traffic(trace=trace, rate_scale=rate_scale, requests=requests)
        trial, judging = learning.split(Trial(fleet=fleet, traffic=traffic), share, range(seeds))
        plan = learning.PathPlan(
            kind=kind,
            trial=trial,
            judging=judging,
            budget=budget,
            requests=table_requests,
            seed=seed,
            jobs=jobs,
        )
        result = learning.learn_paths(plan)
        place = learning.keep(result.bundle, out=out, store=store)
    except learning.CANNOT as error:
        raise typer.BadParameter(str(error)) from error
    learned_from, judged_by = trial.traffic.requests, judging[0].traffic.requests
    console.print(f"Learned on {learned_from:,} requests, judged on the {judged_by:,} that follow, {seeds} seeds.")
    console.print(f"The rule to beat, tuned on the same requests: {result.rule.words}.")
    if (said := table_words(result.bundle.path)) is not None:
        console.print(f"What was learned: {said}.")
    console.print(verdict_table(result))
    console.print(f"Bundle {result.bundle.version} in {place}, after {time.perf_counter() - began:.0f} s.")
    if store is not None:
        console.print(f"Let gateways use it: tidegate policy activate {result.bundle.version} --store {store}")
