"""The cells of a plan: one simulation each but for its seed, and the runs, which have one.

The rule of this module: a run is data that holds all that it depends on but the code and the files that it names.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from gateway.core.types import Role, SloTarget
from loadtest.experiment.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One point of the product of a plan's lists, seeds left out."""

    experiment: str
    workload: str
    fleet: str
    policy: str
    """These three by their names in the plan."""
    load: float
    """Multiple of the trace's rate."""
    slo: SloTarget
    trace: str
    requests: int | None
    workers: tuple[tuple[Role, str], ...]
    """Role and engine of every worker."""
    routing: str
    """The gateway's routing settings, as JSON."""
    scrape_interval_s: float = 1.0
    until_s: float | None = None
    """None: to the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellRun:
    """One simulation."""

    cell: Cell
    seed: int

    @property
    def label(self) -> str:
        """`workload/fleet/policy/xLOAD/slo/sSEED`, which is unique within an experiment."""
        cell = self.cell
        return f"{cell.workload}/{cell.fleet}/{cell.policy}/x{cell.load:g}/{cell.slo.name}/s{self.seed}"


def cells(plan: Plan) -> Iterator[Cell]:
    """All cells: the policy changes fastest, then the SLO, the load, the fleet and the workload."""
    for workload, fleet, load, slo, policy in product(
        plan.workloads, plan.fleets, plan.loads, plan.slos, plan.policies
    ):
        asked = plan.workloads[workload]
        yield Cell(
            experiment=plan.name,
            workload=workload,
            fleet=fleet,
            policy=policy,
            load=load,
            slo=plan.slo(slo),
            trace=asked.trace,
            requests=asked.requests,
            workers=plan.fleets[fleet].workers(),
            routing=json.dumps(plan.policies[policy], sort_keys=True),
            scrape_interval_s=plan.scrape_interval_s,
            until_s=plan.until_s,
        )


def cell_runs(plan: Plan) -> list[CellRun]:
    """All runs in the order of the result table: those of a cell side by side."""
    return [CellRun(cell=cell, seed=seed) for cell in cells(plan) for seed in plan.seeds]
