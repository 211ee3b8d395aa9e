"""Which worker of a pool: filter, score, pick.

The rule of this module: a scorer is a pure function with values in [0,1], or None where its signal is missing; the
weights live in the policy. Ties go to the rendezvous order of the request, so they spread and still repeat.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from gateway.core.hashing import hash64, rank_of
from gateway.core.path.base import PolicyError
from gateway.core.types import Candidate, WorkerView

MAX_CANDIDATES = 8
"""How many scored workers a decision records; the best ones."""
EVEN_PREFILL_TOKENS = 1024
EVEN_REQUESTS = 4
"""Added to both sides of a ratio: below about so much, workers count as nearly even, and near-idle ones do not
differ by orders of magnitude."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """What the workers of one pool have in common for one request."""

    isl_tokens: int
    min_prefill_work: int
    """The least (tokens queued + tokens of this request not cached) of any worker."""
    min_requests: int

    @classmethod
    def of(cls, views: Sequence[WorkerView], isl_tokens: int) -> "Pool":
        """Sum a pool up."""
        return cls(
            isl_tokens=isl_tokens,
            min_prefill_work=min((_prefill_work(view, isl_tokens) for view in views), default=0),
            min_requests=min((view.inflight_requests for view in views), default=0),
        )


def _prefill_work(view: WorkerView, isl_tokens: int) -> int:
    return view.prefill_tokens + isl_tokens - view.hit_tokens


def prefix_hit(view: WorkerView, pool: Pool) -> float | None:
    """1.0: the worker holds the whole prompt."""
    return view.hit_tokens / pool.isl_tokens if pool.isl_tokens else None


def prefill_work(view: WorkerView, pool: Pool) -> float | None:
    """1.0: no other worker would end this request's prefill with less work, its queue included."""
    own = _prefill_work(view, pool.isl_tokens)
    return (pool.min_prefill_work + EVEN_PREFILL_TOKENS) / (own + EVEN_PREFILL_TOKENS)


def few_requests(view: WorkerView, pool: Pool) -> float | None:
    """1.0: no other worker has fewer requests in flight."""
    return (pool.min_requests + EVEN_REQUESTS) / (view.inflight_requests + EVEN_REQUESTS)


def kv_free(view: WorkerView, pool: Pool) -> float | None:  # noqa: ARG001
    """1.0: the KV cache is empty."""
    return None if view.kv_used_ratio is None else max(0.0, 1.0 - view.kv_used_ratio)


def queue_free(view: WorkerView, pool: Pool) -> float | None:  # noqa: ARG001
    """1.0: nothing waits inside the engine."""
    return None if view.queue_depth is None else 1.0 / (1 + view.queue_depth)


Scorer = Callable[[WorkerView, Pool], float | None]

SCORERS: Mapping[str, Scorer] = MappingProxyType(
    {scorer.__name__: scorer for scorer in (prefix_hit, prefill_work, few_requests, kv_free, queue_free)}
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

    def rank(self, views: Sequence[WorkerView], isl_tokens: int, tie_key: str) -> list[Candidate]:
        """All workers, best first; empty for an empty pool."""
        pool = Pool.of(views, isl_tokens)
        candidates = [self._score(view, pool) for view in views]
        if len(candidates) > 1:
            key_hash = hash64(tie_key)
            candidates.sort(key=lambda c: (-c.total, rank_of(key_hash, c.worker_id)))
        return candidates

    def _score(self, view: WorkerView, pool: Pool) -> Candidate:
        scores: list[tuple[str, float]] = []
        total = weights = 0.0
        for name, weight in self.weights:
            score = SCORERS[name](view, pool)
            if score is not None:
                scores.append((name, score))
                total += weight * score
                weights += weight
        mean = total / weights if weights else 0.0
        return Candidate(worker_id=view.worker_id, scores=tuple(scores), total=mean)
