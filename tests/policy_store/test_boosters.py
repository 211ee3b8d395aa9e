import numpy as np
import pytest

from gateway.core.output_length.trees import Ensemble, TreeError, compile_trees
from policy_store.boosters import read_booster
from policy_store.learn.output_length.datasets import load
from policy_store.learn.output_length.rows import columns
from policy_store.learn.output_length.train import train, vectors_of
from tests.policy_store.learn.output_length.length_lab import DATA, SMALL

xgboost = pytest.importorskip("xgboost")
ROUNDING = 2e-6
"""XGBoost adds leaves up in 32-bit floats, the compiled function in 64."""


def inputs(rows: int, features: int = 6) -> np.ndarray:
    rng = np.random.default_rng(3)
    table = np.round(rng.normal(size=(rows, features)), 1).astype(np.float32)
    table[rng.random(table.shape) < 0.2] = np.nan
    return table


def trained(objective: str, table: np.ndarray, **settings: object) -> "xgboost.Booster":
    base = np.nan_to_num(table)
    target = base[:, 0] * 2 + base[:, 1] ** 2 + np.isnan(table[:, 2])
    labels = (target > 1.0).astype(float) if objective == "binary:logistic" else target
    matrix = xgboost.DMatrix(table, label=labels)
    return xgboost.train({"objective": objective, "nthread": 1, "max_depth": 6, **settings}, matrix, 40)


def leaves(ensemble: Ensemble, rows: np.ndarray) -> np.ndarray:
    """The node that each row ends at, by tree: compiled with a leaf's number in place of its output."""
    found = []
    for tree in ensemble.trees:
        numbered = tuple(float(node) if tree.left[node] < 0 else value for node, value in enumerate(tree.value))
        swapped = type(tree)(
            left=tree.left, right=tree.right, feature=tree.feature, value=numbered, default_left=tree.default_left
        )
        margin = compile_trees(Ensemble(features=ensemble.features, base_margin=0.0, trees=(swapped,)))
        found.append([margin(row) for row in rows.tolist()])
    return np.array(found).T


@pytest.mark.parametrize("objective", ["binary:logistic", "reg:squarederror"])
def test_nested_conditions_are_xgboosts_own_predictions(objective: str) -> None:
    table = inputs(600)
    booster = trained(objective, table)
    ensemble = read_booster(bytes(booster.save_raw("ubj")))
    fresh = np.vstack([inputs(300)[::-1], table[:100]])
    # Values on the very thresholds are where rounding would show.
    thresholds = np.array([value for tree in ensemble.trees for value in tree.value], dtype=np.float32)
    fresh[: len(fresh) // 2, 0] = np.resize(thresholds, len(fresh) // 2)
    matrix = xgboost.DMatrix(fresh)
    assert (leaves(ensemble, fresh) == booster.predict(matrix, pred_leaf=True)).all()
    margin = compile_trees(ensemble)
    expected = booster.predict(matrix, output_margin=True)
    np.testing.assert_allclose([margin(row) for row in fresh.tolist()], expected, rtol=ROUNDING, atol=ROUNDING)


@pytest.mark.shared_data
def test_nested_conditions_are_xgboosts_own_predictions_on_real_prompts() -> None:
    rows = load("arena_hard", DATA)
    if rows is None:
        pytest.skip(f"{DATA} is absent")
    table = columns(rows[::5])
    made = train(table, SMALL)
    vectors = np.array(vectors_of(made.model, table))
    for data in made.boosters:
        booster = xgboost.Booster()
        booster.load_model(bytearray(data))
        matrix = xgboost.DMatrix(vectors)
        ensemble = read_booster(data)
        assert (leaves(ensemble, vectors) == booster.predict(matrix, pred_leaf=True)).all()
        margin = compile_trees(ensemble)
        expected = booster.predict(matrix, output_margin=True)
        np.testing.assert_allclose([margin(row) for row in vectors.tolist()], expected, rtol=ROUNDING, atol=ROUNDING)


@pytest.mark.parametrize(
    ("objective", "settings", "words"),
    [
        ("count:poisson", {}, "not understood"),
        ("reg:squarederror", {"booster": "dart"}, "not a model"),
        ("multi:softprob", {"num_class": 3}, "not a model"),
    ],
)
def test_other_kinds_of_models_are_refused(objective: str, settings: dict[str, object], words: str) -> None:
    table = inputs(50)
    labels = np.arange(50) % 3
    booster = xgboost.train({"objective": objective, "nthread": 1, **settings}, xgboost.DMatrix(table, label=labels), 2)
    with pytest.raises(TreeError, match=words):
        read_booster(bytes(booster.save_raw("ubj")))


@pytest.mark.parametrize("data", [b"", b"{}", b"not a model"])
def test_other_files_are_refused(data: bytes) -> None:
    with pytest.raises(TreeError, match="not a model of XGBoost"):
        read_booster(data)
