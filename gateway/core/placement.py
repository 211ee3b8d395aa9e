"""Which worker of a pool: filter, score, pick.

The rule of this module: a scorer is a pure function of a whole pool, with values in [0,1], or None where its signal is
missing; the weights live in the policy. Ties go to the rendezvous order of the request, so they spread and still
repeat.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import add
from types import MappingProxyType
from typing import cast

from gateway.core.hashing import hash64, ranks_of
from gateway.core.path.base import PolicyError
from gateway.core.record import record
from gateway.core.types import Candidate, WorkerView

MAX_CANDIDATES = 4
"""How many scored workers a decision records; the best ones."""
EVEN_PREFILL_TOKENS = 1024
EVEN_REQUESTS = 4
"""Added to both sides of a ratio: below about so much, workers count as nearly even, and near-idle ones do not
differ by orders of magnitude."""
DYNAMO_BLOCK_TOKENS = 16
"""Where a worker does not say how long its blocks are; vLLM's default."""


@record
class Pool:
    """The workers of one pool as one request sees them."""

    views: Sequence[WorkerView]
    hit_tokens: Sequence[int]
    """Leading prompt tokens that each worker is thought to hold."""
    isl_tokens: int

    @classmethod
    def of(cls, views: Sequence[WorkerView], isl_tokens: int) -> "Pool":
        """A pool whose views say themselves what is cached."""
        return cls(views=views, hit_tokens=[view.hit_tokens for view in views], isl_tokens=isl_tokens)


Scores = Sequence[float | None]
"""One per worker of a pool."""


def prefix_hit(pool: Pool) -> Scores:
    """1.0: the worker holds the whole prompt."""
    isl = pool.isl_tokens
    return [hit / isl for hit in pool.hit_tokens] if isl else [None] * len(pool.views)


def prefill_work(pool: Pool) -> Scores:
    """1.0: no other worker would end this request's prefill with less work, its queue included."""
    even = EVEN_PREFILL_TOKENS + pool.isl_tokens
    work = [even + view.prefill_tokens - hit for view, hit in zip(pool.views, pool.hit_tokens, strict=True)]
    least = min(work)
    return [least / own for own in work]


def few_requests(pool: Pool) -> Scores:
    """1.0: no other worker has fewer requests in flight."""
    requests = [EVEN_REQUESTS + view.inflight_requests for view in pool.views]
    least = min(requests)
    return [least / own for own in requests]


def kv_free(pool: Pool) -> Scores:
    """1.0: the KV cache is empty."""
    return [None if (used := view.kv_used_ratio) is None else 1.0 - used if used < 1.0 else 0.0 for view in pool.views]


def queue_free(pool: Pool) -> Scores:
    """1.0: nothing waits inside the engine."""
    return [None if view.queue_depth is None else 1.0 / (1 + view.queue_depth) for view in pool.views]


def dynamo_prefill_cost(pool: Pool) -> Scores:
    """1.0: no other worker costs Dynamo's KV router less for a prefill (peers.md 2.1 [V]).

    Its cost there is max(queued prefill tokens + prompt - cached, 0) in blocks, at a prefill-load-scale and an overlap
    credit of 1 each. The lowest cost wins, and the score falls as the cost rises, so the order is the router's.
    """
    costs = [
        max(view.prefill_tokens + pool.isl_tokens - hit, 0) / (view.kv_block_tokens or DYNAMO_BLOCK_TOKENS)
        for view, hit in zip(pool.views, pool.hit_tokens, strict=True)
    ]
    return _cheapest(costs)


def dynamo_decode_cost(pool: Pool) -> Scores:
    """1.0: no other worker costs Dynamo's KV router less for a decode (peers.md 2.1 [V]).

    Its cost there is active decode blocks + the prompt's, whatever is cached. Active are here the blocks that this
    gateway's requests hold or have reserved.
    """
    costs = []
    for view in pool.views:
        block = view.kv_block_tokens or DYNAMO_BLOCK_TOKENS
        costs.append(float(-(-view.kv_tokens // block) - (-pool.isl_tokens // block)))
    return _cheapest(costs)


def _cheapest(costs: Sequence[float]) -> Scores:
    """The least cost over each one's own, one added to both so that a cost may be 0."""
    least = min(costs)
    return [(1.0 + least) / (1.0 + own) for own in costs]


Scorer = Callable[[Pool], Scores]
"""Scores the workers of a pool that has some."""

SCORERS: Mapping[str, Scorer] = MappingProxyType(
    {
        scorer.__name__: scorer
        for scorer in (
            prefix_hit,
            prefill_work,
            few_requests,
            kv_free,
            queue_free,
            dynamo_prefill_cost,
            dynamo_decode_cost,
        )
    }
)
"""All scorers by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Scorer weights for one pool."""

    weights: tuple[tuple[str, float], ...]

    def __post_init__(self) -> None:
        for name, weight in self.weights:
            if name not in SCORERS:
                raise PolicyError(f"unknown scorer {name!r}; known are {', '.join(SCORERS)}")
            if not 0 <= weight < math.inf:
                raise PolicyError(f"the weight of scorer {name} must be a finite number of at least 0")

    def rank(self, pool: Pool, tie_key: str, limit: int | None = None) -> list[Candidate]:
        """The best `limit` workers (all of them where it is None), best first; empty for an empty pool."""
        if not pool.views:
            return []
        columns = [(name, weight, SCORERS[name](pool)) for name, weight in self.weights]
        totals = _weighted_means(columns, len(pool.views))
        ranked = []
        for place in _best(totals, pool.views, tie_key, limit):
            scores = [(name, score) for name, _, column in columns if (score := column[place]) is not None]
            ranked.append(Candidate(pool.views[place].worker_id, tuple(scores), totals[place]))
        return ranked


def _weighted_means(columns: Sequence[tuple[str, float, Scores]], workers: int) -> list[float]:
    """By worker; a score that is missing is left out of its mean."""
    totals: Sequence[float] | None = None
    weights: list[float] | None = None
    common = 0.0
    for _, weight, scores in columns:
        if None in scores:
            weights = weights or [0.0] * workers
            sums = [0.0] * workers if totals is None else list(totals)
            for place, score in enumerate(scores):
                if score is not None:
                    sums[place] += weight * score
                    weights[place] += weight
            totals = sums
        else:
            whole = cast("Sequence[float]", scores)
            weighted = whole if weight == 1.0 else [weight * score for score in whole]
            totals = weighted if totals is None else list(map(add, totals, weighted))
            common += weight
    if totals is None:
        return [0.0] * workers
    if weights is None:
        return [total / common for total in totals] if common else list(totals)
    return [
        total / (weight + common) if weight + common else 0.0 for total, weight in zip(totals, weights, strict=True)
    ]


def _best(totals: Sequence[float], views: Sequence[WorkerView], tie_key: str, limit: int | None) -> list[int]:
    """The places of the highest totals; equal ones in rendezvous order, which is worked out only where it matters."""
    by_total = totals.__getitem__
    places = range(len(totals))
    if len(totals) == 1 or len(set(totals)) > 1:
        order = sorted(places, key=by_total, reverse=True)
        # The next one too: it may be as good as the last that is asked for.
        highest = order if limit is None else order[: limit + 1]
        if len(set(map(by_total, highest))) == len(highest):
            return order[:limit]
    ranks = ranks_of(hash64(tie_key), [view.worker_id for view in views])
    # To sort keeps the order of equal ones.
    return sorted(sorted(places, key=ranks.__getitem__), key=by_total, reverse=True)[:limit]
