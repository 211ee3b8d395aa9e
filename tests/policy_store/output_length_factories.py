"""Small output-length predictors, written as XGBoost would write them, without XGBoost."""

import struct
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from gateway.core.output_length.features import FEATURES
from policy_store.bundle import Bundle, new_bundle
from policy_store.output_length_file import FILE, Trained, encode_output_length
from tests.core.output_length import predictor_factories
from tests.policy_store.bundle_factories import table

SHORT_PROMPT_TOKENS = 50.0
"""Longer prompts get longer answers."""


def ubjson(value: object) -> bytes:
    """Objects, lists, strings, integers and 32-bit floats."""
    if isinstance(value, dict):
        return b"{" + b"".join(ubjson(key)[1:] + ubjson(item) for key, item in value.items()) + b"}"
    if isinstance(value, list):
        return b"[" + b"".join(map(ubjson, value)) + b"]"
    if isinstance(value, str):
        return b"SL" + struct.pack(">q", len(value.encode())) + value.encode()
    if isinstance(value, float):
        return b"d" + struct.pack(">f", value)
    assert isinstance(value, int)
    return b"l" + struct.pack(">i", value)


def booster(objective: str, *, leaves: tuple[float, float] = (-1.0, 1.0), features: int = len(FEATURES)) -> bytes:
    """One tree with one split, by the prompt's length."""
    tree = {
        "left_children": [1, -1, -1],
        "right_children": [2, -1, -1],
        "split_indices": [FEATURES.index("prompt_token_len"), 0, 0],
        "split_conditions": [SHORT_PROMPT_TOKENS, *leaves],
        "default_left": [1, 0, 0],
        "tree_param": {},
    }
    parameters = {"base_score": "[5E-1]", "num_class": "0", "num_feature": str(features)}
    learner = {
        "gradient_booster": {"name": "gbtree", "model": {"trees": [tree]}},
        "learner_model_param": parameters,
        "objective": {"name": objective},
    }
    return ubjson({"learner": learner})


def predictor_files(*, data: str = "made up", **changes: Any) -> dict[str, bytes]:
    """A predictor's files; `changes` go to the tree of the expected length."""
    kinds = ("binary:logistic", "binary:logistic")
    boosters = (*map(booster, kinds), booster("reg:squarederror", **changes))
    model = predictor_factories.model(text=predictor_factories.text_score())
    return encode_output_length(Trained(model=model, boosters=boosters, rows=1), provenance={"data": data})


def edited(files: dict[str, bytes], change: Callable[[dict[str, Any]], object]) -> dict[str, bytes]:
    """The files with a change of the JSON's content."""
    content = msgspec.json.decode(files[FILE])
    change(content)
    return {**files, FILE: msgspec.json.encode(content)}


def with_trees(files: dict[str, bytes], raw: bytes) -> dict[str, bytes]:
    """The files with other trees for the expected length, signed as a writer would."""
    signed = edited(files, lambda file: file["heads"]["log_length"].update(sha256=sha256(raw).hexdigest()))
    return {**signed, "log_length.ubj": raw}


def foretelling(**changes: Any) -> Bundle:
    """A bundle of the small table with a predictor; `changes` go to the table."""
    return new_bundle(table(**changes), output_length=predictor_files(), provenance={"trace": "mooncake"})


def predictor_folder(parent: Path) -> Path:
    """A folder as training writes it."""
    folder = parent / "predictor"
    folder.mkdir()
    for name, raw in predictor_files().items():
        (folder / name).write_bytes(raw)
    return folder
