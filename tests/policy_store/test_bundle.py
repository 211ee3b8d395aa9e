import json
from collections.abc import Callable
from pathlib import Path as FilePath
from random import Random
from typing import Any

import msgspec
import pytest

from gateway.core.path.rules import AlwaysLocal
from gateway.core.path.table import FEATURES, GaussianMixture, KMeans
from gateway.core.types import Path, Reason
from policy_store.bundle import (
    BundleError,
    GaussianMixtureModel,
    KMeansModel,
    ScalerModel,
    TableBundle,
    read_bundle,
    table_policy,
    write_bundle,
)
from tests.core.factories import question, view

UNIT = tuple(tuple(float(i == j) for j in range(4)) for i in range(4))
KMEANS = KMeansModel(centroids=((2.0, 2.0, 2.0, 5.0), (9.0, 9.0, 9.0, 5.0)))
MIXTURE = GaussianMixtureModel(weights=(0.25, 0.75), means=KMEANS.centroids, precisions_cholesky=(UNIT, UNIT))


def bundle(**changes: Any) -> TableBundle:
    fields: dict[str, Any] = {
        "scaler": ScalerModel(mean=(0.0,) * 4, std=(1.0,) * 4),
        "clusters": KMEANS,
        "actions": ("local", "remote"),
        "max_decode_kv_ratio": 0.8,
        "max_local_tokens": 10_000,
        "provenance": {"trace": "mooncake", "seed": "7"},
        **changes,
    }
    return TableBundle(**fields)


@pytest.fixture
def file(tmp_path: FilePath) -> FilePath:
    return tmp_path / "policy.json"


@pytest.mark.parametrize("clusters", [KMEANS, MIXTURE], ids=["kmeans", "gmm"])
def test_what_is_written_is_read_back(file: FilePath, clusters: KMeansModel | GaussianMixtureModel) -> None:
    written = bundle(clusters=clusters)
    write_bundle(written, file)
    assert read_bundle(file) == written
    assert read_bundle(file).version == written.version


def test_every_float_survives_exactly(file: FilePath) -> None:
    rng = Random(3)
    odd = tuple(tuple(rng.gauss(0, 10.0 ** rng.randint(-9, 9)) for _ in range(4)) for _ in range(2))
    write_bundle(bundle(clusters=KMeansModel(centroids=odd)), file)
    read = read_bundle(file)
    assert isinstance(read.clusters, KMeansModel)
    assert read.clusters.centroids == odd


class TestVersion:
    @staticmethod
    def _rewritten(file: FilePath, dump: Callable[[Any], str]) -> str:
        write_bundle(bundle(), file)
        file.write_text(dump(json.loads(file.read_text())))
        return read_bundle(file).version

    def test_it_is_twelve_hexadecimal_digits(self) -> None:
        assert len(bundle().version) == 12
        assert set(bundle().version) <= set("0123456789abcdef")

    @pytest.mark.parametrize(
        "dump",
        [
            json.dumps,
            lambda tree: json.dumps(tree, indent=8),
            lambda tree: json.dumps(dict(reversed(tree.items()))),
            lambda tree: json.dumps(tree | {"provenance": dict(reversed(tree["provenance"].items()))}),
            lambda tree: json.dumps(tree | {"scaler": {"std": [1, 1, 1, 1], "mean": [0, 0, 0, 0]}}),
        ],
        ids=["compact", "indented", "keys reversed", "provenance reversed", "integers for floats"],
    )
    def test_it_does_not_depend_on_the_layout(self, file: FilePath, dump: Callable[[Any], str]) -> None:
        assert self._rewritten(file, dump) == bundle().version

    def test_a_default_that_is_left_out_is_the_default(self, file: FilePath) -> None:
        tree = msgspec.to_builtins(bundle(max_decode_kv_ratio=0.90, max_local_tokens=16_384, provenance={}))
        for key in ("format", "kind", "features", "max_decode_kv_ratio", "max_local_tokens", "provenance"):
            del tree[key]
        file.write_text(json.dumps(tree))
        same = bundle(max_decode_kv_ratio=0.90, max_local_tokens=16_384, provenance={})
        assert read_bundle(file).version == same.version

    @pytest.mark.parametrize(
        "change",
        [
            {"actions": ("remote", "local")},
            {"clusters": KMeansModel(centroids=(KMEANS.centroids[0], (9.0, 9.0, 9.0, 5.000001)))},
            {"scaler": ScalerModel(mean=(0.0,) * 4, std=(1.0, 1.0, 1.0, 1.5))},
            {"max_decode_kv_ratio": 0.81},
            {"max_local_tokens": 10_001},
            {"provenance": {"trace": "mooncake", "seed": "8"}},
        ],
        ids=lambda change: next(iter(change)),
    )
    def test_any_change_of_content_is_another_version(self, change: dict[str, Any]) -> None:
        assert bundle(**change).version != bundle().version


class TestRefusals:
    """Each mistake is refused when the file is read, with the file's name and the reason."""

    @staticmethod
    def _refused(file: FilePath, content: str | bytes) -> str:
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        with pytest.raises(BundleError) as refused:
            read_bundle(file)
        assert str(file) in str(refused.value)
        return str(refused.value)

    def _changed(self, file: FilePath, of: TableBundle | None = None, **changes: Any) -> str:
        return self._refused(file, json.dumps(msgspec.to_builtins(of or bundle()) | changes))

    def test_a_file_that_is_not_there(self, file: FilePath) -> None:
        with pytest.raises(BundleError, match="No such file") as refused:
            read_bundle(file)
        assert str(file) in str(refused.value)

    @pytest.mark.parametrize("content", ["", "{", "[]", "null", b"\x80\x04\x95pickle", '{"scaler": 1}'])
    def test_what_is_no_bundle(self, file: FilePath, content: str | bytes) -> None:
        assert "not a policy bundle" in self._refused(file, content)

    @pytest.mark.parametrize(
        "changes",
        [
            {"surprise": 1},
            {"format": 2},
            {"kind": "price-table"},
            {"actions": ["local", "teleport"]},
            {"scaler": {"mean": ["zero"] * 4, "std": [1] * 4}},
            {"scaler": {"mean": [float("inf")] * 4, "std": [1] * 4}},
            {"scaler": {"mean": [0] * 4, "std": [1] * 4, "median": [0] * 4}},
            {"clusters": {"kind": "kmeans", "centroids": [[0] * 4] * 2, "inertia": 1}},
            {"clusters": msgspec.to_builtins(MIXTURE) | {"lower_bound": 1}},
            {"clusters": {"kind": "forest", "centroids": []}},
            {"clusters": {"centroids": [[0] * 4] * 2}},
            {"max_local_tokens": 1.5},
            {"provenance": {"seed": 7}},
        ],
        ids=lambda changes: f"{next(iter(changes.items()))}",
    )
    def test_fields_that_are_unknown_or_of_another_kind(self, file: FilePath, changes: dict[str, Any]) -> None:
        assert "not a policy bundle" in self._changed(file, **changes)

    @pytest.mark.parametrize("features", [FEATURES[:3], FEATURES[::-1], (*FEATURES, "tenant")])
    def test_features_in_another_order_or_number(self, file: FilePath, features: tuple[str, ...]) -> None:
        assert f"features must be {', '.join(FEATURES)}" in self._changed(file, features=features)

    @pytest.mark.parametrize(
        ("scaler", "why"),
        [
            ({"mean": [0] * 3, "std": [1] * 4}, "4 columns"),
            ({"mean": [0] * 4, "std": [1] * 5}, "4 columns"),
            ({"mean": [], "std": []}, "4 columns"),
            ({"mean": [0] * 4, "std": [1, 1, 1, -1]}, "at least 0"),
        ],
    )
    def test_a_scaler_of_another_shape(self, file: FilePath, scaler: Any, why: str) -> None:
        assert why in self._changed(file, scaler=scaler)

    def test_no_clusters_at_all(self, file: FilePath) -> None:
        none = {"kind": "kmeans", "centroids": []}
        assert "at least one cluster" in self._changed(file, clusters=none, actions=[])

    def test_another_number_of_actions(self, file: FilePath) -> None:
        assert "1 actions for 2 clusters" in self._changed(file, actions=["local"])

    def test_centres_of_another_width(self, file: FilePath) -> None:
        assert "4 columns" in self._changed(file, clusters={"kind": "kmeans", "centroids": [[0] * 4, [0] * 3]})

    @pytest.mark.parametrize(
        ("part", "why"),
        [
            ({"weights": [0.0, 1.0]}, "above 0"),
            ({"weights": [1.0]}, "do not agree"),
            ({"precisions_cholesky": [UNIT]}, "do not agree"),
            ({"precisions_cholesky": [UNIT, UNIT[:3]]}, "Cholesky"),
            ({"precisions_cholesky": [UNIT, [row[:3] for row in UNIT]]}, "Cholesky"),
            ({"precisions_cholesky": [UNIT, [[0.0] * 4] * 4]}, "Cholesky"),
            ({"means": [[0] * 4, [0] * 5]}, "4 columns"),
        ],
    )
    def test_a_mixture_whose_parts_do_not_agree(self, file: FilePath, part: dict[str, Any], why: str) -> None:
        of = bundle(clusters=MIXTURE)
        assert why in self._changed(file, of, clusters=msgspec.to_builtins(MIXTURE) | part)

    @pytest.mark.parametrize("guard", [{"max_decode_kv_ratio": -0.1}, {"max_local_tokens": -1}])
    def test_negative_guards(self, file: FilePath, guard: dict[str, Any]) -> None:
        assert next(iter(guard)) in self._changed(file, **guard)


@pytest.mark.parametrize(("clusters", "kind"), [(KMEANS, KMeans), (MIXTURE, GaussianMixture)])
def test_a_bundle_becomes_the_policy_that_it_describes(clusters: Any, kind: type) -> None:
    policy = table_policy(bundle(clusters=clusters), AlwaysLocal())
    assert isinstance(policy.clusters, kind)
    assert (policy.max_decode_kv_ratio, policy.max_local_tokens) == (0.8, 10_000)
    short, long = (policy.choose(question(isl), Random(0)) for isl in (6, 9_000))
    assert (short.path, short.cluster) == (Path.LOCAL, 0)
    assert (long.path, long.cluster) == (Path.REMOTE, 1)
    assert policy.choose(question(10_001), Random(0)).reason is Reason.GUARD_LONG_PROMPT
    full = question(6, decode=view(kv_used_ratio=0.81))
    assert policy.choose(full, Random(0)).reason is Reason.GUARD_DECODE_KV


def test_the_defaults_of_a_bundle_are_those_of_the_policy() -> None:
    made = TableBundle(scaler=ScalerModel(mean=(0.0,) * 4, std=(1.0,) * 4), clusters=KMEANS, actions=("local", "local"))
    policy = table_policy(made, AlwaysLocal())
    assert (policy.max_decode_kv_ratio, policy.max_local_tokens) == (0.90, 16_384)
    assert made.features == FEATURES
