"""Bundles: what is written is read back; what differs in any byte, or makes no sense, is refused."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path as FilePath
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.path.table import FEATURES
from policy_store.bundle import (
    PATH_PART,
    Bundle,
    decode_path_model,
    new_bundle,
    read_bundle,
    write_bundle,
)
from policy_store.faults import BundleError, BundleFault
from policy_store.manifest import MANIFEST, MAX_MANIFEST_BYTES
from policy_store.path_models import GaussianMixtureModel, KMeansModel, ScalerModel
from tests.policy_store.bundle_factories import (
    KMEANS,
    MIXTURE,
    UNIT,
    bundle,
    forge,
    forge_path,
    table,
    written,
)

FILES = (MANIFEST, PATH_PART)
NAN = float("nan")


@pytest.fixture
def directory(tmp_path: FilePath) -> FilePath:
    return written(tmp_path)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> FilePath:
    """A bundle that property tests damage and restore."""
    return written(tmp_path_factory.mktemp("sound"))


def refused(directory: FilePath, fault: BundleFault) -> str:
    """Why reading is refused: one line that names the directory."""
    with pytest.raises(BundleError) as refusal:
        read_bundle(directory)
    words = str(refusal.value)
    assert refusal.value.fault is fault, words
    assert str(directory) in words
    assert "\n" not in words
    return words


class TestRoundTrip:
    @pytest.mark.parametrize("clusters", [KMEANS, MIXTURE], ids=["kmeans", "gmm"])
    def test_what_is_written_is_read_back(
        self, tmp_path: FilePath, clusters: KMeansModel | GaussianMixtureModel
    ) -> None:
        made = bundle(clusters=clusters)
        read = read_bundle(write_bundle(made, tmp_path))
        assert read == made
        assert read.path == table(clusters=clusters)

    def test_every_float_survives_exactly(self, tmp_path: FilePath) -> None:
        rng = Random(3)
        odd = tuple(tuple(rng.gauss(0, 10.0 ** rng.randint(-9, 9)) for _ in range(4)) for _ in range(2))
        clusters = read_bundle(written(tmp_path, clusters=KMeansModel(centroids=odd))).path.clusters
        assert isinstance(clusters, KMeansModel)
        assert clusters.centroids == odd

    def test_a_bundle_lies_under_its_version_and_nothing_else_is_left(self, directory: FilePath) -> None:
        assert directory.name == bundle().version
        assert [entry.name for entry in directory.parent.iterdir()] == [directory.name]
        assert sorted(entry.name for entry in directory.iterdir()) == sorted(FILES)

    def test_writing_it_again_leaves_what_is_sound_and_repairs_what_is_not(self, directory: FilePath) -> None:
        before = (directory / PATH_PART).stat().st_ino
        assert write_bundle(bundle(), directory.parent) == directory
        assert (directory / PATH_PART).stat().st_ino == before
        (directory / PATH_PART).write_bytes(b"")
        assert write_bundle(bundle(), directory.parent) == directory
        assert read_bundle(directory) == bundle()
        assert [entry.name for entry in directory.parent.iterdir()] == [directory.name]

    def test_a_bundle_that_cannot_be_written_leaves_nothing(
        self, tmp_path: FilePath, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(descriptor: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            write_bundle(bundle(), tmp_path)
        assert list(tmp_path.iterdir()) == []

    def test_a_model_from_a_file_of_ones_own_is_the_same_bundle(self) -> None:
        raw = json.dumps(msgspec.to_builtins(table())).encode()
        assert new_bundle(decode_path_model(raw)).version == bundle(provenance=None).version


class TestVersion:
    def test_it_is_twelve_hexadecimal_digits(self) -> None:
        assert len(bundle().version) == 12
        assert set(bundle().version) <= set("0123456789abcdef")

    def test_it_does_not_depend_on_time_place_or_order(self, tmp_path: FilePath) -> None:
        first = written(tmp_path)
        os.utime(first / PATH_PART, (0, 0))
        other = shutil.copytree(first, tmp_path / "another name")
        backwards = bundle(provenance={"seed": "7", "trace": "mooncake"})
        assert read_bundle(first).version == read_bundle(other).version == backwards.version == bundle().version

    def test_whole_numbers_in_a_column_of_floats_are_the_same_numbers(self) -> None:
        whole: Any = ScalerModel(mean=(0,) * 4, std=(1,) * 4)
        assert bundle(scaler=whole).version == bundle().version
        assert bundle(scaler=whole).contents == bundle().contents

    def test_reading_and_writing_again_keeps_it(self, directory: FilePath, tmp_path: FilePath) -> None:
        (tmp_path / "copy").mkdir()
        again = write_bundle(read_bundle(directory), tmp_path / "copy")
        assert again.name == directory.name
        assert all((again / name).read_bytes() == (directory / name).read_bytes() for name in FILES)

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


class TestDamage:
    """Whatever happens to the bytes on the disk, it is seen."""

    @staticmethod
    def _refused_with(directory: FilePath, name: str, raw: bytes) -> None:
        whole = (directory / name).read_bytes()
        (directory / name).write_bytes(raw)
        try:
            with pytest.raises(BundleError) as refusal:
                read_bundle(directory)
            assert refusal.value.fault in (BundleFault.DIGEST, BundleFault.FORMAT, BundleFault.FILES)
        finally:
            (directory / name).write_bytes(whole)

    @pytest.mark.parametrize("name", FILES)
    @given(data=st.data())
    def test_a_byte_that_flipped(self, sound: FilePath, name: str, data: st.DataObject) -> None:
        raw = bytearray((sound / name).read_bytes())
        raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
        self._refused_with(sound, name, bytes(raw))

    @pytest.mark.parametrize("name", FILES)
    def test_a_blank_that_became_another(self, sound: FilePath, name: str) -> None:
        self._refused_with(sound, name, (sound / name).read_bytes().replace(b"\n ", b"\n\t", 1))

    @pytest.mark.parametrize("name", FILES)
    def test_a_file_that_was_truncated_anywhere(self, sound: FilePath, name: str) -> None:
        raw = (sound / name).read_bytes()
        for length in range(len(raw)):
            self._refused_with(sound, name, raw[:length])

    @pytest.mark.parametrize("name", FILES)
    def test_a_file_that_grew(self, sound: FilePath, name: str) -> None:
        self._refused_with(sound, name, (sound / name).read_bytes() + b"\n")

    def test_the_words_say_what_happened(self, directory: FilePath) -> None:
        raw = (directory / PATH_PART).read_bytes()
        (directory / PATH_PART).write_bytes(raw[:100])
        words = refused(directory, BundleFault.DIGEST)
        assert words.endswith(f"path.json was truncated to 100 of {len(raw)} bytes")
        (directory / PATH_PART).write_bytes(raw[:-1] + b"x")
        assert refused(directory, BundleFault.DIGEST).endswith(
            "path.json was altered: its SHA-256 is not the manifest's"
        )

    def test_a_manifest_that_was_edited(self, directory: FilePath) -> None:
        text = (directory / MANIFEST).read_text()
        (directory / MANIFEST).write_text(text.replace("mooncake", "azure"))
        assert "not version" in refused(directory, BundleFault.DIGEST)
        (directory / MANIFEST).write_text(json.dumps(json.loads(text)))
        assert "laid out" in refused(directory, BundleFault.DIGEST)


class TestFiles:
    def test_a_directory_that_is_not_there(self, tmp_path: FilePath) -> None:
        assert "No such file" in refused(tmp_path / "nowhere", BundleFault.UNREADABLE)

    def test_a_file_in_the_place_of_a_directory(self, tmp_path: FilePath) -> None:
        (tmp_path / "table.json").write_text("{}")
        assert "Not a directory" in refused(tmp_path / "table.json", BundleFault.UNREADABLE)

    @pytest.mark.parametrize("name", FILES)
    def test_a_missing_file(self, directory: FilePath, name: str) -> None:
        (directory / name).unlink()
        assert f"{name} is missing" in refused(directory, BundleFault.FILES)

    @pytest.mark.parametrize("name", ["model.pkl", "path.json.bak", "output_length/trees.ubj"])
    def test_a_file_too_many(self, directory: FilePath, name: str) -> None:
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text("x")
        assert f"{name} is not in manifest.json" in refused(directory, BundleFault.FILES)

    def test_hidden_files_of_mounts_and_file_managers_are_no_part_of_it(self, directory: FilePath) -> None:
        (directory / ".DS_Store").write_text("x")
        (directory / "..data").mkdir()
        (directory / "..data" / "path.json").write_text("x")
        assert read_bundle(directory) == bundle()

    def test_a_mount_of_links_is_read_through_them(self, directory: FilePath, tmp_path: FilePath) -> None:
        mount = tmp_path / "mount"
        (mount / "..2026").mkdir(parents=True)
        for name in FILES:
            shutil.copy(directory / name, mount / "..2026" / name)
            (mount / name).symlink_to(mount / "..2026" / name)
        assert read_bundle(mount) == bundle()

    def test_a_part_that_is_not_known_here(self, directory: FilePath) -> None:
        forge(directory, files={"output_length/trees.ubj": b"x"})
        assert "knows no part output_length/trees.ubj" in refused(directory, BundleFault.FORMAT)

    def test_a_bundle_without_a_path_policy(self, directory: FilePath) -> None:
        forge(directory, files={PATH_PART: None})
        assert "lists no path.json" in refused(directory, BundleFault.FILES)

    @pytest.mark.parametrize(
        "name", ["../path.json", "/etc/passwd", "a/../../b.json", "PATH.JSON", "x.pkl", "a//b.json"]
    )
    def test_names_that_lead_out_or_are_none(self, directory: FilePath, name: str) -> None:
        tree = json.loads((directory / MANIFEST).read_bytes())
        tree["files"][name] = tree["files"][PATH_PART]
        (directory / MANIFEST).write_text(json.dumps(tree))
        assert "not a bundle's manifest" in refused(directory, BundleFault.FORMAT)

    def test_a_manifest_of_any_size_is_not_read(self, directory: FilePath) -> None:
        (directory / MANIFEST).write_bytes(b" " * (MAX_MANIFEST_BYTES + 1))
        assert "more than" in refused(directory, BundleFault.DIGEST)


class TestMeaning:
    """Bundles that are whole, and signed, and still cannot be used."""

    @pytest.mark.parametrize(
        "content", ["", "{", "[]", "null", "[" * 100_000, b"\x80\x04\x95pickle", '{"format": "1"}']
    )
    def test_what_is_no_manifest(self, directory: FilePath, content: str | bytes) -> None:
        (directory / MANIFEST).write_bytes(content.encode() if isinstance(content, str) else content)
        assert "not a bundle's manifest" in refused(directory, BundleFault.FORMAT)

    def test_another_format(self, directory: FilePath) -> None:
        (directory / MANIFEST).write_text('{"format": 2, "anything": "else"}')
        assert "format 2 is not known; this version reads format 1" in refused(directory, BundleFault.FORMAT)

    def test_another_kind(self, directory: FilePath) -> None:
        forge(directory, kind="oracle")
        assert "kind oracle is not known; this version knows table" in refused(directory, BundleFault.FORMAT)

    @pytest.mark.parametrize("features", [(), FEATURES[:3], FEATURES[::-1], (*FEATURES, "tenant")])
    def test_features_in_another_order_or_number(self, directory: FilePath, features: tuple[str, ...]) -> None:
        forge(directory, features=features)
        assert f"a table needs {', '.join(FEATURES)}" in refused(directory, BundleFault.FEATURES)

    @pytest.mark.parametrize("content", ["", "{", "[]", '{"kind": "oracle"}', '{"scaler": 1}', "[" * 100_000])
    def test_what_is_no_model(self, directory: FilePath, content: str) -> None:
        forge(directory, files={PATH_PART: content.encode()})
        assert "not a path policy's model" in refused(directory, BundleFault.FORMAT)

    @pytest.mark.parametrize(
        "changes",
        [
            {"surprise": 1},
            {"actions": ["local", "teleport"]},
            {"scaler": {"mean": ["zero"] * 4, "std": [1] * 4}},
            {"scaler": {"mean": [None] * 4, "std": [1] * 4}},
            {"scaler": {"mean": [0] * 4, "std": [1] * 4, "median": [0] * 4}},
            {"clusters": {"kind": "kmeans", "centroids": [[0] * 4] * 2, "inertia": 1}},
            {"clusters": msgspec.to_builtins(MIXTURE) | {"lower_bound": 1}},
            {"clusters": {"kind": "forest", "centroids": []}},
            {"clusters": {"centroids": [[0] * 4] * 2}},
            {"max_local_tokens": 1.5},
        ],
        ids=lambda changes: f"{next(iter(changes.items()))}",
    )
    def test_fields_that_are_unknown_or_of_another_type(self, directory: FilePath, changes: dict[str, Any]) -> None:
        forge_path(directory, **changes)
        assert "not a path policy's model" in refused(directory, BundleFault.FORMAT)

    @pytest.mark.parametrize(
        ("changes", "why"),
        [
            ({"scaler": {"mean": [0] * 3, "std": [1] * 4}}, "4 columns"),
            ({"scaler": {"mean": [0] * 4, "std": [1] * 5}}, "4 columns"),
            ({"scaler": {"mean": [], "std": []}}, "4 columns"),
            ({"scaler": {"mean": [0] * 4, "std": [1, 1, 1, -1]}}, "at least 0"),
            ({"clusters": {"kind": "kmeans", "centroids": []}, "actions": []}, "at least one cluster"),
            ({"clusters": {"kind": "kmeans", "centroids": [[0] * 4, [0] * 3]}}, "4 columns"),
            ({"actions": ["local"]}, "1 actions for 2 clusters"),
            ({"max_decode_kv_ratio": -0.1}, "max_decode_kv_ratio"),
            ({"max_local_tokens": -1}, "max_local_tokens"),
        ],
    )
    def test_shapes_that_do_not_agree(self, directory: FilePath, changes: dict[str, Any], why: str) -> None:
        forge_path(directory, **changes)
        assert why in refused(directory, BundleFault.SHAPE)

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
    def test_a_mixture_whose_parts_do_not_agree(self, directory: FilePath, part: dict[str, Any], why: str) -> None:
        forge_path(directory, clusters=msgspec.to_builtins(MIXTURE) | part)
        assert why in refused(directory, BundleFault.SHAPE)


def _numbers(tree: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The places of all floats in a tree of JSON."""
    if isinstance(tree, dict):
        return [place for key, inner in tree.items() for place in _numbers(inner, (*at, key))]
    if isinstance(tree, list):
        return [place for index, inner in enumerate(tree) for place in _numbers(inner, (*at, index))]
    return [at] if isinstance(tree, float) else []


def _with(tree: Any, place: tuple[Any, ...], value: float) -> Any:
    """A tree with another number at a place."""
    tree = json.loads(json.dumps(tree))
    inner = tree
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return tree


class TestNumbers:
    @pytest.mark.parametrize("value", [NAN, float("inf"), -float("inf")])
    def test_one_that_is_not_finite_is_refused_wherever_it_stands(self, directory: FilePath, value: float) -> None:
        sound = json.loads(json.dumps(msgspec.to_builtins(table(clusters=MIXTURE))))
        places = _numbers(sound)
        assert len(places) == 4 + 4 + 2 + 8 + 32 + 1
        for place in places:
            forge(directory, files={PATH_PART: json.dumps(_with(sound, place, value)).encode()})
            words = refused(directory, BundleFault.NOT_FINITE)
            assert str(place[0]) in words

    def test_one_too_large_for_a_float_is_refused(self, directory: FilePath) -> None:
        raw = (directory / PATH_PART).read_bytes().replace(b"9.0", b"9e999", 1)
        forge(directory, files={PATH_PART: raw})
        assert "clusters.centroids[1][0] is not a finite number" in refused(directory, BundleFault.NOT_FINITE)

    @pytest.mark.parametrize(
        ("changes", "where"),
        [
            ({"max_decode_kv_ratio": NAN}, "max_decode_kv_ratio"),
            ({"scaler": ScalerModel(mean=(0.0, NAN, 0.0, 0.0), std=(1.0,) * 4)}, "scaler.mean[1]"),
            ({"clusters": KMeansModel(centroids=(KMEANS.centroids[0], (0.0, 0.0, 0.0, NAN)))}, "centroids[1][3]"),
        ],
    )
    def test_no_bundle_is_made_of_one(self, changes: dict[str, Any], where: str) -> None:
        with pytest.raises(BundleError) as refusal:
            bundle(**changes)
        assert refusal.value.fault is BundleFault.NOT_FINITE
        assert f"{where} is not a finite number" in str(refusal.value)


def test_no_bundle_is_made_of_parts_that_do_not_agree() -> None:
    with pytest.raises(BundleError, match="1 actions for 2 clusters"):
        bundle(actions=("local",))


@pytest.mark.parametrize("make", [bundle, lambda: bundle(clusters=MIXTURE)])
def test_a_bundle_cannot_be_changed(make: Callable[[], Bundle]) -> None:
    made = make()
    with pytest.raises(TypeError):
        made.contents["more.json"] = b""  # type: ignore[index]
