"""Bundles with an output-length predictor: it is written and read whole, and nothing that is wrong with it passes."""

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.output_length.facts import PromptFacts
from gateway.core.output_length.features import extract
from gateway.core.output_length.predictor import OutputLengthModel
from policy_store.bundle import (
    OUTPUT_LENGTH_FOLDER,
    OUTPUT_LENGTH_PARTS,
    Bundle,
    new_bundle,
    read_bundle,
    write_bundle,
)
from policy_store.faults import BundleError, BundleFault
from policy_store.output_length_file import FILE, decode_output_length
from tests.policy_store.bundle_factories import bundle, forge, table, written
from tests.policy_store.output_length_factories import (
    booster,
    edited,
    foretelling,
    predictor_files,
    with_trees,
)

NAN = float("nan")
FILES = predictor_files()


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle that is damaged and restored."""
    return write_bundle(foretelling(), tmp_path_factory.mktemp("sound"))


def expected(bundle: Bundle, prompt_tokens: float) -> float:
    model = bundle.output_length
    assert isinstance(model, OutputLengthModel)
    facts = PromptFacts(text="explain this", prompt_tokens=prompt_tokens, model="m")
    return model.predict(extract(facts, model.spec)).expected_tokens


def refusal(files: dict[str, bytes]) -> BundleError:
    with pytest.raises(BundleError) as refused:
        new_bundle(table(), output_length=files)
    return refused.value


def test_a_predictor_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    made = foretelling()
    read = read_bundle(write_bundle(made, tmp_path))
    assert read == made
    assert set(read.contents) == {"path.json", *OUTPUT_LENGTH_PARTS}
    assert expected(read, 10.0) == expected(made, 10.0)
    assert expected(read, 100.0) == pytest.approx(expected(read, 10.0) * math.exp(2.0))
    assert read.output_length is not None
    assert made.output_length is not None
    assert read.output_length.version == made.output_length.version != ""


def test_a_bundle_without_one_is_what_it_was_before(tmp_path: Path) -> None:
    assert read_bundle(written(tmp_path)).output_length is None
    assert set(bundle().contents) == {"path.json"}


def test_another_predictor_is_another_version_of_the_bundle_and_of_the_model() -> None:
    one, other = (new_bundle(table(), output_length=predictor_files(data=data)) for data in ("one", "other"))
    assert one.version != other.version
    assert one.output_length is not None
    assert other.output_length is not None
    assert one.output_length.version != other.output_length.version


def test_a_path_policy_that_changed_leaves_the_predictors_version() -> None:
    one, other = foretelling(), foretelling(max_local_tokens=5)
    assert one.version != other.version
    assert one.output_length is not None
    assert other.output_length is not None
    assert one.output_length.version == other.output_length.version


@pytest.mark.parametrize("name", OUTPUT_LENGTH_PARTS)
@given(data=st.data())
def test_a_byte_that_flipped_is_seen(sound: Path, name: str, data: st.DataObject) -> None:
    whole = (sound / name).read_bytes()
    raw = bytearray(whole)
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    (sound / name).write_bytes(raw)
    try:
        with pytest.raises(BundleError) as refused:
            read_bundle(sound)
        assert refused.value.fault is BundleFault.DIGEST
    finally:
        (sound / name).write_bytes(whole)


@pytest.mark.parametrize("name", OUTPUT_LENGTH_PARTS)
@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_file_that_was_truncated_is_seen(sound: Path, name: str, share: float, tmp_path: Path) -> None:
    copy = shutil.copytree(sound, tmp_path / sound.name)
    raw = (copy / name).read_bytes()
    (copy / name).write_bytes(raw[: int(len(raw) * share)])
    with pytest.raises(BundleError, match="truncated") as refused:
        read_bundle(copy)
    assert refused.value.fault is BundleFault.DIGEST


@pytest.mark.parametrize("name", OUTPUT_LENGTH_PARTS)
def test_a_part_that_is_missing_is_seen_however_it_was_signed(sound: Path, name: str, tmp_path: Path) -> None:
    copy = shutil.copytree(sound, tmp_path / sound.name)
    forge(copy, files={name: None})
    with pytest.raises(BundleError, match=f"{name.removeprefix(OUTPUT_LENGTH_FOLDER)} is missing") as refused:
        read_bundle(copy)
    assert refused.value.fault is BundleFault.FILES


def test_a_file_that_is_no_part_of_it_is_not_known() -> None:
    assert refusal({**FILES, "more.ubj": b""}).fault is BundleFault.FORMAT


@pytest.mark.parametrize(
    ("change", "fault", "words"),
    [
        (lambda file: file.update(feature_version=99), BundleFault.FEATURES, "other features (version 99)"),
        (lambda file: file["features"].reverse(), BundleFault.FEATURES, "other features"),
        (lambda file: file["heads"].pop("log_length"), BundleFault.SHAPE, "must have"),
        (lambda file: file["heads"]["log_length"].update(trees="x.ubj"), BundleFault.SHAPE, "a file beside it"),
        (lambda file: file["heads"]["log_length"].update(sha256="0"), BundleFault.SHAPE, "not the file"),
        (lambda file: file["heads"]["log_length"]["end"].update(slope=0.0), BundleFault.SHAPE, "slope above zero"),
        (lambda file: file["text"].update(weights="AADAfw==", squares="AACAPw=="), BundleFault.NOT_FINITE, "finite"),
        (lambda file: file.update(code="print()"), BundleFault.FORMAT, "not an output-length predictor"),
        (lambda file: file.update(format=3), BundleFault.FORMAT, "not an output-length predictor"),
    ],
)
def test_what_makes_no_sense_is_refused_when_it_is_made_and_when_it_is_read(
    change: Callable[[dict[str, Any]], object], fault: BundleFault, words: str, sound: Path, tmp_path: Path
) -> None:
    files = edited(FILES, change)
    made = refusal(files)
    assert made.fault is fault, made
    assert words in str(made)
    assert "\n" not in str(made)
    copy = shutil.copytree(sound, tmp_path / sound.name)
    forge(copy, files={f"{OUTPUT_LENGTH_FOLDER}{FILE}": files[FILE]})
    with pytest.raises(BundleError) as read:
        read_bundle(copy)
    assert read.value.fault is fault


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"1e999"])
def test_a_number_that_is_none_is_refused_wherever_it_stands(number: bytes) -> None:
    json = FILES[FILE].replace(b'"trust": 1.0', b'"trust": ' + number, 1)
    assert json != FILES[FILE]
    refused = refusal({**FILES, FILE: json})
    assert refused.fault is BundleFault.NOT_FINITE
    assert "output_length.json.text.trust is not a finite number" in str(refused)


@pytest.mark.parametrize("leaves", [(NAN, 1.0), (0.0, math.inf)])
def test_a_tree_with_a_number_that_is_none_is_refused(leaves: tuple[float, float]) -> None:
    refused = refusal(with_trees(FILES, booster("reg:squarederror", leaves=leaves)))
    assert refused.fault is BundleFault.NOT_FINITE


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"{}", "not a model of XGBoost"),
        (booster("reg:squarederror")[:-20], "not a model of XGBoost"),
        (booster("reg:squarederror", features=7), "features"),
        (booster("rank:pairwise"), "not understood"),
    ],
)
def test_trees_that_make_no_sense_are_refused(raw: bytes, words: str) -> None:
    refused = refusal(with_trees(FILES, raw))
    assert refused.fault is BundleFault.SHAPE
    assert words in str(refused)


def test_decoding_names_what_is_missing() -> None:
    with pytest.raises(ValueError, match=r"output_length\.json, at_least_medium\.ubj"):
        decode_output_length({})
