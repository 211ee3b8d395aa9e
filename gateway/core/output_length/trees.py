"""Boosted trees as one Python function of nested conditions.

Calling XGBoost for one row costs about 300 microseconds whatever the model; the same trees as nested conditions cost a
few. Thresholds are 32-bit floats, so features must be rounded to 32 bits before they are compared.

The rule of this module: only numbers that were checked become source text; a malformed tree is refused when it is read.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

LEAF = -1
MAX_DEPTH = 16
"""Deeper conditions would strain Python's parser."""

Margin = Callable[[Sequence[float]], float]
"""From a feature vector to the sum of the leaves that it reaches, in float64."""


class TreeError(ValueError):
    """A tree that cannot be used, and why."""


class NotFiniteTree(TreeError):  # noqa: N818 (it says what is the case)
    """A number of a tree is NaN or infinite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """Nodes in flat arrays of one length; node 0 is the root, and a node whose `left` is `LEAF` is a leaf."""

    left: tuple[int, ...]
    right: tuple[int, ...]
    feature: tuple[int, ...]
    value: tuple[float, ...]
    """A split's threshold (below it goes left), or a leaf's output."""
    default_left: tuple[bool, ...]
    """Where a missing (NaN) feature goes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ensemble:
    """Trees whose outputs add up on top of a constant."""

    features: int
    """Length of the vectors that it takes."""
    base_margin: float
    trees: tuple[Tree, ...]


def compile_trees(ensemble: Ensemble) -> Margin:
    """The function that adds up the leaves.

    Raises:
        TreeError: a tree is malformed, or looks at a feature that is not there.
    """
    check_trees(ensemble)
    names = [f"f{index}" for index in range(ensemble.features)]
    lines = ["def margin(features):", f"    {', '.join(names)}, = features", f"    m = {ensemble.base_margin!r}"]
    for number, tree in enumerate(ensemble.trees):
        lines.append(f"    m += {_source(tree, 0, 0, number)}")
    lines.append("    return m")
    scope: dict[str, Margin] = {}
    exec(compile("\n".join(lines), "<trees>", "exec"), {"__builtins__": {}}, scope)  # noqa: S102 (checked numbers only)
    return scope["margin"]


def check_trees(ensemble: Ensemble) -> None:
    """Raise `TreeError` where a tree is malformed, or looks at a feature that is not there."""
    if not math.isfinite(ensemble.base_margin):
        raise NotFiniteTree("the base margin is not finite")
    for number, tree in enumerate(ensemble.trees):
        _check(tree, ensemble.features, number)


def _check(tree: Tree, features: int, number: int) -> None:
    nodes = len(tree.left)
    if not nodes or {len(tree.right), len(tree.feature), len(tree.value), len(tree.default_left)} != {nodes}:
        raise TreeError(f"tree {number}: arrays of different lengths")
    if not all(map(math.isfinite, tree.value)):
        raise NotFiniteTree(f"tree {number}: a threshold or a leaf is not finite")
    for node, (left, right, feature) in enumerate(zip(tree.left, tree.right, tree.feature, strict=True)):
        if left == LEAF:
            continue
        # Children come after their parents, so there is no way round in circles.
        if not (node < left < nodes and node < right < nodes):
            raise TreeError(f"tree {number}: node {node} has no such children")
        if not 0 <= feature < features:
            raise TreeError(f"tree {number}: node {node} looks at feature {feature} of {features}")


def _source(tree: Tree, node: int, depth: int, number: int) -> str:
    value = tree.value[node]
    if tree.left[node] == LEAF:
        return repr(float(value))
    if depth == MAX_DEPTH:
        raise TreeError(f"tree {number} is deeper than {MAX_DEPTH}")
    feature = f"f{int(tree.feature[node])}"
    # NaN fails every comparison, so it goes to the side of the comparison that must hold for the other side.
    test = f"not {feature} >= {float(value)!r}" if tree.default_left[node] else f"{feature} < {float(value)!r}"
    below = _source(tree, tree.left[node], depth + 1, number)
    above = _source(tree, tree.right[node], depth + 1, number)
    return f"({below} if {test} else {above})"
