"""`python -m policy_store.learn.output_length`: trains, judges and, where asked, writes a predictor.

The rule of this module: exit status 1 where a bound is missed; a data set that is not there is named and skipped.
"""

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from policy_store.learn.output_length.datasets import SOURCES, DataSetError, load
from policy_store.learn.output_length.report import (
    Verdict,
    ablation_table,
    calibration_table,
    crossing_table,
    crossings,
    judge,
    ranking_table,
)
from policy_store.learn.output_length.rows import LengthRows, columns, joined
from policy_store.learn.output_length.train import train
from policy_store.output_length_file import write_output_length

PROMPT_REPEATS = 5
SESSION_REPEATS = 2
LARGE_ROWS = 10_000
"""Of a data set that is judged once over: chance says little about it."""


def main(
    *,
    data: Annotated[Path, typer.Option(help="Folder with quality/ and traces/.")],
    data_set: Annotated[list[str] | None, typer.Option(help="Repeatable; by default every one that is there.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write all figures here too.")] = None,
    write: Annotated[Path | None, typer.Option(help="Train on all rows together and write the predictor here.")] = None,
    ablate: Annotated[bool, typer.Option(help="Also without each group of features, and across data sets.")] = True,
) -> None:
    """Judge output-length prediction on data sets; exit status 1 where a bound is missed."""
    console = Console(width=180)
    sets = _load(data, data_set or list(SOURCES), console)
    verdicts: list[Verdict] = []
    for name, rows in sets.items():
        verdicts += judge(name, rows, repeats=_repeats(name, rows), ablate=ablate)
        console.print(f"{name}: judged", style="dim")
    found = crossings(sets) if ablate else {}
    for table in (ranking_table(verdicts), calibration_table(verdicts)):
        console.print(table)
    if ablate:
        console.print(ablation_table(verdicts))
        console.print(crossing_table(found, verdicts))
    if json is not None:
        crossing = [{"learned": a, "judged": b, "model": c, "ranking": value} for (a, b, c), value in found.items()]
        figures = {"verdicts": verdicts, "crossings": crossing}
        json.write_bytes(msgspec.json.format(msgspec.json.encode(figures), indent=2) + b"\n")
    if write is not None:
        write_output_length(train(joined(sets.values())), write, provenance={"data": ", ".join(sets)})
    raise typer.Exit(not all(each.met for each in verdicts))


def _load(folder: Path, names: list[str], console: Console) -> dict[str, LengthRows]:
    sets = {}
    for name in names:
        if name not in SOURCES:
            raise typer.BadParameter(f"no data set {name}: there are {', '.join(SOURCES)}")
        try:
            rows = load(name, folder)
        except DataSetError as error:
            raise typer.BadParameter(str(error)) from error
        if rows is None:
            console.print(f"{name}: {SOURCES[name].file} is not there, not judged")
        else:
            sets[name] = columns(rows)
    if not sets:
        raise typer.BadParameter(f"no data set in {folder}")
    return sets


def _repeats(name: str, rows: LengthRows) -> int:
    if len(rows) >= LARGE_ROWS:
        return 1
    return SESSION_REPEATS if SOURCES[name].sessions else PROMPT_REPEATS
