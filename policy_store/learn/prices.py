"""Learning what routes cost: a search over the weights of `gateway.core.path.price`.

The rule of this module: it proposes weights and is told how each of them did; who tries them, and where, is not its
business. Everything is drawn from one seed. Method [D]: a wide draw first, then ever closer to the best ones seen (the
cross-entropy method), because a few dozen tries of a noisy figure in seven dimensions leave no gradient to follow.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import starmap
from types import MappingProxyType
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from gateway.core.path.price import PriceWeights

Floats = NDArray[np.float64]
Ranges = Mapping[str, tuple[float, float]]
ScoreT = TypeVar("ScoreT")
SeenT_contra = TypeVar("SeenT_contra", contravariant=True)

RANGES: Ranges = MappingProxyType(
    {
        "ttft_width": (0.08, 0.8),
        "tpot_width": (0.04, 0.4),
        "ttft_pull": (0.02, 2.0),
        "tpot_pull": (0.05, 2.0),
        "stall_price": (0.05, 4.0),
        "crowd_price": (0.05, 4.0),
        "queue_price": (0.2, 8.0),
    }
)
"""What is searched, by factor; the other weights stay as they are."""
ROUNDS = 4
ELITE_SHARE = 0.25
LEAST_SPREAD = 0.25
"""Of a later round, as a factor's logarithm: it still looks around the best."""


PARTS = 5
"""Consecutive parts of the traffic, of which the tails are known too."""
LATE_S = 1e6
"""Stands for a latency without end where a figure must be finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tails:
    """P90 and P50 of both latencies; a TPOT of 0 is that of answers without a second token."""

    ttft_p90_s: float
    tpot_p90_s: float
    ttft_p50_s: float = 0.0
    """0 where it is not known."""
    tpot_p50_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Score(Tails):
    """How some traffic was served."""

    attained_ratio: float
    parts: tuple[Tails, ...] = ()
    """Tails of consecutive parts of the requests; may be empty."""


def scored(ttft_s: Floats, tpot_s: Floats, met: NDArray[np.bool_]) -> Score:
    """The score of requests in order of arrival.

    Args:
        ttft_s: infinite where there was no answer.
        tpot_s: NaN for answers of one token, infinite where there was no answer.
        met: whether the SLO was.
    """
    parts = tuple(
        Tails(**_quantiles(ttft, tpot))
        for ttft, tpot in zip(np.array_split(ttft_s, PARTS), np.array_split(tpot_s, PARTS), strict=True)
    )
    return Score(attained_ratio=float(met.mean()), **_quantiles(ttft_s, tpot_s), parts=parts)


def _quantiles(ttft_s: Floats, tpot_s: Floats) -> dict[str, float]:
    return {
        "ttft_p90_s": _quantile(ttft_s, 0.9),
        "tpot_p90_s": _quantile(tpot_s, 0.9),
        "ttft_p50_s": _quantile(ttft_s, 0.5),
        "tpot_p50_s": _quantile(tpot_s, 0.5),
    }


def _quantile(values: Floats, share: float) -> float:
    """The smallest value that so many do not exceed; 0 without any."""
    known = values[~np.isnan(values)]
    return min(LATE_S, float(np.quantile(known, share, method="inverted_cdf"))) if known.size else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What a policy is to be better than, and by how much in the tails; attainment is always to be as high as can be.

    A tail above its share costs `tail_price` per whole reference that it is above, and `loss_price` more of what it is
    above the reference itself: what gets better must not pay for what gets worse. Below its share, shorter is still
    better: by a pull for each time that it is shorter by a factor e. TPOT pulls more, for it has a floor, the lone
    decode step: there is far less to be gained by a factor than of TTFT, and the search would spend it.

    Tails are compared part by part of the traffic, where these are known: one bad stretch of the reference makes up the
    P90 of the whole, and to be better than that is no merit in the rest. Medians gain nothing, but cost where they are
    above the reference's.
    """

    reference: Score
    """The best-tuned rule's."""
    ttft_share: float = 0.85
    tpot_share: float = 0.75
    tail_price: float = 0.5
    loss_price: float = 3.0
    median_price: float = 1.0
    ttft_pull: float = 0.05
    tpot_pull: float = 0.5

    def value(self, score: Score) -> float:
        """Higher is better, in attainment."""
        own, its = score.parts, self.reference.parts
        pairs = list(zip(own, its, strict=True)) if own and len(own) == len(its) else [(score, self.reference)]
        return score.attained_ratio - sum(starmap(self._loss, pairs)) / len(pairs)

    def _loss(self, own: Tails, its: Tails) -> float:
        loss = 0.0
        for own_s, reference_s, share, pull in (
            (own.ttft_p90_s, its.ttft_p90_s, self.ttft_share, self.ttft_pull),
            (own.tpot_p90_s, its.tpot_p90_s, self.tpot_share, self.tpot_pull),
        ):
            if reference_s > 0:
                ratio = own_s / reference_s
                loss += self.tail_price * max(0.0, ratio - share) + self.loss_price * max(0.0, ratio - 1.0)
                loss += pull * math.log(max(ratio, 1e-3))
        for own_s, reference_s in (own.ttft_p50_s, its.ttft_p50_s), (own.tpot_p50_s, its.tpot_p50_s):
            if reference_s > 0:
                loss += self.median_price * max(0.0, own_s / reference_s - 1.0)
        return loss


class Wanted(Protocol[SeenT_contra]):
    """What is wanted of traffic."""

    def value(self, score: SeenT_contra) -> float:
        """How good a score is; higher is better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried(Generic[ScoreT]):
    """One try."""

    weights: PriceWeights
    score: ScoreT
    value: float


TryAll = Callable[[Sequence[PriceWeights]], Sequence[ScoreT]]
"""Serve the same traffic by each of some weights."""


def learn_weights(
    try_all: TryAll[ScoreT],
    goal: Wanted[ScoreT],
    *,
    budget: int,
    seed: int,
    start: PriceWeights | None = None,
    ranges: Ranges = RANGES,
) -> list[Tried[ScoreT]]:
    """All tries, the best first; the start is one of them.

    Args:
        try_all: serves the learning traffic.
        goal: what is wanted of it.
        budget: how many weights are tried in all.
        seed: of all draws.
        start: what is known to be sensible; every factor that is searched must be above 0 in it.
        ranges: what is searched; the other weights stay as they are in `start`.

    Raises:
        ValueError: the budget is not one try per round.
    """
    if budget < ROUNDS:
        raise ValueError(f"a search takes at least {ROUNDS} tries")
    rng = np.random.default_rng(seed)
    first = start or PriceWeights()
    tried: list[Tried[ScoreT]] = []
    for number in range(ROUNDS):
        size = budget // ROUNDS + (number < budget % ROUNDS)
        drawn = _wide(rng, size - 1, first, ranges) if number == 0 else _close(rng, size, tried, ranges)
        asked = [first, *drawn] if number == 0 else drawn
        scores = try_all(asked)
        tried += [
            Tried(weights=weights, score=score, value=goal.value(score))
            for weights, score in zip(asked, scores, strict=True)
        ]
        tried.sort(key=lambda one: one.value, reverse=True)
    return tried


def _wide(rng: np.random.Generator, count: int, first: PriceWeights, ranges: Ranges) -> list[PriceWeights]:
    """Anywhere in the ranges."""
    lows, highs = np.log([*ranges.values()]).T
    return [_weights(first, row, ranges) for row in rng.uniform(lows, highs, size=(count, len(ranges)))]


def _close(rng: np.random.Generator, count: int, tried: Sequence[Tried[ScoreT]], ranges: Ranges) -> list[PriceWeights]:
    """Near the best, spread as they are."""
    elite = tried[: max(2, round(ELITE_SHARE * len(tried)))]
    points = np.array([[math.log(asdict(one.weights)[name]) for name in ranges] for one in elite])
    spread = np.maximum(points.std(axis=0), LEAST_SPREAD)
    lows, highs = np.log([*ranges.values()]).T
    drawn = np.clip(rng.normal(points.mean(axis=0), spread, size=(count, len(ranges))), lows, highs)
    return [_weights(elite[0].weights, row, ranges) for row in drawn]


def _weights(base: PriceWeights, logs: Sequence[float], ranges: Ranges) -> PriceWeights:
    return replace(base, **{name: round(math.exp(log), 5) for name, log in zip(ranges, logs, strict=True)})
