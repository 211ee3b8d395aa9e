import math
from dataclasses import replace

import pytest

from gateway.core.output_length.trees import LEAF, MAX_DEPTH, Ensemble, Tree, TreeError, compile_trees

STUMP = Tree(
    left=(1, LEAF, LEAF), right=(2, LEAF, LEAF), feature=(0, 0, 0), value=(2.5, -1.0, 3.0),
    default_left=(True, False, False),
)  # fmt: skip


def ensemble(*trees: Tree, features: int = 2, base: float = 0.5) -> Ensemble:
    return Ensemble(features=features, base_margin=base, trees=trees)


def test_leaves_add_up_on_top_of_the_base() -> None:
    margin = compile_trees(ensemble(STUMP, replace(STUMP, feature=(1, 0, 0))))
    assert margin((2.0, 7.0)) == 0.5 - 1.0 + 3.0


def test_a_threshold_itself_goes_right() -> None:
    assert compile_trees(ensemble(STUMP))((2.5, 0.0)) == 3.5


@pytest.mark.parametrize(("left", "expected"), [(True, -0.5), (False, 3.5)])
def test_a_missing_feature_goes_where_the_split_says(left: bool, expected: float) -> None:
    tree = replace(STUMP, default_left=(left, False, False))
    assert compile_trees(ensemble(tree))((math.nan, 0.0)) == expected


def test_an_ensemble_without_trees_is_its_base() -> None:
    assert compile_trees(ensemble(features=1))((1.0,)) == 0.5


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (replace(STUMP, left=(0, LEAF, LEAF)), "no such children"),
        (replace(STUMP, right=(9, LEAF, LEAF)), "no such children"),
        (replace(STUMP, feature=(2, 0, 0)), "feature 2 of 2"),
        (replace(STUMP, feature=(-1, 0, 0)), "feature -1 of 2"),
        (replace(STUMP, value=(math.nan, 0.0, 0.0)), "not finite"),
        (replace(STUMP, value=(1.0, math.inf, 0.0)), "not finite"),
        (replace(STUMP, value=(1.0, 0.0)), "different lengths"),
        (Tree(left=(), right=(), feature=(), value=(), default_left=()), "different lengths"),
    ],
)
def test_a_malformed_tree_is_refused_with_the_reason(broken: Tree, words: str) -> None:
    with pytest.raises(TreeError, match=words):
        compile_trees(ensemble(broken))


def test_a_tree_that_is_too_deep_is_refused() -> None:
    depth = MAX_DEPTH + 1
    nodes = 2 * depth + 1
    left = tuple(node + 1 if node % 2 == 0 and node < nodes - 1 else LEAF for node in range(nodes))
    right = tuple(node + 2 if node % 2 == 0 and node < nodes - 1 else LEAF for node in range(nodes))
    chain = Tree(left=left, right=right, feature=(0,) * nodes, value=(0.0,) * nodes, default_left=(True,) * nodes)
    with pytest.raises(TreeError, match="deeper than"):
        compile_trees(ensemble(chain))


def test_a_base_that_is_not_finite_is_refused() -> None:
    with pytest.raises(TreeError, match="base margin"):
        compile_trees(ensemble(base=math.inf))
