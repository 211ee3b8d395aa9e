"""Tiny plans."""

from typing import Any

from loadtest.experiment.cells import CellRun, cell_runs
from loadtest.experiment.plan import Plan, parse_plan

TREE: dict[str, Any] = {
    "name": "tiny",
    "workloads": {"talk": {"trace": "synthetic:mooncake", "requests": 30}},
    "fleets": {"pair": {"pools": "1P1D", "engine": "h100-llama8b"}},
    "policies": {"remote": "remote", "local": "local"},
    "loads": [1.0, 2.0],
    "slos": {"chat": "ttft=2s,tpot=40ms"},
    "seeds": 2,
}


def plan(**change: Any) -> Plan:
    """Two policies, two loads and two seeds of 30 requests on 1P1D, but for what is changed."""
    return parse_plan({**TREE, **change})


def first_run(**change: Any) -> CellRun:
    return cell_runs(plan(**change))[0]
