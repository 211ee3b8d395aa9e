"""What a simulated gateway is told of the answers' lengths.

The rule of this module: a prediction is made from a request and a seed, before the run; what is told is the same for
every policy. A simulator knows the true lengths, a gateway does not: whoever tells them must say so.
"""

import math
from collections.abc import Callable, Sequence
from enum import StrEnum
from statistics import NormalDist, fmean, pstdev

import numpy as np

from loadtest.traces.types import TraceRequest

NOISE = 0.5
RANKED_RIGHT = 0.72
"""Of pairs of answers, how many the imitated predictor orders rightly: about what prompts allow."""


class Lengths(StrEnum):
    """What stands for the length of an answer in the gateway's features."""

    ROLLING = "rolling"
    """Nothing is told: the gateway takes the mean of the last answers."""
    LIMIT = "limit"
    """The true length is told as the request's limit, so the gateway takes it where it is below that mean."""
    PERFECT = "perfect"
    PREDICTED = "predicted"
    """Predictions as uncertain as those from prompts, and calibrated."""
    NOISY = "noisy"
    """The true length, wrong by up to half of itself either way, all errors being equally likely."""
    CONSTANT = "constant"
    """The mean of all answers."""
    SHUFFLED = "shuffled"
    """The true lengths, each at another request."""


Foretold = Callable[[TraceRequest], int]
"""The length that is predicted of an answer, in tokens."""


def foretold(lengths: Lengths, requests: Sequence[TraceRequest], *, seed: int) -> Foretold | None:
    """Predictions for these requests, and for laps of them; None where nothing is predicted."""
    match lengths:
        case Lengths.ROLLING | Lengths.LIMIT:
            return None
        case Lengths.PERFECT:
            return _true
        case Lengths.NOISY:
            factors = np.random.default_rng((seed, 1)).uniform(1.0 - NOISE, 1.0 + NOISE, len(requests)).tolist()
            return lambda request: max(1, round(factors[request.index % len(factors)] * request.output_tokens))
        case Lengths.CONSTANT:
            mean = round(fmean(map(_true, requests)))
            return lambda _: mean
        case Lengths.SHUFFLED:
            shuffled = np.random.default_rng(seed).permutation([_true(each) for each in requests]).tolist()
            return lambda request: shuffled[request.index % len(shuffled)]
        case Lengths.PREDICTED:
            predicted = calibrated_predictions([_true(each) for each in requests], ranked_right=RANKED_RIGHT, seed=seed)
            return lambda request: predicted[request.index % len(predicted)]


def calibrated_predictions(lengths: Sequence[int], *, ranked_right: float, seed: int) -> list[int]:
    """Lengths as a predictor would give them that orders such a share of pairs rightly and is right on average.

    The logarithms of lengths and of what the predictor sees are taken as jointly normal with correlation r, which
    orders 1/2 + asin(r)/pi of the pairs rightly; it predicts the mean that follows from what it sees.
    """
    logs = [math.log(max(1, length)) for length in lengths]
    mean, spread = fmean(logs), pstdev(logs)
    correlation = math.sin(math.pi * (ranked_right - 0.5))
    unseen = math.sqrt(1.0 - correlation**2)
    noise = np.random.default_rng(seed).standard_normal(len(logs))
    # Ranks rather than standardised logarithms: lengths are not quite log-normal.
    normal = NormalDist()
    order = np.argsort(np.argsort(logs, kind="stable"), kind="stable")
    seen = [
        correlation * normal.inv_cdf((rank + 0.5) / len(logs)) + unseen * float(extra)
        for rank, extra in zip(order.tolist(), noise, strict=True)
    ]
    raw = [math.exp(mean + spread * correlation * each + (spread * unseen) ** 2 / 2.0) for each in seen]
    factor = fmean(lengths) / fmean(raw)
    return [max(1, round(each * factor)) for each in raw]


def _true(request: TraceRequest) -> int:
    return request.output_tokens
