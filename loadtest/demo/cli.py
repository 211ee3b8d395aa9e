"""The `tidegate demo` command.

The rule of this module: it runs a preset and shows what came of it; every figure on the screen is in a file too.
"""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from gateway.core.types import SloTarget
from loadtest.client.measure import Measurement
from loadtest.client.runner import Progress as LoadProgress
from loadtest.demo.presets import PRESETS, Preset
from loadtest.demo.run import run_arm
from loadtest.fleet.processes import FleetError
from loadtest.report.plot import Runs, plot_runs
from loadtest.report.slo import slo_words
from loadtest.report.summary import summarise
from loadtest.report.tables import comparison_table
from loadtest.traces.loaders import load_trace
from loadtest.traces.spec import TRACE_HELP
from loadtest.traces.types import TraceError, TraceRequest


def demo(
    *,
    preset: Annotated[str, typer.Option(help=f"One of: {', '.join(PRESETS)}.")] = "mixed",
    trace: Annotated[str | None, typer.Option(help=f"Replay this on the preset's fleet instead: {TRACE_HELP}")] = None,
    rate_scale: Annotated[float, typer.Option(min=0.001, help="Of a trace: 0.5 halves its arrival rate.")] = 0.5,
    requests: Annotated[int | None, typer.Option(min=1, help="How many requests; unset is the preset's.")] = None,
    speed: Annotated[float | None, typer.Option(min=0.01, help="Engine seconds per second.")] = None,
    seed: Annotated[int, typer.Option(help="Of the traffic.")] = 1,
    out: Annotated[Path, typer.Option(help="Where records, decisions and plots go.")] = Path("out/demo"),
) -> None:
    """Start an emulated fleet, send it the same traffic under several path policies, and compare.

    Needs no GPU: the workers emulate vLLM on H100s, timed by a cost model (see docs/guide/emulation.md).
    """
    console = Console()
    chosen = _preset(preset, requests, speed)
    try:
        work = _work(chosen, trace, rate_scale, seed)
        _introduce(console, chosen, trace, rate_scale, len(work))
        runs = _run(console, chosen, work, out / preset)
    except (TraceError, FleetError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error
    _show(console, chosen, runs, out / preset)
    if any(run.summary.completed < len(work) for run in runs.values()):
        raise typer.Exit(1)


def _preset(name: str, requests: int | None, speed: float | None) -> Preset:
    if name not in PRESETS:
        raise typer.BadParameter(f"unknown preset {name!r}; there are {', '.join(PRESETS)}")
    chosen = PRESETS[name]
    return replace(chosen, requests=requests or chosen.requests, speed=speed or chosen.speed)


def _work(preset: Preset, trace: str | None, rate_scale: float, seed: int) -> list[TraceRequest]:
    if trace is None:
        return preset.traffic(preset.requests, seed)
    return load_trace(trace, limit=preset.requests, seed=seed, rate_scale=rate_scale)


def _introduce(console: Console, preset: Preset, trace: str | None, rate_scale: float, requests: int) -> None:
    pools = preset.pools
    traffic = preset.traffic_words if trace is None else f"{trace} at {rate_scale:g} times its rate"
    console.print(f"[bold]{preset.title}[/]")
    console.print(f"Fleet: {pools.prefill} prefill + {pools.decode} decode workers, emulated {preset.engine}")
    console.print(f"Traffic: {requests} requests, {traffic}")
    console.print(f"Times are the engine's; it runs {preset.speed:g} times faster than the clock.\n")


def _run(console: Console, preset: Preset, work: list[TraceRequest], out: Path) -> dict[str, Measurement]:
    columns = (TextColumn("{task.description:>8}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    runs: dict[str, Measurement] = {}
    with Progress(*columns, console=console, transient=True) as bar:
        for arm in preset.arms:
            task = bar.add_task(arm.name, total=len(work))

            def on_progress(progress: LoadProgress, task: object = task) -> None:
                bar.update(task, completed=progress.done)  # type: ignore[arg-type] # rich's TaskID

            runs[arm.name] = run_arm(preset, arm, work, out / arm.name, on_progress=on_progress)
    return runs


def _plotted(records: Runs, slo: SloTarget, picture: Path, title: str) -> str:
    """Draw the runs and say where; without matplotlib say what it takes."""
    try:
        plot_runs(records, slo, picture, title=title)
    except ImportError:
        return "No plot: pip install '.[loadtest]'"
    return f"Plot: {picture}"


def _show(console: Console, preset: Preset, runs: dict[str, Measurement], out: Path) -> None:
    records = {name: run.records for name, run in runs.items()}
    for index, slo in enumerate(preset.slos):
        picture = out / ("result.png" if len(preset.slos) == 1 else f"result-{index + 1}.png")
        console.print(f"[bold]SLO: {slo_words(slo)}[/]")
        asked = next(iter(runs.values())).summary.asked
        console.print(comparison_table({name: summarise(rows, slo, asked=asked) for name, rows in records.items()}))
        console.print(f"{_plotted(records, slo, picture, preset.title)}\n", markup=False)
    mismatches = [name for name, run in runs.items() if any(row.equal is False for row in run.reconciliation)]
    told = "differs for " + ", ".join(mismatches) if mismatches else "equals the clients' records in every run"
    console.print(f"What the gateway counted {told}.")
    console.print(f"Each request's path, worker and reason: {out}/<run>/decisions.jsonl")
