"""DolphinRouting's static table: features -> cluster -> action.

The rule of this module: assignment is exact and cheap. It equals what scikit-learn would say for the same fitted
model, without scikit-learn. What is explored has its exact propensity; what a guard decides is never explored.
Rebuilt from a summary of the paper; the formulas are methods.md 1.2 [D].
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from gateway.core.path.base import PathPolicy, PathQuestion, PolicyError
from gateway.core.types import Features, Path, PathChoice, Reason

Matrix = tuple[tuple[float, ...], ...]

FEATURES = ("isl_tokens", "prefill_isl_tokens", "decode_isl_tokens", "osl_tokens")
"""The order of the columns of every table."""
MIN_STD = 1e-6
MIN_EPSILON = 1e-9
"""A smaller rate of exploration than this must be 0."""

LEARNABLE = frozenset({Reason.CLUSTER, Reason.EXPLORATION})
"""What the table itself decided. A guard's or the baseline's choice says nothing about a cell: learning skips it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaler:
    """log1p, then standardised by the fit window's own mean and deviation."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        _require(len(self.mean) == len(self.std) == len(FEATURES), f"the scaler must have {len(FEATURES)} columns")
        _require(all(std >= 0 for std in self.std), "deviations must be at least 0")

    def transform(self, features: Features) -> tuple[float, ...]:
        """The standardised vector, in the order of `FEATURES`; NaN where a feature is negative."""
        raw = (
            features.isl_tokens,
            features.prefill_isl_tokens,
            features.decode_isl_tokens,
            features.osl_tokens,
        )
        return tuple(
            (math.log1p(value if value >= 0 else math.nan) - mean) / max(std, MIN_STD)
            for value, mean, std in zip(raw, self.mean, self.std, strict=True)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KMeans:
    """Nearest centroid by Euclidean distance; the lower index wins a tie."""

    centroids: Matrix

    def __post_init__(self) -> None:
        _check_centres(self.centroids)

    def __len__(self) -> int:
        return len(self.centroids)

    def assign(self, vector: Sequence[float]) -> int:
        """The cluster of a standardised vector."""
        best, best_distance = 0, math.inf
        for index, centroid in enumerate(self.centroids):
            distance = 0.0
            for value, centre in zip(vector, centroid, strict=True):
                distance += (value - centre) * (value - centre)
            if distance < best_distance:
                best, best_distance = index, distance
        return best


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianMixture:
    """The component with the largest responsibility (full covariances).

    `precisions_cholesky[k]` is the upper triangular U with precision = U U^T, as scikit-learn stores it.
    """

    weights: tuple[float, ...]
    means: Matrix
    precisions_cholesky: tuple[Matrix, ...]
    _log_norms: tuple[float, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_centres(self.means)
        agree = len(self.weights) == len(self.means) == len(self.precisions_cholesky)
        _require(agree, "components do not agree in number")
        _require(all(weight > 0 for weight in self.weights), "weights must be above 0")
        _require(all(map(_is_upper_factor, self.precisions_cholesky)), "bad Cholesky factor")
        norms = tuple(
            math.log(weight) + sum(math.log(row[i]) for i, row in enumerate(factor))
            for weight, factor in zip(self.weights, self.precisions_cholesky, strict=True)
        )
        object.__setattr__(self, "_log_norms", norms)

    def __len__(self) -> int:
        return len(self.means)

    def assign(self, vector: Sequence[float]) -> int:
        """The cluster of a standardised vector."""
        best, best_score = 0, -math.inf
        for index in range(len(self.means)):
            score = self._log_norms[index] - 0.5 * self._mahalanobis(index, vector)
            if score > best_score:
                best, best_score = index, score
        return best

    def _mahalanobis(self, index: int, vector: Sequence[float]) -> float:
        centred = [value - mean for value, mean in zip(vector, self.means[index], strict=True)]
        factor = self.precisions_cholesky[index]
        total = 0.0
        for column in range(len(centred)):
            projected = sum(centred[row] * factor[row][column] for row in range(column + 1))
            total += projected * projected
        return total


@dataclass(frozen=True, slots=True, kw_only=True)
class Guards:
    """What is decided before any table is asked (methods.md 1.3, step 6)."""

    max_decode_kv_ratio: float = 0.90
    """Above it the decode worker prefills nothing."""
    max_local_tokens: int = 16_384
    """Longer prompts never prefill locally."""

    def __post_init__(self) -> None:
        _require(self.max_decode_kv_ratio >= 0, "max_decode_kv_ratio must be at least 0")
        _require(self.max_local_tokens >= 0, "max_local_tokens must be at least 0")

    def choice(self, question: PathQuestion) -> PathChoice | None:
        """The guarded choice, with propensity 1; None where the table may decide."""
        used = question.decode.kv_resident_ratio
        if used is not None and used > self.max_decode_kv_ratio:
            words = f"the decode worker's KV cache is {used:.0%} full, over {self.max_decode_kv_ratio:.0%}"
            return PathChoice(path=Path.REMOTE, reason=Reason.GUARD_DECODE_KV, words=words)
        if question.features.isl_tokens > self.max_local_tokens:
            words = f"{question.features.isl_tokens} prompt tokens are over the local limit of {self.max_local_tokens}"
            return PathChoice(path=Path.REMOTE, reason=Reason.GUARD_LONG_PROMPT, words=words)
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePolicy:
    """A path per cluster, with guards before it (methods.md 1.3, step 6) and a baseline beneath it."""

    scaler: Scaler
    clusters: KMeans | GaussianMixture
    actions: tuple[Path, ...]
    baseline: PathPolicy
    """Asked where the features are not finite."""
    epsilon: tuple[float, ...] = ()
    """Per cluster, how often the path is drawn from both alike; empty where nothing is explored."""
    max_decode_kv_ratio: float = 0.90
    max_local_tokens: int = 16_384
    """These two as in `Guards`."""
    name: str = "table"
    _guards: Guards = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        clusters = len(self.clusters)
        _require(len(self.actions) == clusters, f"{len(self.actions)} actions for {clusters} clusters")
        check_epsilon(self.epsilon, clusters)
        guards = Guards(max_decode_kv_ratio=self.max_decode_kv_ratio, max_local_tokens=self.max_local_tokens)
        object.__setattr__(self, "_guards", guards)

    def choose(self, question: PathQuestion, rng: Random) -> PathChoice:
        """Look the request up."""
        guarded = self._guards.choice(question)
        if guarded is not None:
            return guarded
        cluster = cluster_of(self.scaler, self.clusters, question.features)
        if cluster is None:
            return self.baseline.choose(question, rng)
        epsilon = self.epsilon[cluster] if self.epsilon else 0.0
        what = f"cluster {cluster} of {len(self.clusters)}"
        return explored(self.actions[cluster], epsilon, rng, cell=cluster, what=what)


def cluster_of(scaler: Scaler, clusters: KMeans | GaussianMixture, features: Features) -> int | None:
    """The cluster of a request; None where its features are not finite."""
    vector = scaler.transform(features)
    return clusters.assign(vector) if all(map(math.isfinite, vector)) else None


def explored(path: Path, epsilon: float, rng: Random, *, cell: int, what: str) -> PathChoice:
    """A table's path, or with probability `epsilon` one drawn from both alike (methods.md 1.2 [D]).

    The generator is drawn from only where `epsilon` is above 0. `cell` is the entry of the table, `what` its name.
    """
    if epsilon > 0.0 and rng.random() < epsilon / 2.0:
        other = Path.REMOTE if path is Path.LOCAL else Path.LOCAL
        words = f"{what} prefills {path}; {other} to learn from it"
        return PathChoice(path=other, reason=Reason.EXPLORATION, words=words, propensity=epsilon / 2.0, cluster=cell)
    words = f"{what} prefills {path}"
    return PathChoice(path=path, reason=Reason.CLUSTER, words=words, propensity=1.0 - epsilon / 2.0, cluster=cell)


def check_epsilon(epsilon: Sequence[float], cells: int) -> None:
    """Raise `PolicyError` unless there is a rate in [0,1] for every cell, or none at all."""
    _require(len(epsilon) in (0, cells), f"{len(epsilon)} exploration rates for {cells} cells")
    # A rate of 1e-323 halves to a propensity of 0.
    _require(all(rate == 0.0 or MIN_EPSILON <= rate <= 1.0 for rate in epsilon), "exploration rates lie in [0,1]")


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise PolicyError(what)


def _check_centres(rows: Matrix) -> None:
    _require(len(rows) >= 1, "there must be at least one cluster")
    width = len(FEATURES)
    _require(all(len(row) == width for row in rows), f"every cluster centre must have {width} columns")


def _is_upper_factor(factor: Matrix) -> bool:
    width = len(FEATURES)
    square = len(factor) == width and all(len(row) == width for row in factor)
    return square and all(factor[i][i] > 0 for i in range(width))
