"""Runs a plan into a directory.

The rule of this module: what the directory holds under a run's key is that run's outcome and is not computed again;
the table holds the plan's runs in the plan's order, however they were computed.
"""

from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass

from gateway.settings import SettingsError
from loadtest.experiment.cells import CellRun, cell_runs
from loadtest.experiment.fingerprint import run_key
from loadtest.experiment.parallel import ALL_CORES, Backend, Done, run_all
from loadtest.experiment.plan import Plan, PlanError
from loadtest.experiment.rows import Row
from loadtest.experiment.store import Entry, Store
from loadtest.traces.loaders import load_workload
from loadtest.traces.types import TraceError


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A run without an outcome."""

    label: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A plan's runs and what is known of them."""

    runs: dict[str, CellRun]
    """By key, in the order of the table."""
    found: dict[str, Entry]
    """What the directory held under these keys."""


def prepare(plan: Plan, store: Store, *, resume: bool) -> Session:
    """Check that every trace can be read, name every run, and look up what is there.

    Raises:
        PlanError: a trace or a policy's bundle cannot be read.
        StoreError: the directory cannot be used.
    """
    for name, workload in plan.workloads.items():
        try:
            load_workload(workload.trace, limit=1, seed=plan.seeds[0])
        except TraceError as error:
            raise PlanError(f"workloads.{name}.trace: {error}") from error
    try:
        runs = {run_key(run): run for run in cell_runs(plan)}
    except (SettingsError, OSError) as error:
        raise PlanError(str(error)) from error
    entries = store.open(resume=resume)
    return Session(runs=runs, found={key: entries[key] for key in runs if key in entries})


def run_session(
    session: Session,
    store: Store,
    *,
    keep_records: bool = True,
    jobs: int = ALL_CORES,
    backend: Backend = Backend.LOKY,
    on_done: Callable[[Done], object] = lambda _: None,
) -> tuple[list[Row], list[Failure]]:
    """Run what is missing; the table, and what failed. The table is written even if this is interrupted."""
    rows = {key: entry.row for key, entry in session.found.items()}
    failures = []
    todo = [(key, run) for key, run in session.runs.items() if key not in rows]
    try:
        with closing(_ends(todo, jobs, backend)) as ends:
            for done in ends:
                if done.outcome is None:
                    failures.append(Failure(label=done.run.label, error=done.error or ""))
                else:
                    records = done.outcome.records if keep_records else None
                    store.add(Entry(row=done.outcome.row, wall_s=done.wall_s), records)
                    rows[done.key] = done.outcome.row
                on_done(done)
    finally:
        table = [rows[key] for key in session.runs if key in rows]
        store.write_table(table)
    order = {run.label: place for place, run in enumerate(session.runs.values())}
    return table, sorted(failures, key=lambda failure: order[failure.label])


def _ends(todo: list[tuple[str, CellRun]], jobs: int, backend: Backend) -> Generator[Done, None, None]:
    if todo:
        yield from run_all(todo, jobs=jobs, backend=backend)
