"""What a bundle's `path.json` may hold: one tagged structure per kind of path policy.

The rule of this module: a model is data and knows its features; `to_policy` is the one way from it to a policy, and
`model_of` the one way back. A new kind is a structure with its tag and its features here, named in `PathModel`, and a
case of both.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar, Literal, TypeAlias, assert_never, get_args

import msgspec

from gateway.core.forecast import FleetCosts
from gateway.core.path.base import PathPolicy, PolicyError
from gateway.core.path.price import PriceWeights
from gateway.core.path.priced import JointPolicy, PricedPolicy
from gateway.core.path.regime import RegimePolicy, Regimes
from gateway.core.path.table import FEATURES, GaussianMixture, KMeans, Scaler, TablePolicy
from gateway.core.types import Path

Action = Literal["local", "remote"]

PRICED_FEATURES = ("isl_tokens", "hit_tokens", "osl_tokens", "inflight_requests", "kv_tokens", "backlog_s")
"""What a route's price is made of."""


class KMeansModel(msgspec.Struct, tag="kmeans", tag_field="kind", frozen=True, forbid_unknown_fields=True):
    """Centroids in standardised log1p space: K x 4."""

    centroids: tuple[tuple[float, ...], ...]


class GaussianMixtureModel(msgspec.Struct, tag="gmm", tag_field="kind", frozen=True, forbid_unknown_fields=True):
    """Weights (K), means (K x 4) and upper Cholesky factors of the precisions (K x 4 x 4)."""

    weights: tuple[float, ...]
    means: tuple[tuple[float, ...], ...]
    precisions_cholesky: tuple[tuple[tuple[float, ...], ...], ...]


class ScalerModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Mean and deviation of log1p of each feature."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


class TableModel(msgspec.Struct, tag="table", tag_field="kind", frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A path per cluster, with the guards before it."""

    features: ClassVar[tuple[str, ...]] = FEATURES

    scaler: ScalerModel
    clusters: KMeansModel | GaussianMixtureModel
    actions: tuple[Action, ...]
    epsilon: tuple[float, ...] = ()
    max_decode_kv_ratio: float = 0.90
    max_local_tokens: int = 16_384


class RegimeModel(
    msgspec.Struct, tag="table-regime", tag_field="kind", frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """A path per cluster and load regime: actions and rates of exploration are clusters x regimes."""

    features: ClassVar[tuple[str, ...]] = (*FEATURES, "prefill_backlog_tokens", "decode_requests")

    scaler: ScalerModel
    clusters: KMeansModel | GaussianMixtureModel
    prefill_backlog_tokens: tuple[float, ...]
    """Rising thresholds."""
    decode_requests: tuple[float, ...]
    """Rising thresholds."""
    actions: tuple[tuple[Action, ...], ...]
    epsilon: tuple[tuple[float, ...], ...] = ()
    max_decode_kv_ratio: float = 0.90
    max_local_tokens: int = 16_384


class PricedModel(
    msgspec.Struct, tag="priced", tag_field="kind", frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """What the fleet's engines take, and what routes cost by it; for the workers that placement chose."""

    features: ClassVar[tuple[str, ...]] = PRICED_FEATURES

    costs: FleetCosts
    weights: PriceWeights


class JointModel(msgspec.Struct, tag="joint", tag_field="kind", frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The same over every route: path, prefill worker and decode worker at once."""

    features: ClassVar[tuple[str, ...]] = PRICED_FEATURES

    costs: FleetCosts
    weights: PriceWeights


PathModel: TypeAlias = TableModel | RegimeModel | PricedModel | JointModel
"""Every kind that can be read."""

FEATURES_OF: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {str(model.__struct_config__.tag): model.features for model in get_args(PathModel)}
)
"""The features that each kind was made for, by its tag."""


def kind_of(model: PathModel) -> str:
    """The tag of a model's kind."""
    return str(model.__struct_config__.tag)


def to_policy(model: PathModel, baseline: PathPolicy) -> PathPolicy:
    """The path policy that a model describes; `baseline` is what it falls back to.

    Raises:
        PolicyError: the model's parts do not agree.
    """
    match model:
        case TableModel():
            return _table(model, baseline)
        case RegimeModel():
            return _regime(model, baseline)
        case PricedModel(weights=weights):
            return PricedPolicy(weights=weights, baseline=baseline)
        case JointModel(weights=weights):
            return JointPolicy(weights=weights, baseline=baseline)
        case _:
            assert_never(model)


def costs_of(model: PathModel) -> FleetCosts | None:
    """What the fleet's engines take, where the model says it."""
    return model.costs if isinstance(model, PricedModel | JointModel) else None


def model_of(policy: PathPolicy, costs: FleetCosts | None = None) -> PathModel:
    """The model of a learned policy.

    Raises:
        PolicyError: it is none that a bundle can hold, or is priced and has no costs.
    """
    match policy:
        case TablePolicy():
            return TableModel(
                scaler=ScalerModel(mean=policy.scaler.mean, std=policy.scaler.std),
                clusters=_clusters_model(policy.clusters),
                actions=tuple(path.value for path in policy.actions),
                epsilon=policy.epsilon,
                max_decode_kv_ratio=policy.max_decode_kv_ratio,
                max_local_tokens=policy.max_local_tokens,
            )
        case RegimePolicy():
            return RegimeModel(
                scaler=ScalerModel(mean=policy.scaler.mean, std=policy.scaler.std),
                clusters=_clusters_model(policy.clusters),
                prefill_backlog_tokens=policy.regimes.prefill_backlog_tokens,
                decode_requests=policy.regimes.decode_requests,
                actions=tuple(tuple(path.value for path in row) for row in policy.actions),
                epsilon=policy.epsilon,
                max_decode_kv_ratio=policy.max_decode_kv_ratio,
                max_local_tokens=policy.max_local_tokens,
            )
        case PricedPolicy() if costs is not None:
            return PricedModel(costs=costs, weights=policy.weights)
        case JointPolicy() if costs is not None:
            return JointModel(costs=costs, weights=policy.weights)
        case _:
            raise PolicyError(f"a bundle has no form for the policy {policy.name}")


def _table(model: TableModel, baseline: PathPolicy) -> TablePolicy:
    return TablePolicy(
        scaler=Scaler(mean=model.scaler.mean, std=model.scaler.std),
        clusters=_clusters(model.clusters),
        actions=tuple(Path(action) for action in model.actions),
        epsilon=model.epsilon,
        baseline=baseline,
        max_decode_kv_ratio=model.max_decode_kv_ratio,
        max_local_tokens=model.max_local_tokens,
    )


def _regime(model: RegimeModel, baseline: PathPolicy) -> RegimePolicy:
    return RegimePolicy(
        scaler=Scaler(mean=model.scaler.mean, std=model.scaler.std),
        clusters=_clusters(model.clusters),
        regimes=Regimes(prefill_backlog_tokens=model.prefill_backlog_tokens, decode_requests=model.decode_requests),
        actions=tuple(tuple(Path(action) for action in row) for row in model.actions),
        epsilon=model.epsilon,
        baseline=baseline,
        max_decode_kv_ratio=model.max_decode_kv_ratio,
        max_local_tokens=model.max_local_tokens,
    )


def _clusters(model: KMeansModel | GaussianMixtureModel) -> KMeans | GaussianMixture:
    if isinstance(model, KMeansModel):
        return KMeans(centroids=model.centroids)
    return GaussianMixture(weights=model.weights, means=model.means, precisions_cholesky=model.precisions_cholesky)


def _clusters_model(clusters: KMeans | GaussianMixture) -> KMeansModel | GaussianMixtureModel:
    if isinstance(clusters, KMeans):
        return KMeansModel(centroids=clusters.centroids)
    return GaussianMixtureModel(
        weights=clusters.weights, means=clusters.means, precisions_cholesky=clusters.precisions_cholesky
    )
