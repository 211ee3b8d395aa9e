"""From old clusters to new ones: who is who, and what is kept.

The rule of this module: a new cluster takes over what was learned about the old one that it is, and nothing from any
other. Clusters are matched as a whole, each at most once (Hungarian method, methods.md 1.3, step 5 [D]).
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from gateway.core.path.table import MIN_STD, KMeans
from policy_store.learn.bandit import Cell
from policy_store.learn.clusters import Clustering

Array = NDArray[np.float64]

MAX_DISTANCE = 1.0
"""Standard deviations of the new fit between two centres: beyond it they are not the same cluster."""


def match(old: Clustering, new: Clustering, *, max_distance: float = MAX_DISTANCE) -> dict[int, int]:
    """The old cluster that each new one is, where there is one.

    Centres are compared as logarithms of token counts, in the new fit's deviations: each fit has a scale of its own.
    """
    scale = np.maximum(np.array(new.scaler.std), MIN_STD)
    gaps = (_centres(new)[:, None, :] - _centres(old)[None, :, :]) / scale
    distances = np.sqrt((gaps**2).sum(axis=2))
    rows, columns = linear_sum_assignment(distances)
    pairs = zip(rows.tolist(), columns.tolist(), strict=True)
    return {row: column for row, column in pairs if distances[row, column] <= max_distance}


def carried_over(
    cells: Sequence[Cell], fresh: Sequence[Cell], matched: Mapping[int, int], per_cluster: int
) -> list[Cell]:
    """The new table: cells of a matched cluster are as they were, those of others are fresh.

    Args:
        cells: the old table's, cluster by cluster.
        fresh: the new table's as they would be without any past.
        matched: old clusters by new ones.
        per_cluster: cells of one cluster, in both tables.
    """
    table = []
    for place, cell in enumerate(fresh):
        cluster, regime = divmod(place, per_cluster)
        before = matched.get(cluster)
        table.append(cell if before is None else cells[before * per_cluster + regime])
    return table


def _centres(clustering: Clustering) -> Array:
    """The centres in log1p space: clusters x features."""
    model, scaler = clustering.model, clustering.scaler
    rows = model.centroids if isinstance(model, KMeans) else model.means
    centres: Array = np.array(rows) * np.maximum(np.array(scaler.std), MIN_STD) + np.array(scaler.mean)
    return centres
