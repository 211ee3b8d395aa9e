"""The `tidegate compare` command.

The rule of this module: it runs a preset, writes what was found and says whether the bounds hold. What only this
command needs is loaded when it runs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from policy_store.learn.extras import needed

if TYPE_CHECKING:
    import msgspec

    from loadtest.compare.presets import Preset
    from loadtest.compare.results import CellResult

NEEDED = ("loadtest.compare.presets", "loadtest.compare.session", "loadtest.conserve.session")
"""Loaded first, so that what is missing is told at once."""
CONSERVE = "conserve"
"""The preset that is about conversations; the others are about paths."""
DATA = Path("../shared/data")
"""Where the public traces are looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """What is told of a comparison, whatever it was about."""

    report: "msgspec.Struct"
    lines: Sequence[str]
    """One for each bound."""
    markdown: Callable[[], str]
    """The report; pictures are drawn for it."""
    is_claim: bool
    holds: bool


def compare_command(
    preset: Annotated[
        Literal["headline", "bounds", "limits", "live", "conserve"],
        typer.Option(
            help="headline: all cells; bounds: those that have bounds; limits: what the paper left open; live: learned"
            " on a running gateway; conserve: conversations, their first visible token and their energy."
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
    """Compare policies with tuned rules; exit status 1 where a bound is missed.

    What was simulated is kept in OUT and not run again, so a comparison that was stopped goes on.
    """
    if table and preset != "live":
        raise typer.BadParameter("--table goes with --preset live")
    console = Console(soft_wrap=True, highlight=False, markup=False)
    directory = out or Path("out/compare") / preset
    if not data.is_dir():
        console.print(f"{data} is not there: generators that were fitted to the traces stand in for them")
    with needed("a comparison", extras="loadtest,learn"):
        for module in NEEDED:
            import_module(module)
        from loadtest.compare.layout import NO_CLAIM  # noqa: PLC0415 (see the module's rule)
    if preset == CONSERVE:
        found = _conversations(console, data, directory, jobs, quick=quick)
    else:
        found = _paths(console, _preset(preset, quick=quick, table=table), data, directory, jobs)
    # What took hours is told before anything is drawn of it.
    if json is not None:
        _write(found.report, json)
    for line in found.lines:
        console.print(line)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "report.md").write_text(found.markdown(), encoding="utf-8")
    console.print(f"Report: {directory / 'report.md'}")
    if not found.is_claim:
        console.print(NO_CLAIM)
    if not found.holds:
        raise typer.Exit(1)


def _preset(name: str, *, quick: bool, table: bool) -> "Preset":
    from loadtest.compare.live_table import TableEffort  # noqa: PLC0415 (see the module's rule)
    from loadtest.compare.presets import PRESETS, QUICK_PRESETS  # noqa: PLC0415

    chosen = (QUICK_PRESETS if quick else PRESETS)[name]
    if table and chosen.live is not None:
        return replace(chosen, live=replace(chosen.live, table=TableEffort()))
    return chosen


def _paths(console: Console, chosen: "Preset", data: Path, directory: Path, jobs: int) -> _Found:
    from loadtest.compare.report import bound_lines, markdown  # noqa: PLC0415 (see the module's rule)
    from loadtest.compare.saturation import NoSaturationError  # noqa: PLC0415
    from loadtest.compare.session import run_preset  # noqa: PLC0415
    from loadtest.fleet.processes import FleetError  # noqa: PLC0415
    from loadtest.learning.live import LiveError  # noqa: PLC0415
    from loadtest.traces.types import TraceError  # noqa: PLC0415
    from policy_store.learn.dolphin import LearningError  # noqa: PLC0415

    console.print(f"{chosen.name}: {chosen.about}")
    try:
        report = run_preset(chosen, data=data, out=directory, jobs=jobs, tell=console.print)
    except (TraceError, NoSaturationError, FleetError, LiveError, LearningError) as error:
        raise typer.BadParameter(str(error)) from error
    return _Found(
        report=report,
        lines=bound_lines(report),
        markdown=lambda: markdown(report, [picture.name for picture in _draw(console, report.cells, directory)]),
        is_claim=report.is_claim,
        holds=report.holds,
    )


def _conversations(console: Console, data: Path, directory: Path, jobs: int, *, quick: bool) -> _Found:
    from loadtest.conserve.report import claim_lines, markdown  # noqa: PLC0415 (see the module's rule)
    from loadtest.conserve.session import run_conserve  # noqa: PLC0415
    from loadtest.traces.types import TraceError  # noqa: PLC0415

    console.print("conserve: 2 workloads of agents x 2 pools, each at the load of every baseline")
    try:
        report = run_conserve(data=data, out=directory, jobs=jobs, quick=quick, tell=console.print)
    except TraceError as error:
        raise typer.BadParameter(str(error)) from error
    return _Found(
        report=report,
        lines=claim_lines(report.claims),
        markdown=lambda: markdown(report),
        is_claim=report.is_claim,
        holds=report.holds,
    )


def _write(report: "msgspec.Struct", file: Path) -> None:
    import msgspec  # noqa: PLC0415 (see the module's rule)

    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")


def _draw(console: Console, cells: "Sequence[CellResult]", directory: Path) -> list[Path]:
    from loadtest.compare.pictures import draw  # noqa: PLC0415 (see the module's rule)

    try:
        return draw(cells, directory)
    except ImportError:
        console.print("No pictures: pip install '.[loadtest]'", markup=False)
        return []
