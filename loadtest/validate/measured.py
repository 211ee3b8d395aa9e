"""Compares the engine model with measured vLLM runs: `python -m loadtest.validate.measured --data DIR`.

Each run's arrivals and lengths go through the engine with that run's limits and with prices fitted to its GPU's kernel
profile. One number comes from a run: the step overhead, from the pure-decode seconds at the end of one of them, and it
is the same for all. The median and the 90th percentile of queueing, TTFT and TPOT must lie within 20 % of the
measurement. The 10th percentile, which is light load, is shown beside.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Column, Table

from loadtest.engine.fitting.overhead import fit_step_overhead
from loadtest.engine.fitting.rtx import profiled_costs
from loadtest.engine.fitting.sources import read_measured_run
from loadtest.validate.measured_benches import BENCHES, Bench, engine_spec, profiled_model
from loadtest.validate.measured_plot import plot_runs
from loadtest.validate.measured_replay import replay, requests_of
from loadtest.validate.measured_times import METRICS, RequestTimes, measured_times
from policy_store.costs.file import Residual

BOUND = 0.2
"""Of the measurement."""
BOUNDED_PERCENTILES = (50, 90)
BESIDE_PERCENTILES = (10,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One percentile of one metric."""

    metric: str
    percentile: int
    predicted_s: float
    measured_s: float
    is_bounded: bool

    @property
    def error(self) -> float:
        """Of the prediction, relative to the measurement."""
        return self.predicted_s / self.measured_s - 1

    @property
    def holds(self) -> bool:
        """True within the bound."""
        return abs(self.error) <= BOUND


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MeasuredRun:
    """One measured run beside its replay."""

    name: str
    measured: RequestTimes
    predicted: RequestTimes
    preemptions: int
    """In the replay; vLLM did not record its own."""
    comparisons: tuple[Comparison, ...]
    residuals: tuple[Residual, ...]
    """Of the prices' attention terms, against the kernel profile."""

    @property
    def holds(self) -> bool:
        """True where every bounded percentile does."""
        return all(comparison.holds for comparison in self.comparisons if comparison.is_bounded)


def run(data: Path) -> tuple[MeasuredRun, ...]:
    """Replay every measured run; `data` is the directory with the runs and the kernel profiles."""
    step_overhead_s = fit_step_overhead(data)
    return tuple(_run_one(data, bench, step_overhead_s) for bench in BENCHES)


def _run_one(data: Path, bench: Bench, step_overhead_s: float) -> MeasuredRun:
    recorded = read_measured_run(data, bench.name)
    spec = engine_spec(bench, recorded)
    costs, residuals = profiled_costs(data, profiled_model(bench, recorded), step_overhead_s)
    replayed = replay(requests_of(recorded, spec.block_tokens), spec, costs)
    measured = measured_times(recorded)
    return MeasuredRun(
        name=bench.name,
        measured=measured,
        predicted=replayed.times,
        preemptions=replayed.preemptions,
        comparisons=tuple(_compare(measured, replayed.times, is_bounded=bench.is_bounded)),
        residuals=residuals,
    )


def _compare(measured: RequestTimes, predicted: RequestTimes, *, is_bounded: bool) -> Iterator[Comparison]:
    for metric, seconds in METRICS.items():
        for percentile in sorted((*BESIDE_PERCENTILES, *BOUNDED_PERCENTILES)):
            yield Comparison(
                metric=metric,
                percentile=percentile,
                predicted_s=float(np.percentile(seconds(predicted), percentile)),
                measured_s=float(np.percentile(seconds(measured), percentile)),
                is_bounded=is_bounded and percentile in BOUNDED_PERCENTILES,
            )


def comparison_table(one: MeasuredRun) -> Table:
    """Every percentile of a run, with what its bound says, and how well its prices fit their kernel profile."""
    numbers = [Column(name, justify="right") for name in ("predicted, s", "measured, s", "error")]
    fits = "\n".join(f"{fit.term}: {fit.median:.0%} off, {fit.p90:.0%} at P90" for fit in one.residuals)
    title = f"{one.name}: {len(one.measured.arrival_s)} requests, {one.preemptions} preemptions in the replay"
    table = Table("metric", *numbers, f"within {BOUND:.0%}", title=title, caption=fits)
    for comparison in one.comparisons:
        table.add_row(*_cells(comparison))
    return table


def _cells(comparison: Comparison) -> tuple[str, ...]:
    verdict = ("[green]holds[/]" if comparison.holds else "[red]missed[/]") if comparison.is_bounded else "(beside)"
    return (
        f"{comparison.metric} P{comparison.percentile}",
        f"{comparison.predicted_s:.4g}",
        f"{comparison.measured_s:.4g}",
        f"{comparison.error:+.1%}",
        verdict,
    )


def main(
    *,
    data: Annotated[Path, typer.Option(help="Directory with the measured runs and the kernel profiles.")],
    plot: Annotated[Path | None, typer.Option(help="Write the distributions as a picture to this file.")] = None,
) -> None:
    """Compare the engine model with measured vLLM runs; fails where a bound is missed."""
    runs = run(data)
    console = Console()
    for one in runs:
        console.print(comparison_table(one))
    if plot is not None:
        plot_runs(runs, plot)
    if not all(one.holds for one in runs):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
