"""Policy bundles: a learned table as one content-addressed JSON file.

The rule of this module: a bundle is data, never code; its version is the hash of its content, and whatever does not
check out is refused with the reason when it is read.
"""

from hashlib import sha256
from pathlib import Path as FilePath
from typing import Literal

import msgspec

from gateway.core.path.base import PathPolicy, PolicyError
from gateway.core.path.rules import AlwaysLocal
from gateway.core.path.table import FEATURES, GaussianMixture, KMeans, Scaler, TablePolicy
from gateway.core.types import Path


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


class TableBundle(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A path table with its guards. `provenance` says what it was learned from, for people."""

    format: Literal[1] = 1
    kind: Literal["path-table"] = "path-table"
    features: tuple[str, ...] = FEATURES
    scaler: ScalerModel
    clusters: KMeansModel | GaussianMixtureModel
    actions: tuple[Literal["local", "remote"], ...]
    max_decode_kv_ratio: float = 0.90
    max_local_tokens: int = 16_384
    provenance: dict[str, str] = {}

    @property
    def version(self) -> str:
        """The first 12 hexadecimal digits of the SHA-256 of the canonical content."""
        return sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()[:12]


class BundleError(ValueError):
    """A bundle that cannot be used, and why."""


def read_bundle(path: FilePath) -> TableBundle:
    """Read and check a bundle file.

    Raises:
        BundleError: it cannot be read, is not a bundle, or its shapes do not agree.
    """
    try:
        bundle = msgspec.json.decode(path.read_bytes(), type=TableBundle)
    except OSError as error:
        raise BundleError(f"cannot read policy bundle {path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise BundleError(f"{path} is not a policy bundle: {error}") from error
    _check(bundle, path)
    return bundle


def write_bundle(bundle: TableBundle, path: FilePath) -> None:
    """Write a bundle for people to read; its version does not depend on the layout."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(bundle, order="deterministic"), indent=2) + b"\n")


def table_policy(bundle: TableBundle, baseline: PathPolicy) -> TablePolicy:
    """The path policy that a checked bundle describes."""
    return TablePolicy(
        scaler=Scaler(mean=bundle.scaler.mean, std=bundle.scaler.std),
        clusters=_clusters(bundle.clusters),
        actions=tuple(Path(action) for action in bundle.actions),
        baseline=baseline,
        max_decode_kv_ratio=bundle.max_decode_kv_ratio,
        max_local_tokens=bundle.max_local_tokens,
    )


def _clusters(model: KMeansModel | GaussianMixtureModel) -> KMeans | GaussianMixture:
    if isinstance(model, KMeansModel):
        return KMeans(centroids=model.centroids)
    return GaussianMixture(weights=model.weights, means=model.means, precisions_cholesky=model.precisions_cholesky)


def _check(bundle: TableBundle, path: FilePath) -> None:
    if bundle.features != FEATURES:
        raise BundleError(f"policy bundle {path}: features must be {', '.join(FEATURES)}")
    try:
        table_policy(bundle, AlwaysLocal())
    except PolicyError as error:
        raise BundleError(f"policy bundle {path}: {error}") from error
