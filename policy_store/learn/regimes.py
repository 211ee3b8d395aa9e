"""Where one load regime ends and the next begins.

The rule of this module: thresholds come from what was served, never from a guess, and a regime without enough requests
is not made. No paper's rule [D].
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray
from sklearn.tree import DecisionTreeRegressor

from gateway.core.path.regime import Regimes
from gateway.core.types import Path
from policy_store.learn.environment import ServedRow

Array = NDArray[np.float64]

ENOUGH_DRAWN = 1000
"""Rows whose path was drawn at random, from which the advantage of a path can be seen."""
LEAF = -2
"""scikit-learn's mark of a node without a threshold."""


class RegimeMethod(StrEnum):
    """How thresholds are found."""

    TREE = "tree"
    """Where a small tree splits the advantage of local over remote; where too few paths were drawn at random to see
    that, attainment: over the backlog that of remote requests, over the decode batch that of all."""
    QUANTILES = "quantiles"
    """Equal shares."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegimePlan:
    """How many regimes, and how they are found."""

    method: RegimeMethod = RegimeMethod.TREE
    backlog_levels: int = 3
    batch_levels: int = 2
    """The grid's two sides; a load that separates nothing gets fewer."""
    min_share: float = 0.1
    """Of the requests, on either side of a threshold."""


def fit_regimes(rows: Sequence[ServedRow], plan: RegimePlan) -> Regimes:
    """Thresholds from rows of one window; a load that no row knows, or that never changes, gets none."""
    known = [row for row in rows if row.prefill_backlog_tokens is not None and row.decode_requests is not None]
    backlog = np.array([row.prefill_backlog_tokens for row in known], dtype=np.float64)
    batch = np.array([row.decode_requests for row in known], dtype=np.float64)
    if plan.method is RegimeMethod.QUANTILES:
        return Regimes(
            prefill_backlog_tokens=_quantiles(backlog, plan.backlog_levels),
            decode_requests=_quantiles(batch, plan.batch_levels),
        )
    judged = np.array([row.attained is not None for row in known], dtype=bool)
    remote = judged & np.array([row.path is Path.REMOTE for row in known], dtype=bool)
    drawn = judged & np.array([row.is_learnable and row.propensity < 1.0 for row in known], dtype=bool)
    if drawn.sum() >= ENOUGH_DRAWN:
        target = np.array([_advantage(row) for row in known])
        of_backlog = of_batch = drawn
    else:
        target = np.array([float(bool(row.attained)) for row in known])
        of_backlog, of_batch = remote, judged
    return Regimes(
        prefill_backlog_tokens=_split(backlog[of_backlog], target[of_backlog], plan.backlog_levels, plan.min_share),
        decode_requests=_split(batch[of_batch], target[of_batch], plan.batch_levels, plan.min_share),
    )


def _advantage(row: ServedRow) -> float:
    """An unbiased, noisy view of attainment if local minus attainment if remote (inverse propensity)."""
    sign = 1.0 if row.path is Path.LOCAL else -1.0
    return sign * float(bool(row.attained)) / row.propensity


def _split(load: Array, target: Array, levels: int, min_share: float) -> tuple[float, ...]:
    """Up to `levels` - 1 thresholds that separate the target best."""
    leaf = max(1, int(np.ceil(min_share * len(load))))
    if levels < 2 or len(load) < 2 * leaf or load.min() == load.max():
        return ()
    tree = DecisionTreeRegressor(max_leaf_nodes=levels, min_samples_leaf=leaf, random_state=0)
    tree.fit(load.reshape(-1, 1), target)
    inner = tree.tree_.feature != LEAF
    return tuple(sorted(set(tree.tree_.threshold[inner].tolist())))


def _quantiles(load: Array, levels: int) -> tuple[float, ...]:
    """Equal shares; a load of which much is equal gets fewer levels, none of them empty."""
    if levels < 2 or not len(load):
        return ()
    cuts = np.unique(np.quantile(load, [level / levels for level in range(1, levels)], method="lower"))
    return tuple(cut for cut in cuts.tolist() if cut < load.max())
