"""One currency for every route: what a request is expected to lose, and what it takes from others.

The rule of this module: a price is a pure function of an outlook and the SLO. A missed bound costs one; all else is
measured against that. Derived [D]: own loss, plus what others lose by the time that is used.

- A hold-up of h seconds adds h/n to the TPOT of an answer of n tokens, whenever it comes. Answers are found in flight
  in proportion to their length, so over those in flight 1/n has the mean 1/E[n]: h is divided by the mean length of all
  answers. How long each of those in flight will be need not be known.
- A local prefill holds up once whoever decodes there: `stall_s`.
- One more sequence of m tokens lengthens m steps by `crowd_s` each. Who leaves the batch meanwhile is followed by
  another, so every place in it is held up by m x `crowd_s`.
- Whoever comes while a prefill waits will wait for it too, `prefill_s` each. A queue in balance leaves as many behind
  as it had ahead, so they are as many as wait there now; each loses what so much more TTFT would cost this request.
"""

import math
from dataclasses import dataclass, fields

from gateway.core.path.base import PolicyError
from gateway.core.record import record
from gateway.core.types import Outlook, SloTarget

UNBOUND_TTFT_S = 2.0
UNBOUND_TPOT_S = 0.04
"""What a latency is measured by where the SLO does not bound it; then missing it costs nothing."""
LEAST_OUTPUT_TOKENS = 16.0
"""A hold-up is shared by at least so many tokens: shorter answers have hardly a TPOT."""
JOULES_PER_KJ = 1000.0
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
    first_turn_pull: float = 0.0
    """So much more on the first turn of a conversation, whose user has nothing to look at yet."""
    tpot_pull: float = 0.3
    """What one TPOT bound costs, missed or not."""
    stall_price: float = 1.0
    """Per TPOT bound that a local prefill adds to a sequence that decodes there."""
    crowd_price: float = 1.0
    """Per TPOT bound that the larger batch adds to a sequence that decodes there."""
    prefill_price: float = 0.1
    """Per TTFT bound of a prefill worker's time, whether or not somebody waits for it."""
    queue_price: float = 2.0
    """Per request that will wait for the prefill, of what so long a wait costs: 1 is as for the request itself."""
    full_price: float = 4.0
    """For a decode worker whose KV cache would be over full by all of its size."""
    energy_price: float = 0.0
    """Per kilojoule that the prefill takes beyond idling, as modelled."""
    hysteresis: float = 0.0
    """What the other path than the worker's last one must be better by."""

    def __post_init__(self) -> None:
        for each in fields(self):
            if not 0 <= getattr(self, each.name) < math.inf:
                raise PolicyError(f"{each.name} must be a finite number of at least 0")
        if not (self.ttft_width and self.tpot_width):
            raise PolicyError("the widths must be above 0")


@record
class Load:
    """A decode worker with the request that it might get, whatever the path."""

    batch: int
    """Sequences that it has or awaits."""
    resident: int
    """Those that it has: a local prefill holds them up."""
    osl_tokens: float
    """Of the request itself."""
    mean_osl_tokens: float
    """Of all answers."""
    kv_after_ratio: float | None
    """Of its KV cache, with this request; None where the size is not known."""


def price(
    outlook: Outlook,
    load: Load,
    slo: SloTarget,
    weights: PriceWeights,
    *,
    is_local: bool,
    waiting: int,
    is_first: bool = False,
) -> float:
    """What a route costs, in missed bounds; lower is better.

    Args:
        outlook: what it is expected to give and to take.
        load: of its decode worker.
        slo: the request's.
        weights: the policy's.
        is_local: whether the decode worker prefills.
        waiting: prefills at the worker that would do its own.
        is_first: whether a conversation begins with it.
    """
    ttft_bound_s = slo.ttft_s or UNBOUND_TTFT_S
    ttft = outlook.ttft_s / ttft_bound_s
    tpot_bound_s = slo.tpot_s or UNBOUND_TPOT_S
    tpot = outlook.tpot_s / tpot_bound_s
    ttft_loss = _ttft_loss(ttft, slo, weights)
    cost = ttft_loss + weights.tpot_pull * tpot
    if is_first:
        cost += weights.first_turn_pull * ttft
    if slo.tpot_s is not None:
        cost += _chance(tpot, weights.tpot_width)
    if load.batch:
        lost_s = weights.crowd_price * load.batch * outlook.crowd_s * load.osl_tokens
        if is_local:
            lost_s += weights.stall_price * load.resident * outlook.stall_s
        cost += lost_s / max(load.mean_osl_tokens, LEAST_OUTPUT_TOKENS) / tpot_bound_s
    prefill = outlook.prefill_s / ttft_bound_s
    if waiting:
        cost += weights.queue_price * waiting * (_ttft_loss(ttft + prefill, slo, weights) - ttft_loss)
    if not is_local:
        cost += weights.prefill_price * prefill
    cost += weights.energy_price * outlook.prefill_j / JOULES_PER_KJ
    if load.kv_after_ratio is not None and load.kv_after_ratio > 1.0:
        cost += weights.full_price * (load.kv_after_ratio - 1.0)
    return cost


def _ttft_loss(bounds: float, slo: SloTarget, weights: PriceWeights) -> float:
    """What a TTFT of so many bounds costs the one who has it."""
    pull = weights.ttft_pull * bounds
    return pull if slo.ttft_s is None else pull + _chance(bounds, weights.ttft_width)


def _chance(bounds: float, width: float) -> float:
    """That a latency predicted as so many bounds misses its bound."""
    distance = (bounds - 1.0) / width
    if distance > FARTHEST:
        return 1.0
    return 0.0 if distance < -FARTHEST else 1.0 / (1.0 + math.exp(-distance))
