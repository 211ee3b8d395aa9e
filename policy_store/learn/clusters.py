"""Groups of like requests: standardised log1p features, then k-means or a Gaussian mixture.

The rule of this module: what is fitted depends on the fit window and the seed alone, and is handed on in the core's own
types, so that the learner and the gateway assign alike. Formulas: methods.md 1.2 and 1.3 [D], rebuilt from a summary.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans as SklearnKMeans
from sklearn.metrics import silhouette_score
from sklearn.mixture import GaussianMixture as SklearnMixture

from gateway.core.path.base import PolicyError
from gateway.core.path.table import MIN_STD, GaussianMixture, KMeans, Scaler
from gateway.core.types import Features

Array = NDArray[np.float64]

SILENT_STD = 1e9
"""The deviation given to a column that says nothing: standardised, it is 0 for every later request too."""
SILHOUETTE_ROWS = 2000
"""The silhouette is quadratic in rows; of more, so many are drawn."""


class ClusterMethod(StrEnum):
    """How requests are grouped."""

    KMEANS = "kmeans"
    """K by the largest silhouette."""
    GMM = "gmm"
    """Full covariances; K by the smallest BIC."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    """Hyper-parameters; the defaults are those of methods.md 1.3."""

    method: ClusterMethod = ClusterMethod.KMEANS
    k: int | None = None
    """A fixed number of clusters instead of a chosen one."""
    k_max: int = 12
    fallback_k: int = 8
    """Where no number of clusters has a score."""
    min_share: float = 0.02
    """A smaller cluster is merged into its nearest."""
    n_init: int = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Clustering:
    """What was fitted."""

    scaler: Scaler
    model: KMeans | GaussianMixture
    shares: tuple[float, ...]
    """Of the fit window, by cluster."""
    fit: float
    """How well the window fits, larger being better: minus the mean squared distance, or the mean log-likelihood."""

    def assign(self, features: Features) -> int:
        """The cluster of a request with finite features."""
        return self.model.assign(self.scaler.transform(features))

    def fit_of(self, features: Sequence[Features]) -> float:
        """How well other requests fit, on the scale of `fit`."""
        return _fit_of(self.model, _standardised(self.scaler, features))


def fit_clusters(window: Sequence[Features], plan: ClusterPlan, *, seed: int) -> Clustering:
    """Fit the scaler and the clusters on one window of requests with finite features.

    Raises:
        PolicyError: the window is empty.
    """
    if not window:
        raise PolicyError("clusters cannot be fitted on no requests")
    scaler = fit_scaler(window)
    vectors = _standardised(scaler, window)
    model = _merged(_fitted(vectors, plan, seed), vectors, plan.min_share)
    return Clustering(scaler=scaler, model=model, shares=_shares(model, vectors), fit=_fit_of(model, vectors))


def fit_scaler(window: Sequence[Features]) -> Scaler:
    """Mean and deviation of log1p of each column; a constant column or a twin of an earlier one is silenced.

    Without a prefix index both uncached lengths equal the prompt's: counted thrice it would outweigh the output length.
    """
    columns = np.log1p(_matrix(window))
    std = columns.std(axis=0)
    for column in range(columns.shape[1]):
        twin = any(np.allclose(columns[:, column], columns[:, before]) for before in range(column))
        if twin or std[column] < MIN_STD:
            std[column] = SILENT_STD
    return Scaler(mean=tuple(columns.mean(axis=0).tolist()), std=tuple(std.tolist()))


def _matrix(window: Sequence[Features]) -> Array:
    rows = [(one.isl_tokens, one.prefill_isl_tokens, one.decode_isl_tokens, one.osl_tokens) for one in window]
    return np.array(rows, dtype=np.float64)


def _standardised(scaler: Scaler, window: Sequence[Features]) -> Array:
    std = np.maximum(np.array(scaler.std), MIN_STD)
    vectors: Array = (np.log1p(_matrix(window)) - np.array(scaler.mean)) / std
    return vectors


def _fitted(vectors: Array, plan: ClusterPlan, seed: int) -> KMeans | GaussianMixture:
    distinct = len(np.unique(vectors.round(9), axis=0))
    if distinct < 2:
        # A single kind of request: the table is a plain two-armed bandit.
        return KMeans(centroids=(tuple(vectors.mean(axis=0).tolist()),))
    if plan.method is ClusterMethod.GMM:
        return _fitted_mixture(vectors, plan, seed, distinct)
    return _fitted_kmeans(vectors, plan, seed, distinct)


def _numbers(plan: ClusterPlan, distinct: int, rows: int) -> range:
    """The numbers of clusters that are tried."""
    if plan.k is not None:
        return range(min(plan.k, distinct), min(plan.k, distinct) + 1)
    return range(2, max(2, min(plan.k_max, distinct, rows - 1)) + 1)


def _fitted_kmeans(vectors: Array, plan: ClusterPlan, seed: int, distinct: int) -> KMeans:
    def fit(k: int) -> SklearnKMeans:
        return SklearnKMeans(n_clusters=k, init="k-means++", n_init=plan.n_init, random_state=seed).fit(vectors)

    numbers = _numbers(plan, distinct, len(vectors))
    if len(numbers) == 1:
        return _as_kmeans(fit(numbers[0]))
    models = [fit(k) for k in numbers]
    scores = [_silhouette(vectors, model.labels_, seed) for model in models]
    best = max(range(len(models)), key=scores.__getitem__)
    if scores[best] == -math.inf:
        return _as_kmeans(fit(min(plan.fallback_k, distinct)))
    return _as_kmeans(models[best])


def _silhouette(vectors: Array, labels: NDArray[np.int_], seed: int) -> float:
    """The mean silhouette; minus infinity where it is not defined."""
    sample = min(len(vectors), SILHOUETTE_ROWS)
    try:
        return float(silhouette_score(vectors, labels, sample_size=sample, random_state=seed))
    except ValueError:
        return -math.inf


def _as_kmeans(model: SklearnKMeans) -> KMeans:
    return KMeans(centroids=tuple(map(tuple, model.cluster_centers_.tolist())))


def _fitted_mixture(vectors: Array, plan: ClusterPlan, seed: int, distinct: int) -> GaussianMixture:
    models = [
        SklearnMixture(k, covariance_type="full", n_init=plan.n_init, random_state=seed).fit(vectors)
        for k in _numbers(plan, distinct, len(vectors))
    ]
    best = min(models, key=lambda model: float(model.bic(vectors)))
    return GaussianMixture(
        weights=tuple(best.weights_.tolist()),
        means=tuple(map(tuple, best.means_.tolist())),
        precisions_cholesky=tuple(tuple(map(tuple, factor.tolist())) for factor in best.precisions_cholesky_),
    )


def _merged(model: KMeans | GaussianMixture, vectors: Array, min_share: float) -> KMeans | GaussianMixture:
    """The smallest cluster goes until all have their share; its requests fall to whichever is nearest then."""
    while len(model) > 1:
        shares = _shares(model, vectors)
        smallest = min(range(len(model)), key=shares.__getitem__)
        if shares[smallest] >= min_share:
            break
        model = _without(model, smallest)
    return model


def _without(model: KMeans | GaussianMixture, cluster: int) -> KMeans | GaussianMixture:
    kept = [index for index in range(len(model)) if index != cluster]
    if isinstance(model, KMeans):
        return KMeans(centroids=tuple(model.centroids[index] for index in kept))
    total = sum(model.weights[index] for index in kept)
    return GaussianMixture(
        weights=tuple(model.weights[index] / total for index in kept),
        means=tuple(model.means[index] for index in kept),
        precisions_cholesky=tuple(model.precisions_cholesky[index] for index in kept),
    )


def _shares(model: KMeans | GaussianMixture, vectors: Array) -> tuple[float, ...]:
    counts = Counter(model.assign(vector) for vector in vectors.tolist())
    return tuple(counts[cluster] / len(vectors) for cluster in range(len(model)))


def _fit_of(model: KMeans | GaussianMixture, vectors: Array) -> float:
    if isinstance(model, KMeans):
        centres = np.array(model.centroids)
        squared = ((vectors[:, None, :] - centres[None, :, :]) ** 2).sum(axis=2)
        return -float(squared.min(axis=1).mean())
    return float(np.logaddexp.reduce(_log_densities(model, vectors), axis=1).mean())


def _log_densities(model: GaussianMixture, vectors: Array) -> Array:
    """Rows x components: the logarithm of weight times density."""
    columns = []
    for weight, mean, factor in zip(model.weights, model.means, model.precisions_cholesky, strict=True):
        upper = np.array(factor)
        projected = (vectors - np.array(mean)) @ upper
        norm = math.log(weight) + float(np.log(np.diag(upper)).sum()) - 0.5 * vectors.shape[1] * math.log(2 * math.pi)
        columns.append(norm - 0.5 * (projected**2).sum(axis=1))
    return np.column_stack(columns)
