"""One currency for every route: what a request is expected to lose, and what it takes from others.

The rule of this module: a price is a pure function of an outlook and the SLO. A missed bound costs one; all else is
measured against that. Derived [D]: own loss, plus the shadow price of the decode time and prefill time that is used.
"""

import math
from dataclasses import dataclass, fields

from gateway.core.path.base import PolicyError
from gateway.core.types import Outlook, SloTarget

UNBOUND_TTFT_S = 2.0
UNBOUND_TPOT_S = 0.04
"""What a latency is measured by where the SLO does not bound it; then missing it costs nothing."""
LEAST_OUTPUT_TOKENS = 16.0
"""A stall is shared by at least so many tokens of those that it hits: of their length only the mean is known."""
FARTHEST = 30.0
"""Beyond so many widths a bound is missed or kept for certain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceWeights:
    """What is learned; every one is at least 0, and the widths are above it."""

    ttft_width: float = 0.25
    """How uncertain a predicted TTFT is, in bounds: at the bound itself half the requests miss it."""
    tpot_width: float = 0.15
    """The same of a predicted TPOT."""
    ttft_pull: float = 0.1
    """What one TTFT bound of latency costs, missed or not."""
    tpot_pull: float = 0.3
    """What one TPOT bound costs, missed or not."""
    stall_price: float = 1.0
    """Per TPOT bound that a local prefill adds to a sequence that decodes there."""
    crowd_price: float = 1.0
    """Per TPOT bound that the larger batch adds to a sequence that decodes there."""
    prefill_price: float = 0.1
    """Per TTFT bound of a prefill worker's time."""
    full_price: float = 4.0
    """For a decode worker whose KV cache would be over full by all of its size."""
    hysteresis: float = 0.0
    """What the other path than the worker's last one must be better by."""

    def __post_init__(self) -> None:
        for each in fields(self):
            if not 0 <= getattr(self, each.name) < math.inf:
                raise PolicyError(f"{each.name} must be a finite number of at least 0")
        if not (self.ttft_width and self.tpot_width):
            raise PolicyError("the widths must be above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """What a route would take, beside what it is expected to give."""

    outlook: Outlook
    batch: int
    """Sequences that decode on its decode worker."""
    osl_tokens: float
    kv_after_ratio: float | None
    """Of its decode worker's KV cache, with this request; None where its size is not known."""
    is_local: bool


def price(use: Use, slo: SloTarget, weights: PriceWeights) -> float:
    """What the route costs, in missed bounds; lower is better."""
    outlook = use.outlook
    ttft = outlook.ttft_s / (slo.ttft_s or UNBOUND_TTFT_S)
    tpot_bound_s = slo.tpot_s or UNBOUND_TPOT_S
    tpot = outlook.tpot_s / tpot_bound_s
    cost = weights.ttft_pull * ttft + weights.tpot_pull * tpot
    if slo.ttft_s is not None:
        cost += _chance(ttft, weights.ttft_width)
    if slo.tpot_s is not None:
        cost += _chance(tpot, weights.tpot_width)
    if use.batch:
        cost += weights.crowd_price * use.batch * outlook.crowd_s / tpot_bound_s
        if use.is_local:
            added_s = outlook.stall_s / max(use.osl_tokens, LEAST_OUTPUT_TOKENS)
            cost += weights.stall_price * use.batch * added_s / tpot_bound_s
    if not use.is_local:
        cost += weights.prefill_price * outlook.prefill_s / (slo.ttft_s or UNBOUND_TTFT_S)
    if use.kv_after_ratio is not None and use.kv_after_ratio > 1.0:
        cost += weights.full_price * (use.kv_after_ratio - 1.0)
    return cost


def _chance(bounds: float, width: float) -> float:
    """That a latency predicted as so many bounds misses its bound."""
    distance = (bounds - 1.0) / width
    if distance > FARTHEST:
        return 1.0
    return 0.0 if distance < -FARTHEST else 1.0 / (1.0 + math.exp(-distance))
