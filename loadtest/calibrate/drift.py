"""How far an engine has moved from its cost table since it was measured.

The rule of this module: pure; a table and what a log observed go in, two ratios come out. Above one is slower than the
table says.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from gateway.core.step_cost import CostTable
from gateway.wire.decision_record import DecisionRecord
from loadtest.calibrate.logged import log_observations
from loadtest.calibrate.observation import predicted_seconds
from loadtest.calibrate.plan import Kind
from loadtest.engine.types import EngineSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """Medians of observed over predicted times; None where nothing was observed."""

    prefill_ratio: float | None
    """Of times to first token, whole."""
    decode_ratio: float | None
    """Of times per output token."""
    requests: int
    """How many requests hardly queued and so were compared, in one phase or both."""


def drift(spec: EngineSpec, table: CostTable, records: Iterable[DecisionRecord], *, speed: float = 1.0) -> Drift:
    """Compare the requests of a log that hardly queued with what the table predicts for them."""
    ratios: dict[Kind, list[float]] = {Kind.PREFILL: [], Kind.DECODE: []}
    for seen in log_observations(records, budget_tokens=spec.max_batched_tokens, speed=speed):
        ratios[seen.kind].append(seen.seconds / predicted_seconds(spec, table, seen))
    return Drift(
        prefill_ratio=_median(ratios[Kind.PREFILL]),
        decode_ratio=_median(ratios[Kind.DECODE]),
        requests=max(map(len, ratios.values())),
    )


def _median(ratios: list[float]) -> float | None:
    return float(np.median(ratios)) if ratios else None
