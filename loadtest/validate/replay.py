"""Compares the simulator with Dynamo's offline replay: `python -m loadtest.validate.replay --help`.

With an engine that follows the replay's rules and requests placed in turn, both must give the same percentiles within
1 %: that proves the host, the scheduler, the cache and the hand-off, on which everything else rests. Dynamo's own
router breaks ties at random, so there our runs' mean must lie no further from the replay's mean than its own runs lie
apart.

`--pace` compares speed instead: both take turns on one core.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Column, Table

from loadtest.validate.replay_runs import KV_ROUTER, ROUND_ROBIN, Latencies, Setup, run_dynamo, run_ours, unpacked

BOUND = 0.01
SAME = 1e-4
"""Random runs may agree on a median to the last digit; figures closer than this are the same."""
SHARES = (0.5, 0.9, 0.99)
METRICS = ("ttft", "tpot")
FLEETS = ((2, 2), (4, 4), (0, 8))
DYNAMO_RUNS = 9
OUR_RUNS = 3
PACE_ROUNDS = 5
PACE_BOUND = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One percentile of one metric on one fleet, in milliseconds."""

    setup: Setup
    metric: str
    share: float
    dynamo_ms: tuple[float, ...]
    """One per run."""
    ours_ms: tuple[float, ...]

    @property
    def error(self) -> float:
        """Of the means, relative to Dynamo's."""
        return mean(self.ours_ms) / mean(self.dynamo_ms) - 1

    @property
    def bound(self) -> float:
        """What the error may be: 1 %, or the replay's own spread where it is random."""
        if self.setup.router == ROUND_ROBIN:
            return BOUND
        return max(SAME, (max(self.dynamo_ms) - min(self.dynamo_ms)) / mean(self.dynamo_ms))

    @property
    def holds(self) -> bool:
        """True within the bound."""
        return abs(self.error) <= self.bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Seconds that each took for the same work, round by round."""

    dynamo_s: tuple[float, ...]
    ours_s: tuple[float, ...]

    @property
    def ratios(self) -> tuple[float, ...]:
        """How many times as fast ours was."""
        return tuple(theirs / ours for theirs, ours in zip(self.dynamo_s, self.ours_s, strict=True))


def compare(trace: Path, python: Path, on_run: Callable[[str], object] = print) -> tuple[Comparison, ...]:
    """All fleets in turn and by Dynamo's router; `python` is one that has Dynamo."""
    found: list[Comparison] = []
    with unpacked(trace) as plain:
        for router, dynamo_runs, our_runs in ((ROUND_ROBIN, 1, 1), (KV_ROUTER, DYNAMO_RUNS, OUR_RUNS)):
            for prefill, decode in FLEETS:
                setup = Setup(prefill=prefill, decode=decode, router=router)
                on_run(f"{setup.name}, {router}")
                dynamo = [run_dynamo(python, plain, setup) for _ in range(dynamo_runs)]
                ours = [run_ours(plain, setup, seed=seed) for seed in range(our_runs)]
                found += _comparisons(setup, dynamo, ours)
    return tuple(found)


def pace(trace: Path, python: Path, rounds: int = PACE_ROUNDS) -> Pace:
    """Two prefill and two decode engines in turn, one after the other on one core."""
    setup = Setup(prefill=2, decode=2, router=ROUND_ROBIN)
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    try:
        with unpacked(trace) as plain:
            taken = [(run_dynamo(python, plain, setup).took_s, run_ours(plain, setup).took_s) for _ in range(rounds)]
    finally:
        os.sched_setaffinity(0, cores)
    return Pace(dynamo_s=tuple(theirs for theirs, _ in taken), ours_s=tuple(ours for _, ours in taken))


def _comparisons(setup: Setup, dynamo: list[Latencies], ours: list[Latencies]) -> Iterator[Comparison]:
    for metric in METRICS:
        for share in SHARES:
            yield Comparison(
                setup=setup,
                metric=metric,
                share=share,
                dynamo_ms=tuple(run.percentile(metric, share) for run in dynamo),
                ours_ms=tuple(run.percentile(metric, share) for run in ours),
            )


def comparison_table(comparisons: tuple[Comparison, ...]) -> Table:
    """All comparisons as a table."""
    right = [Column(name, justify="right") for name in ("Dynamo, ms", "ours, ms", "error", "bound")]
    table = Table("fleet", "placement", "metric", *right, "holds", title="(a) Dynamo's offline replay, Mooncake trace")
    for each in comparisons:
        table.add_row(
            each.setup.name,
            each.setup.router,
            f"{each.metric.upper()} P{each.share * 100:.0f}",
            f"{mean(each.dynamo_ms):,.2f}",
            f"{mean(each.ours_ms):,.2f}",
            f"{each.error:+.2%}",
            f"{each.bound:.2%}",
            "yes" if each.holds else "[bold red]NO[/]",
        )
    return table


def pace_words(found: Pace) -> str:
    """The pace in a sentence."""
    ratios = found.ratios
    return (
        f"2P2D in turn, whole trace, one core, {len(ratios)} rounds: Dynamo {median(found.dynamo_s):.2f} s, "
        f"ours {median(found.ours_s):.2f} s; ours is {min(ratios):.2f} / {median(ratios):.2f} / {max(ratios):.2f} "
        "times as fast (minimum / median / maximum)"
    )


def main(
    *,
    trace: Annotated[Path, typer.Option(help="mooncake_conversation_trace.jsonl.gz.")],
    python: Annotated[Path, typer.Option(help="A Python in which ai-dynamo 1.6.1 is installed.")],
    only_pace: Annotated[bool, typer.Option("--pace", help="Compare speed instead.")] = False,
) -> None:
    """Compare the simulator with Dynamo's offline replay; exit status 1 where a bound is missed."""
    console = Console(width=120)
    if only_pace:
        found = pace(trace, python)
        console.print(pace_words(found))
        raise typer.Exit(median(found.ratios) < PACE_BOUND)
    comparisons = compare(trace, python, on_run=console.print)
    console.print(comparison_table(comparisons))
    raise typer.Exit(not all(each.holds for each in comparisons))


if __name__ == "__main__":
    typer.run(main)
