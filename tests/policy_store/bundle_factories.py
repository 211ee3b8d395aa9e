"""Small bundles, and bundles that only somebody else's writer would make."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from policy_store.bundle import PATH_PART, Bundle, new_bundle, write_bundle
from policy_store.manifest import MANIFEST, make_manifest, render_manifest
from policy_store.path_models import GaussianMixtureModel, KMeansModel, ScalerModel, TableModel

UNIT = tuple(tuple(float(i == j) for j in range(4)) for i in range(4))
KMEANS = KMeansModel(centroids=((2.0, 2.0, 2.0, 5.0), (9.0, 9.0, 9.0, 5.0)))
MIXTURE = GaussianMixtureModel(weights=(0.25, 0.75), means=KMEANS.centroids, precisions_cholesky=(UNIT, UNIT))
PROVENANCE = {"trace": "mooncake", "seed": "7"}


def table(**changes: Any) -> TableModel:
    """Short prompts local, long ones remote."""
    fields: dict[str, Any] = {
        "scaler": ScalerModel(mean=(0.0,) * 4, std=(1.0,) * 4),
        "clusters": KMEANS,
        "actions": ("local", "remote"),
        "max_decode_kv_ratio": 0.8,
        "max_local_tokens": 10_000,
        **changes,
    }
    return TableModel(**fields)


def bundle(*, provenance: Mapping[str, str] | None = PROVENANCE, **changes: Any) -> Bundle:
    return new_bundle(table(**changes), provenance=provenance)


def written(parent: Path, **changes: Any) -> Path:
    """The directory of a bundle."""
    return write_bundle(bundle(**changes), parent)


def always(path: str, **changes: Any) -> Bundle:
    """A bundle that sends every prompt one way."""
    return bundle(actions=(path, path), max_decode_kv_ratio=1e9, max_local_tokens=10**9, **changes)


def forge(directory: Path, *, files: Mapping[str, bytes | None] | None = None, **changes: Any) -> None:
    """Change a bundle's files (None takes one out) and its manifest, and sign the result as a writer would."""
    tree = json.loads((directory / MANIFEST).read_bytes())
    contents = {name: (directory / name).read_bytes() for name in tree["files"]}
    contents |= files or {}
    kept = {name: raw for name, raw in contents.items() if raw is not None}
    fields: dict[str, Any] = {"kind": tree["kind"], "features": tuple(tree["features"]), "contents": kept}
    manifest = make_manifest(**{**fields, "provenance": tree["provenance"], **changes})
    for name, raw in contents.items():
        (directory / name).unlink(missing_ok=True)
        if raw is not None:
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_bytes(raw)
    (directory / MANIFEST).write_bytes(render_manifest(manifest))


def forge_path(directory: Path, **changes: Any) -> None:
    """Change fields of a bundle's path model as JSON, and sign the result."""
    tree = json.loads((directory / PATH_PART).read_bytes()) | {
        key: msgspec.to_builtins(value) for key, value in changes.items()
    }
    forge(directory, files={PATH_PART: json.dumps(tree).encode()})
