"""Tiny plans."""

import json
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


def bundle(**change: Any) -> bytes:
    """A table that sends short prompts one way and long ones the other."""
    content = {
        "format": 1,
        "kind": "path-table",
        "features": ["isl_tokens", "prefill_isl_tokens", "decode_isl_tokens", "osl_tokens"],
        "scaler": {"mean": [8.6, 8.2, 8.1, 5.6], "std": [1.2, 1.6, 1.7, 0.8]},
        "clusters": {"kind": "kmeans", "centroids": [[-0.8, -1.0, -1.1, 0.0], [0.9, 0.8, 0.8, 0.0]]},
        "actions": ["local", "remote"],
        "max_decode_kv_ratio": 0.9,
        "max_local_tokens": 16384,
        "provenance": {"learned_from": "an example"},
    }
    return json.dumps({**content, **change}).encode()
