"""Runs one cell with one seed.

The rule of this module: an outcome follows from the run alone, wherever and beside whatever it is computed. The same
workload and seed give every policy the same requests at the same times.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256

import msgspec

from gateway.core.types import Role
from gateway.policies import build_policy
from loadtest.client.records import Record
from loadtest.engine.engine import Engine
from loadtest.engine.presets import load_engine
from loadtest.experiment.cells import Cell, CellRun
from loadtest.experiment.fingerprint import run_key
from loadtest.experiment.plan import policy_settings
from loadtest.experiment.rows import SIMULATED, Coordinates, Row, to_row
from loadtest.experiment.timeline import Timeline, WatchedEngine, Watcher
from loadtest.report.summary import summarise
from loadtest.simulator.dispatch import CoreDispatcher, Dispatcher
from loadtest.simulator.fleet import Member, core_dispatcher
from loadtest.simulator.host import Run, ScrapePlan, Simulation
from loadtest.simulator.records import to_records
from loadtest.traces.loaders import load_workload
from loadtest.traces.retime import start_rate_rps
from loadtest.traces.workload import Driver, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run gave."""

    row: Row
    records: list[Record]
    """In order of arrival."""


def run_cell(run: CellRun) -> Outcome:
    """Simulate it.

    Raises:
        TraceError: the trace cannot be read.
        SettingsError: the policy cannot be built.
    """
    workload = _workload(run)
    engines = [Engine(*load_engine(name), tells_every_token=False) for _, name in run.cell.workers]
    driver = workload.driver()
    return _outcome(run, workload, driver, _simulated(run, engines, _core(run, workload), driver))


def watch_cell(run: CellRun) -> tuple[Outcome, Timeline]:
    """Simulate it once more and keep what it looked like over time; the outcome is that of `run_cell`."""
    workload = _workload(run)
    engines = [WatchedEngine(*load_engine(name)) for _, name in run.cell.workers]
    watcher = Watcher(_core(run, workload), [member.name for member in members_of(run.cell)])
    driver = workload.driver()
    ran = _simulated(run, engines, watcher, driver)
    return _outcome(run, workload, driver, ran), watcher.timeline(engines, ran.until_s)


def members_of(cell: Cell) -> list[Member]:
    """The cell's workers: `prefill-0`, `decode-0`, or `worker-0` where they do both."""
    numbers: Counter[Role] = Counter()
    members = []
    for role, engine in cell.workers:
        name = f"{'worker' if role is Role.BOTH else role.value}-{numbers[role]}"
        numbers[role] += 1
        members.append(Member(name, role, load_engine(engine)[0]))
    return members


def _simulated(run: CellRun, engines: Sequence[Engine], dispatcher: Dispatcher, driver: Driver) -> Run:
    scrape = ScrapePlan(interval_s=run.cell.scrape_interval_s)
    until_s = float("inf") if run.cell.until_s is None else run.cell.until_s
    return Simulation(engines, dispatcher, driver, scrape=scrape).run(until_s)


def _outcome(run: CellRun, workload: Workload, driver: Driver, ran: Run) -> Outcome:
    cell, records = run.cell, to_records(ran)
    where = Coordinates(
        experiment=cell.experiment,
        workload=cell.workload,
        fleet=cell.fleet,
        policy=cell.policy,
        load=cell.load,
        slo=cell.slo.name,
        seed=run.seed,
    )
    row = to_row(
        where,
        summarise(records, cell.slo, asked=len(driver.requests)),
        source=SIMULATED,
        key=run_key(run),
        trace_hash=sha256(msgspec.json.encode(workload)).hexdigest()[:16],
        offered_per_s=_offered_per_s(workload),
    )
    return Outcome(row=row, records=records)


def _workload(run: CellRun) -> Workload:
    return _loaded(run.cell.trace, run.cell.requests, run.seed, run.cell.load)


@lru_cache(maxsize=1)
def _loaded(trace: str, requests: int | None, seed: int, load: float) -> Workload:
    """Policies that are compared ask for the same workload one after the other."""
    return load_workload(trace, limit=requests, seed=seed, rate_scale=load)


def _core(run: CellRun, workload: Workload) -> CoreDispatcher:
    policy = build_policy(policy_settings(msgspec.json.decode(run.cell.routing)))
    return core_dispatcher(policy, members_of(run.cell), workload, run.cell.slo, seed=run.seed)


def _offered_per_s(workload: Workload) -> float | None:
    try:
        return start_rate_rps(workload)
    except ValueError:
        return None
