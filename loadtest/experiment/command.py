"""The `tidegate experiment` command.

The rule of this module: it turns options into a session and shows what came of it; every figure on the screen is in a
file too. What only this command needs is loaded when it runs.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from policy_store.learn.extras import needed

if TYPE_CHECKING:
    from loadtest.experiment.parallel import Done
    from loadtest.experiment.plan import Plan
    from loadtest.experiment.rows import Row
    from loadtest.experiment.session import Session
    from loadtest.experiment.store import Store

OnDone = Callable[["Done"], object]
EXAMPLES = resources.files("loadtest.experiment") / "examples"
INTERRUPTED = 130


def experiment_command(
    file: Annotated[Path, typer.Argument(help="The experiment, a YAML file, or the name of a shipped example.")],
    *,
    out: Annotated[Path, typer.Option(help="Directory for the table, records and plots.")],
    jobs: Annotated[int, typer.Option(help="Runs at a time; -1 is one per core, of all nodes with ray.")] = -1,
    backend: Annotated[
        Literal["loky", "ray"], typer.Option(help="Processes of this machine, or a Ray cluster (RAY_ADDRESS).")
    ] = "loky",
    resume: Annotated[bool, typer.Option("--resume", help="Go on: what OUT holds already is not run again.")] = False,
    timeline: Annotated[
        list[str] | None,
        typer.Option(help="Draw this run over time: workload/fleet/policy/xLOAD/slo/sSEED. May be repeated."),
    ] = None,
    plots: Annotated[bool, typer.Option(help="Draw the results (needs matplotlib).")] = True,
) -> None:
    """Simulate every cell of an experiment file and compare its policies, seed by seed.

    Runs in virtual time on the gateway's own decision core; needs no GPU. Exit status 1 if any run failed.
    """
    with needed("an experiment", extras="loadtest"):
        from loadtest.experiment.parallel import Backend, BackendMissing  # noqa: PLC0415 (see the module's rule)
        from loadtest.experiment.plan import PlanError, read_plan  # noqa: PLC0415
        from loadtest.experiment.session import prepare, run_session  # noqa: PLC0415
        from loadtest.experiment.store import Store, StoreError  # noqa: PLC0415

    console, store = Console(), Store(out)
    try:
        plan = read_plan(_found(file))
        session = prepare(plan, store, resume=resume)
        labels = _known_labels(session, timeline or [])
    except (PlanError, StoreError) as error:
        raise typer.BadParameter(str(error)) from error
    try:
        with _progress(console, session) as on_done:
            rows, failures = run_session(
                session,
                store,
                keep_records=plan.keep_records,
                jobs=jobs,
                backend=Backend(backend),
                on_done=on_done,
            )
    except BackendMissing as error:
        raise typer.BadParameter(str(error)) from error
    except (KeyboardInterrupt, BrokenExecutor) as stop:
        why = "Stopped" if isinstance(stop, KeyboardInterrupt) else f"A process died: {stop}"
        console.print(f"{why}. What had ended is in {out}; --resume goes on.")
        raise typer.Exit(INTERRUPTED if isinstance(stop, KeyboardInterrupt) else 1) from None
    _show(console, plan, rows, out)
    if plots:
        _draw(console, rows, store, out / "plots")
    for label in labels:
        _draw_run(console, session, label, out / "timelines")
    for failure in failures:
        console.print(f"[red]{failure.label}: {failure.error}[/]")
    if failures:
        raise typer.Exit(1)


def _found(file: Path) -> Path:
    """The file, or the shipped example of that name."""
    example = Path(str(EXAMPLES / f"{file}.yaml"))
    return example if not file.exists() and example.is_file() else file


def _known_labels(session: "Session", labels: list[str]) -> list[str]:
    known = [run.label for run in session.runs.values()]
    for label in labels:
        if label not in known:
            raise typer.BadParameter(f"--timeline: there is no run {label!r}; one is {known[0]}")
    return labels


@contextmanager
def _progress(console: Console, session: "Session") -> Iterator["OnDone"]:
    columns = (
        TextColumn("runs"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[last]}"),
    )
    if session.found:
        console.print(f"{len(session.found)} of {len(session.runs)} runs were there already")
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("runs", total=len(session.runs), completed=len(session.found), last="")

        def on_done(done: "Done") -> None:
            bar.update(task, advance=1, last=done.run.label)

        yield on_done


def _show(console: Console, plan: "Plan", rows: Sequence["Row"], out: Path) -> None:
    import msgspec  # noqa: PLC0415 (see the module's rule)

    from loadtest.experiment.compare import compare  # noqa: PLC0415
    from loadtest.experiment.tables import CAPTION, comparison_tables  # noqa: PLC0415

    comparisons = compare(rows, plan.compared_with)
    (out / "comparison.jsonl").write_bytes(msgspec.json.Encoder().encode_lines(comparisons))
    for table in comparison_tables(comparisons):
        console.print(table)
    console.print(f"{CAPTION} Baseline: {plan.compared_with}.")
    console.print(f"Table: {out}/results.jsonl ({len(rows)} rows)")


def _draw(console: Console, rows: Sequence["Row"], store: "Store", out: Path) -> None:
    from loadtest.experiment.figures import draw_latencies, draw_loads  # noqa: PLC0415 (see the module's rule)

    kept = [row for row in rows if store.records_file(row.key).exists()]
    try:
        pictures = [*draw_loads(rows, out), *draw_latencies(kept, store.records, out)]
    except ImportError:
        console.print("No plots: pip install '.[loadtest]'", markup=False)
        return
    console.print(f"Plots: {out} ({len(pictures)})")


def _draw_run(console: Console, session: "Session", label: str, out: Path) -> None:
    from loadtest.experiment.figures import draw_timeline  # noqa: PLC0415 (see the module's rule)
    from loadtest.experiment.run import watch_cell  # noqa: PLC0415

    run = next(run for run in session.runs.values() if run.label == label)
    _, timeline = watch_cell(run)
    console.print("Timeline:", *map(str, draw_timeline(timeline, label, out)), sep="\n  ")
