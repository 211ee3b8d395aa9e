"""All comparisons of the simulator with what others measured or simulated: `make validate`.

The rule of this module: each part says what it compares, with which bound and whether it holds; a part whose files are
not there is skipped by name. Exit status 1 where a bound is missed, 2 where nothing could be compared.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from loadtest.validate import measured, measured_plot, plots, replay, silicon
from loadtest.validate.replay_runs import has_dynamo
from loadtest.validate.silicon_protocols import SOURCES
from loadtest.validate.silicon_summary import summarise
from loadtest.validate.silicon_tables import groups_table, protocol_text, rows_table

TRACE = Path("traces") / "mooncake_conversation_trace.jsonl.gz"
COSTS = Path("costs")
NOTHING_COMPARED = 2

Part = Callable[[], bool]
"""Prints its tables; True where every bound holds."""


def main(
    *,
    data: Annotated[Path, typer.Option(help="Directory with traces/ and costs/, as docs/validation.md lists them.")],
    dynamo: Annotated[Path | None, typer.Option(help="A Python in which ai-dynamo 1.6.1 is installed.")] = None,
    pictures: Annotated[Path | None, typer.Option(help="Write the pictures to this directory.")] = None,
) -> None:
    """Hold the simulator against Dynamo's replay, measured vLLM runs and public benchmarks."""
    console = Console(width=120)
    parts = _parts(data, dynamo, pictures, console)
    verdicts = {name: part() for name, part in parts.items()}
    for name, holds in verdicts.items():
        console.print(f"{name}: {'[green]every bound holds[/]' if holds else '[bold red]a bound is missed[/]'}")
    if not verdicts:
        raise typer.Exit(NOTHING_COMPARED)
    raise typer.Exit(not all(verdicts.values()))


def _parts(data: Path, dynamo: Path | None, pictures: Path | None, console: Console) -> Mapping[str, Part]:
    parts: dict[str, Part] = {}
    if dynamo is None or not has_dynamo(dynamo) or not (data / TRACE).exists():
        console.print(f"(a) Dynamo's offline replay: skipped, without ai-dynamo (--dynamo) or {data / TRACE}")
    else:
        python = dynamo
        parts["(a) Dynamo's offline replay"] = lambda: _replay(data / TRACE, python, pictures, console)
    if not (data / COSTS).is_dir():
        console.print(f"(b) and (c): skipped, without {data / COSTS}")
        return parts
    parts["(b) measured vLLM runs"] = lambda: _measured(data / COSTS, pictures, console)
    parts["(c) public benchmarks"] = lambda: _silicon(data / COSTS, pictures, console)
    return parts


def _replay(trace: Path, python: Path, pictures: Path | None, console: Console) -> bool:
    comparisons = replay.compare(trace, python, on_run=lambda words: console.print(f"[dim]{words}[/]"))
    console.print(replay.comparison_table(comparisons))
    if pictures is not None:
        plots.plot_replay(comparisons, pictures / "validation-replay.png")
    return all(each.holds for each in comparisons)


def _measured(costs: Path, pictures: Path | None, console: Console) -> bool:
    runs = measured.run(costs)
    for one in runs:
        console.print(measured.comparison_table(one))
    if pictures is not None:
        measured_plot.plot_runs(runs, pictures / "validation-measured.png")
    return all(one.holds for one in runs)


def _silicon(costs: Path, pictures: Path | None, console: Console) -> bool:
    rows = silicon.run(costs)
    summary = summarise(rows)
    console.print(protocol_text(SOURCES), highlight=False)
    console.print(groups_table(summary))
    console.print(rows_table(summary.worst, "Furthest off"))
    if pictures is not None:
        plots.plot_silicon(rows, pictures / "validation-silicon.png")
    return summary.holds


if __name__ == "__main__":
    typer.run(main)
