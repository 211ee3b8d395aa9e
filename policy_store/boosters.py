"""From an XGBoost model file to the core's trees, without XGBoost.

The rule of this module: only what training here writes is understood: one output, numerical splits, no dropped trees;
everything else is refused.
"""

import math
from collections.abc import Callable

import msgspec

from gateway.core.output_length.trees import LEAF, Ensemble, Tree, TreeError, check_trees
from policy_store.ubjson import UbjsonError, read_ubjson


def _logit(probability: float) -> float:
    if not 0.0 < probability < 1.0:
        raise TreeError(f"a base score of {probability:g} is no probability")
    return math.log(probability / (1.0 - probability))


_MARGIN_OF: dict[str, Callable[[float], float]] = {
    "binary:logistic": _logit,
    "reg:squarederror": float,
}


class _TreeParam(msgspec.Struct, frozen=True):
    size_leaf_vector: str = "0"


class _Tree(msgspec.Struct, frozen=True):
    left_children: tuple[int, ...]
    right_children: tuple[int, ...]
    split_indices: tuple[int, ...]
    split_conditions: tuple[float, ...]
    default_left: tuple[int, ...]
    tree_param: _TreeParam
    categories: tuple[int, ...] = ()


class _Trees(msgspec.Struct, frozen=True):
    trees: tuple[_Tree, ...]


class _Booster(msgspec.Struct, frozen=True):
    name: str
    model: _Trees


class _LearnerParam(msgspec.Struct, frozen=True):
    base_score: str
    num_class: str
    num_feature: str
    num_target: str = "1"


class _Objective(msgspec.Struct, frozen=True):
    name: str


class _Learner(msgspec.Struct, frozen=True):
    gradient_booster: _Booster
    learner_model_param: _LearnerParam
    objective: _Objective


class _File(msgspec.Struct, frozen=True):
    learner: _Learner


def read_booster(data: bytes) -> Ensemble:
    """The trees of a model that XGBoost saved as UBJSON.

    Raises:
        TreeError: it is not such a model, or has what is not understood here.
    """
    try:
        learner = msgspec.convert(read_ubjson(data), _File).learner
        param, booster = learner.learner_model_param, learner.gradient_booster
        base_score = float(param.base_score.strip("[]"))
        features = int(param.num_feature)
    except (UbjsonError, msgspec.ValidationError, ValueError) as error:
        raise TreeError(f"not a model of XGBoost: {error}") from error
    margin_of = _MARGIN_OF.get(learner.objective.name)
    if margin_of is None or booster.name != "gbtree" or param.num_class != "0" or param.num_target != "1":
        raise TreeError(f"{booster.name} models for {learner.objective.name} are not understood")
    ensemble = Ensemble(
        features=features,
        base_margin=margin_of(base_score),
        trees=tuple(_tree(tree) for tree in booster.model.trees),
    )
    check_trees(ensemble)
    return ensemble


def _tree(tree: _Tree) -> Tree:
    if tree.categories or tree.tree_param.size_leaf_vector not in {"0", "1"}:
        raise TreeError("categorical splits and several outputs are not understood")
    return Tree(
        left=tuple(LEAF if child < 0 else child for child in tree.left_children),
        right=tree.right_children,
        feature=tree.split_indices,
        value=tree.split_conditions,
        default_left=tuple(map(bool, tree.default_left)),
    )
