"""Small comparisons and made-up runs."""

import math
from typing import Any

import msgspec

from loadtest.compare.bootstrap import Interval
from loadtest.conserve.figures import METRICS
from loadtest.conserve.results import ArmFigures, CellFigures
from loadtest.conserve.serving import Served

EXACT: dict[str, float] = {
    "ttfet_p50_s": 0.2,
    "ttfet_p95_s": 1.0,
    "last_tbt_p50_s": 0.02,
    "last_tbt_p95_s": 0.03,
    "attained_ratio": 0.9,
    "energy_j": 5000.0,
    "transfers_mean": 1.0,
}


def served(count: int = 40, **changes: Any) -> Served:
    """A run of so many conversations of ten turns, nine of which met the SLO."""
    run = Served(
        ttfet_s=[0.1 + number / 100 for number in range(count)],
        last_tbt_s=[0.02] * (count - 1) + [math.nan],
        transfers=[1] * count,
        met=[9] * count,
        turns=[10] * count,
        energy_j=1000.0 * count,
        prefill_busy=0.5,
        decode_busy=0.9,
        ttft_p95_s=0.4,
        local_ratio=0.9,
        cached_ratio=0.8,
        duration_s=100.0,
        live_kv_tokens=10_000.0,
    )
    return msgspec.structs.replace(run, **changes)


def interval(value: float, width: float = 0.0) -> Interval:
    return Interval(value, value - width, value + width)


def arm(name: str, *, baseline: dict[str, float] | None = None, busy: float = 0.5, **changes: float) -> ArmFigures:
    """An arm's figures, and how they compare with those of a baseline, without any doubt."""
    own = EXACT | changes
    beside = {}
    if baseline is not None:
        for metric in METRICS:
            is_points = metric in {"attained_ratio", "transfers_mean"}
            beside[metric] = interval(
                own[metric] - baseline[metric] if is_points else own[metric] / baseline[metric] - 1
            )
    return ArmFigures(
        name=name,
        words="made up",
        figures={metric: interval(own[metric]) for metric in METRICS},
        beside=beside,
        prefill_busy=busy,
        decode_busy=0.9,
        local_ratio=0.5,
        cached_ratio=0.8,
        ttft_p95_s=0.5,
    )


def cell(*arms: ArmFigures, **changes: Any) -> CellFigures:
    """A cell whose first arm is the baseline."""
    fields: dict[str, Any] = {
        "workload": "miniswe",
        "pools": "2P2D",
        "kv_share": 1.0,
        "baseline": arms[0].name,
        "saturation_rps": 50.0,
        "load": 0.8,
        "conversations_rps": 2.0,
        "conversations": 600,
        "seeds": 5,
        "live_kv_tokens": 650_000.0,
        "kv_tokens": 500_000,
        "floor_p50_s": 0.1,
        "floor_p95_s": 0.2,
        "arms": list(arms),
        "stand_ins": [],
    }
    return CellFigures(**(fields | changes))
