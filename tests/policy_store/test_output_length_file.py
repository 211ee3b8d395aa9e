from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from policy_store.learn.output_length.train import train, vectors_of
from policy_store.output_length_file import (
    FILE,
    OutputLengthFileError,
    Trained,
    read_output_length,
    write_output_length,
)
from tests.policy_store.learn.output_length.length_lab import SMALL, prompt_rows

pytest.importorskip("xgboost")


@pytest.fixture(scope="module")
def made() -> Trained:
    return train(prompt_rows(), SMALL)


@pytest.fixture
def folder(made: Trained, tmp_path: Path) -> Path:
    write_output_length(made, tmp_path / "predictor", provenance={"data": "synthetic"})
    return tmp_path / "predictor"


def test_a_predictor_comes_back_as_it_was_written(made: Trained, folder: Path) -> None:
    read = read_output_length(folder)
    for features in vectors_of(made.model, prompt_rows(20, seed=5)):
        assert read.predict(features) == made.model.predict(features)


def test_no_word_of_a_prompt_is_in_the_file(folder: Path) -> None:
    assert b"topic7" not in (folder / FILE).read_bytes()


def _edit(change: Callable[[dict[str, Any]], object], folder: Path) -> None:
    content = msgspec.json.decode((folder / FILE).read_bytes())
    change(content)
    (folder / FILE).write_bytes(msgspec.json.encode(content))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda file: file.update(feature_version=99), "other features"),
        (lambda file: file["features"].reverse(), "other features"),
        (lambda file: file["heads"].pop("log_length"), "must have"),
        (lambda file: file["heads"]["log_length"].update(sha256="0"), "not the file"),
        (lambda file: file["heads"]["log_length"].update(trees="../x.ubj"), "name of a file"),
        (lambda file: file["heads"]["log_length"]["end"].update(slope=0.0), "slope above zero"),
        (lambda file: file["heads"]["log_length"]["own"]["terse"].update(slope=0.0), "slope above zero"),
        (
            lambda file: file["heads"]["log_length"]["own"].update(x=file["heads"]["log_length"]["own"]["terse"]),
            "x has",
        ),
        (lambda file: file["unknown"].update(spread=0.0), "spread above zero"),
        (lambda file: file["text"].update(weights="AAAA"), "cut short"),
        (lambda file: file["text"].update(weights="AADAfw==", squares="AACAPw=="), "not finite"),
        (lambda file: file["text"].update(weights="AACAPw==", squares="AAAAAA=="), "above zero"),
        (lambda file: file["text"].update(layout=[1.0]), "weights"),
        (lambda file: file.update(code="x"), "not an output-length predictor"),
    ],
)
def test_what_does_not_check_out_is_refused_with_the_reason(
    change: Callable[[dict[str, Any]], object], words: str, folder: Path
) -> None:
    _edit(change, folder)
    with pytest.raises(OutputLengthFileError, match=words):
        read_output_length(folder)


def test_a_figure_that_is_no_number_is_refused(folder: Path) -> None:
    path = folder / FILE
    path.write_bytes(path.read_bytes().replace(b'"trust": ', b'"trust": NaN, "x": ', 1))
    with pytest.raises(OutputLengthFileError, match="not an output-length predictor"):
        read_output_length(folder)


def test_a_missing_file_is_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(OutputLengthFileError, match="cannot read"):
        read_output_length(tmp_path / "nowhere")
    next(folder.glob("*.ubj")).unlink()
    with pytest.raises(OutputLengthFileError, match="cannot read"):
        read_output_length(folder)
