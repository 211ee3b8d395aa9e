"""What is tuned before it is compared: Dynamo's rule, and the weights of `combined`.

The rule of this module: whatever is tuned sees conversations of a seed of its own, and never those that it is judged
on. Weights are learned once for a place, at the load of the strongest baseline, and kept at all others.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from gateway.core.path.price import PriceWeights
from loadtest.conserve.arms import CONSERVE_ARM, DYNAMO_RULES, PER_TURN, Arm, Place, combined, dynamo
from loadtest.conserve.figures import drawn
from loadtest.conserve.runs import Runs
from loadtest.conserve.serving import Served, Task
from loadtest.conserve.traffic import Talk
from policy_store.learn.prices import learn_weights

RANGES: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "energy_price": (0.5, 60.0),
        "stall_price": (0.1, 8.0),
        "queue_price": (0.2, 12.0),
        "prefill_price": (0.05, 12.0),
        "ttft_pull": (0.02, 4.0),
        "first_turn_pull": (1.0, 80.0),
        "tpot_pull": (0.05, 2.0),
        "tpot_width": (0.04, 0.4),
    }
)
START = PriceWeights(
    energy_price=18.0,
    stall_price=3.0,
    queue_price=0.8,
    prefill_price=2.0,
    ttft_pull=1.0,
    first_turn_pull=24.0,
    tpot_pull=1.0,
    tpot_width=0.2,
)
"""Between what earlier searches came to on 2P2D and on 1P3D, on the learning conversations."""
TBT_METRICS = ("last_tbt_p50_s", "last_tbt_p95_s")
KEPT_SAVING = 0.025
"""Of energy, so much less than ConServe's may be saved: under the four points asked, as judged conversations differ."""
TTFET_SHARE = 0.80
"""Of the better reference's P95: a tail above it costs, though less than one above the reference itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """No figure above the baseline's or ConServe's, nearly all of ConServe's saving, and then the shortest TTFET."""

    baseline: Served
    conserve: Served
    margin: float = 0.03

    def value(self, score: Served) -> float:
        """Higher is better, in attainment."""
        own, baseline, conserve = (_figures(run) for run in (score, self.baseline, self.conserve))
        loss = 0.0
        for reference in (baseline, conserve):
            for metric in ("ttfet_p95_s", "last_tbt_p95_s"):
                loss += 3.0 * max(0.0, own[metric] / reference[metric] - 1.0 + self.margin)
        best_s = min(baseline["ttfet_p95_s"], conserve["ttfet_p95_s"])
        loss += max(0.0, own["ttfet_p95_s"] / best_s - TTFET_SHARE)
        loss += 0.05 * math.log(own["ttfet_p95_s"] / best_s)
        loss += 5.0 * max(0.0, (own["energy_j"] - conserve["energy_j"]) / baseline["energy_j"] - KEPT_SAVING)
        loss += 0.2 * own["energy_j"] / baseline["energy_j"]
        return own["attained_ratio"] - loss


def learn_combined(place: Place, talk: Talk, runs: Runs, *, budget: int) -> PriceWeights:
    """Weights for `combined`, from the conversations of `talk`."""
    baseline, conserve = runs.serve_all([Task(place=place, talk=talk, arm=arm) for arm in (PER_TURN, CONSERVE_ARM)])

    def try_all(asked: Sequence[PriceWeights]) -> Sequence[Served]:
        return runs.serve_all([Task(place=place, talk=talk, arm=combined(weights)) for weights in asked])

    wish = Wish(baseline=baseline, conserve=conserve)
    return learn_weights(try_all, wish, budget=budget, seed=talk.seed, start=START, ranges=RANGES)[0].weights


def tuned_dynamo(place: Place, talk: Talk, runs: Runs) -> Arm:
    """The rule that attains most, and has the shortest TTFET tail among equals."""
    arms = [dynamo(rule) for rule in DYNAMO_RULES]
    served = runs.serve_all([Task(place=place, talk=talk, arm=arm) for arm in arms])
    ranked = [(round(run.attained_ratio, 3), -_figures(run)["ttfet_p95_s"]) for run in served]
    return arms[max(range(len(arms)), key=ranked.__getitem__)]


def _figures(run: Served) -> dict[str, float]:
    one = drawn({"": [run]}, draws=0)[""]
    return {metric: float(row[0]) for metric, row in one.rows.items()}
