"""Policies in few words, and the clusters of tables.

The rule of this module: what is not at its default is said.
"""

import math
from dataclasses import fields

from gateway.core.path.base import PathPolicy
from gateway.core.path.price import PriceWeights
from gateway.core.path.priced import JointPolicy, PricedPolicy
from gateway.core.path.regime import RegimePolicy
from gateway.core.path.rules import DynamoRule, LlmdRule
from gateway.core.path.table import KMeans, Scaler, TablePolicy
from gateway.core.types import Path
from loadtest.compare.results import Cluster


def words(path: PathPolicy) -> str:
    """A policy's parameters."""
    match path:
        case DynamoRule():
            return _dynamo(path)
        case LlmdRule():
            return f"remote from {path.non_cached_tokens} uncached tokens" if path.non_cached_tokens else "never remote"
        case TablePolicy():
            return f"{len(path.clusters)} clusters: {_letters(path.actions)}"
        case RegimePolicy():
            rows = " ".join(_letters(row) for row in path.actions)
            return f"{len(path.clusters)} clusters x {len(path.regimes)} regimes: {rows}"
        case PricedPolicy() | JointPolicy():
            return _weights(path.weights)
        case _:
            return f"always {path.name}"


def clusters_of(path: PathPolicy) -> list[Cluster]:
    """The centres of a table's clusters; empty for other policies."""
    match path:
        case TablePolicy():
            shares = [float(action is Path.LOCAL) for action in path.actions]
        case RegimePolicy():
            shares = [sum(action is Path.LOCAL for action in row) / len(row) for row in path.actions]
        case _:
            return []
    centres = path.clusters.centroids if isinstance(path.clusters, KMeans) else path.clusters.means
    return [_cluster(path.scaler, centre, share) for centre, share in zip(centres, shares, strict=True)]


def _cluster(scaler: Scaler, centre: tuple[float, ...], local: float) -> Cluster:
    tokens = [
        math.expm1(value * max(std, 1e-6) + mean)
        for value, mean, std in zip(centre, scaler.mean, scaler.std, strict=True)
    ]
    return Cluster(
        prompt=tokens[0], prefill_uncached=tokens[1], decode_uncached=tokens[2], output=tokens[3], local=local
    )


def _dynamo(rule: DynamoRule) -> str:
    parts = [str(rule.mode)]
    if rule.mode != "prefill_load":
        parts.append(f"eff_isl {rule.eff_isl_threshold}, ratio {rule.eff_isl_ratio_threshold:g}")
    if rule.prefill_busy_threshold is not None:
        parts.append(f"busy {rule.prefill_busy_threshold:g}")
    if rule.decode_busy_threshold is not None:
        parts.append(f"guard {rule.decode_busy_threshold:g}")
    return ", ".join(parts)


def _weights(weights: PriceWeights) -> str:
    default = PriceWeights()
    changed = [
        f"{each.name} {getattr(weights, each.name):.3g}"
        for each in fields(weights)
        if getattr(weights, each.name) != getattr(default, each.name)
    ]
    return ", ".join(changed) or "built-in weights"


def _letters(actions: tuple[Path, ...]) -> str:
    return "".join("L" if action is Path.LOCAL else "R" for action in actions)
