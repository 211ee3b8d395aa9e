"""The `tidegate compare` command.

The rule of this module: it runs a preset, writes what was found and says whether the bounds hold. What only this
command needs is loaded when it runs.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from policy_store.learn.extras import needed

if TYPE_CHECKING:
    from loadtest.compare.results import CellResult

DATA = Path("../shared/data")
"""Where the public traces are looked for."""


def compare_command(
    preset: Annotated[
        Literal["headline", "bounds", "limits", "live"],
        typer.Option(
            help="headline: all cells; bounds: those that have bounds; limits: what the paper left open; live: learned"
            " on a running gateway."
        ),
    ],
    *,
    data: Annotated[
        Path, typer.Option(help="Folder of the public traces; generators stand in for missing ones.")
    ] = DATA,
    json: Annotated[Path | None, typer.Option(help="Write everything that was found to this file.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Directory for report, runs and policies: out/compare/PRESET.")
    ] = None,
    jobs: Annotated[int, typer.Option(help="Places at a time; -1 is one per core.")] = -1,
    table: Annotated[bool, typer.Option("--table", help="Of live: learn the paper's table there too.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Less of everything: shows that it runs, claims nothing.")
    ] = False,
) -> None:
    """Compare learned path policies with tuned rules; exit status 1 where a bound is missed.

    What was simulated is kept in OUT and not run again, so a comparison that was stopped goes on.
    """
    import msgspec  # noqa: PLC0415 (see the module's rule)

    with needed("a comparison", extras="loadtest,learn"):
        from loadtest.compare.live_table import TableEffort  # noqa: PLC0415
        from loadtest.compare.presets import PRESETS, QUICK_PRESETS  # noqa: PLC0415
        from loadtest.compare.report import NO_CLAIM, bound_lines, markdown  # noqa: PLC0415
        from loadtest.compare.saturation import NoSaturationError  # noqa: PLC0415
        from loadtest.compare.session import run_preset  # noqa: PLC0415
    from loadtest.fleet.processes import FleetError  # noqa: PLC0415
    from loadtest.learning.live import LiveError  # noqa: PLC0415
    from loadtest.traces.types import TraceError  # noqa: PLC0415
    from policy_store.learn.dolphin import LearningError  # noqa: PLC0415

    chosen = (QUICK_PRESETS if quick else PRESETS)[preset]
    if table:
        if chosen.live is None:
            raise typer.BadParameter("--table goes with --preset live")
        chosen = replace(chosen, live=replace(chosen.live, table=TableEffort()))
    console = Console(soft_wrap=True, highlight=False, markup=False)
    directory = out or Path("out/compare") / preset
    console.print(f"{chosen.name}: {chosen.about}")
    if not data.is_dir():
        console.print(f"{data} is not there: generators that were fitted to the traces stand in for them")
    try:
        report = run_preset(chosen, data=data, out=directory, jobs=jobs, tell=console.print)
    except (TraceError, NoSaturationError, FleetError, LiveError, LearningError) as error:
        raise typer.BadParameter(str(error)) from error
    # What took hours is told before anything is drawn of it.
    if json is not None:
        json.parent.mkdir(parents=True, exist_ok=True)
        json.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    for line in bound_lines(report):
        console.print(line)
    directory.mkdir(parents=True, exist_ok=True)
    pictures = _draw(console, report.cells, directory)
    text = markdown(report, [picture.name for picture in pictures])
    (directory / "report.md").write_text(text, encoding="utf-8")
    console.print(f"Report: {directory / 'report.md'}")
    if not report.is_claim:
        console.print(NO_CLAIM)
    if not report.holds:
        raise typer.Exit(1)


def _draw(console: Console, cells: "Sequence[CellResult]", directory: Path) -> list[Path]:
    from loadtest.compare.pictures import draw  # noqa: PLC0415 (see the module's rule)

    try:
        return draw(cells, directory)
    except ImportError:
        console.print("No pictures: pip install 'tidegate[loadtest]'")
        return []
