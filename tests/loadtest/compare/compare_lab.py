"""Small comparisons: a few hundred synthetic requests on a pair of workers, and made-up results."""

from dataclasses import replace
from typing import Any

import numpy as np

from gateway.core.path.rules import DynamoMode, DynamoRule
from loadtest.compare.baselines import DYNAMO, DYNAMO_TUNED
from loadtest.compare.bootstrap import METRICS, Interval
from loadtest.compare.cells import LLAMA_8B, LLAMA_70B, SLOS, Place
from loadtest.compare.effort import QUICK, Effort
from loadtest.compare.results import ArmResult, CellResult
from loadtest.compare.serving import Served
from loadtest.compare.traffic import Half, Traffic
from policy_store.learn.factorial import FactorialPlan

PLACE = Place(workload="azure", pools="1P1D", engine=LLAMA_8B, slo=SLOS[LLAMA_8B][0])
TINY: Effort = replace(
    QUICK,
    requests=200,
    seeds=(0, 1),
    rules=(DynamoRule(), DynamoRule(mode=DynamoMode.ISL_OR_LOAD, prefill_busy_threshold=1.0)),
    budget=4,
    scan=FactorialPlan(turns=8, turn=25, passes=1),
    table_requests=300,
    draws=40,
)


def traffic(half: Half = Half.LEARN, **changes: Any) -> Traffic:
    fields: dict[str, Any] = {"workload": "azure", "requests": 200, "scale": 8.0, "seed": 3, **changes}
    return Traffic(half=half, **fields)


def served(ttft_s: list[float], tpot_s: list[float] | None = None, met: list[bool] | None = None) -> Served:
    count = len(ttft_s)
    return Served(
        ttft_s=np.array(ttft_s),
        tpot_s=np.array(tpot_s or [0.02] * count),
        met=np.array(met or [True] * count),
        local=np.zeros(count, dtype=bool),
    )


def interval(value: float, half: float = 0.01) -> Interval:
    return Interval(value, value - half, value + half)


def arm(name: str, *, tuned: dict[str, Interval] | None = None, plain: dict[str, Interval] | None = None) -> ArmResult:
    """An arm whose differences from the tuned rule, and from Dynamo's defaults, are given."""
    even = {metric: interval(0.0) for metric in METRICS}
    return ArmResult(
        name=name,
        is_learned=name not in (DYNAMO, DYNAMO_TUNED),
        words="",
        learned_ratio=0.7,
        figures={metric: interval(0.7) for metric in METRICS},
        beside={DYNAMO_TUNED: even | (tuned or {}), DYNAMO: even | (plain or {})},
    )


def cell(*arms: ArmResult, best: str = "joint", **changes: Any) -> CellResult:
    fields: dict[str, Any] = {
        "workload": "mix",
        "pools": "2P2D",
        "engine": LLAMA_70B,
        "slo": "standard",
        "slo_ttft_s": 2.0,
        "slo_tpot_s": 0.04,
        "load": 1.0,
        "scale": 4.0,
        "requests_per_s": 3.5,
        "saturation_ratio": 0.7,
        "requests": 3000,
        "seeds": 5,
        "stand_ins": [],
        "best": best,
        "strongest": DYNAMO_TUNED,
        "arms": list(arms),
        "courses": [],
        "clusters": {},
        "tried": 90,
        **changes,
    }
    return CellResult(**fields)
