"""The table beyond the paper: an action per cluster and load regime (policy `table-regime`).

The rule of this module: a regime is read from what the gateway can observe at the moment of the decision, the same two
loads for every request. A static table knows what a request is, not how loaded the pools are. No paper's rule [D].
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

from gateway.core.path.base import PathPolicy, PathQuestion, PolicyError
from gateway.core.path.table import (
    GaussianMixture,
    Guards,
    KMeans,
    Scaler,
    check_epsilon,
    cluster_of,
    explored,
)
from gateway.core.types import Path, PathChoice


@dataclass(frozen=True, slots=True, kw_only=True)
class Regimes:
    """A grid of thresholds over two loads; a load at a threshold belongs to the lower side.

    Regimes are numbered row by row: all decode batches of the lowest prefill backlog first.
    """

    prefill_backlog_tokens: tuple[float, ...] = ()
    """Rising thresholds of the prompt tokens that the prefill worker has yet to compute."""
    decode_requests: tuple[float, ...] = ()
    """Rising thresholds of the requests in flight on the decode worker."""

    def __post_init__(self) -> None:
        for name in ("prefill_backlog_tokens", "decode_requests"):
            values = getattr(self, name)
            rising = all(low < high for low, high in pairwise(values))
            if not rising or not all(map(math.isfinite, values)):
                raise PolicyError(f"the thresholds of {name} must be finite and rise")

    def __len__(self) -> int:
        return (len(self.prefill_backlog_tokens) + 1) * (len(self.decode_requests) + 1)

    def assign(self, prefill_backlog_tokens: float, decode_requests: float) -> int:
        """The regime of two loads."""
        row = bisect_left(self.prefill_backlog_tokens, prefill_backlog_tokens)
        return row * (len(self.decode_requests) + 1) + bisect_left(self.decode_requests, decode_requests)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegimePolicy:
    """A path per cluster and load regime, with the guards and the baseline of the plain table.

    A choice's `cluster` is its cell of the table: cluster x number of regimes + regime.
    """

    scaler: Scaler
    clusters: KMeans | GaussianMixture
    regimes: Regimes
    actions: tuple[tuple[Path, ...], ...]
    """Clusters x regimes."""
    baseline: PathPolicy
    """Asked where the features are not finite."""
    epsilon: tuple[tuple[float, ...], ...] = ()
    """Clusters x regimes, how often the path is drawn from both alike; empty where nothing is explored."""
    max_decode_kv_ratio: float = 0.90
    max_local_tokens: int = 16_384
    """These two as in `Guards`."""
    name: str = "table-regime"
    _guards: Guards = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_shape(self.actions, len(self.clusters), len(self.regimes), "actions")
        if self.epsilon:
            _check_shape(self.epsilon, len(self.clusters), len(self.regimes), "exploration rates")
        for rates in self.epsilon:
            check_epsilon(rates, len(self.regimes))
        guards = Guards(max_decode_kv_ratio=self.max_decode_kv_ratio, max_local_tokens=self.max_local_tokens)
        object.__setattr__(self, "_guards", guards)

    def choose(self, question: PathQuestion, rng: Random) -> PathChoice:
        """Look the request and the load up."""
        guarded = self._guards.choice(question)
        if guarded is not None:
            return guarded
        cluster = cluster_of(self.scaler, self.clusters, question.features)
        if cluster is None:
            return self.baseline.choose(question, rng)
        backlog, batch = question.prefill.prefill_tokens, question.decode.inflight_requests
        regime = self.regimes.assign(backlog, batch)
        epsilon = self.epsilon[cluster][regime] if self.epsilon else 0.0
        what = (
            f"cluster {cluster} of {len(self.clusters)}, with {backlog} tokens to prefill and {batch} requests"
            f" in decode (regime {regime} of {len(self.regimes)}),"
        )
        cell = cluster * len(self.regimes) + regime
        return explored(self.actions[cluster][regime], epsilon, rng, cell=cell, what=what)


def _check_shape(rows: Sequence[Sequence[object]], clusters: int, regimes: int, what: str) -> None:
    if len(rows) != clusters or any(len(row) != regimes for row in rows):
        raise PolicyError(f"{what} must be {clusters} clusters x {regimes} regimes")
