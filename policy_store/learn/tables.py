"""The table whose cells are learned: its shape, and the policy that it makes.

The rule of this module: learning knows cells and paths only; here is said what a cell is. A row's cell is the one that
the deciding policy wrote down; of a row that another policy decided it is looked up.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from gateway.core.path.base import PathPolicy
from gateway.core.path.regime import RegimePolicy, Regimes
from gateway.core.path.table import Guards, TablePolicy
from gateway.core.types import Path
from policy_store.learn.bandit import Cell
from policy_store.learn.clusters import Clustering
from policy_store.learn.environment import ServedRow

LearnedPolicy: TypeAlias = TablePolicy | RegimePolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Clusters, or clusters x regimes, without their paths."""

    clustering: Clustering
    regimes: Regimes | None
    """None makes the paper's static table."""
    baseline: PathPolicy
    guards: Guards

    @property
    def per_cluster(self) -> int:
        """Cells of one cluster."""
        return 1 if self.regimes is None else len(self.regimes)

    def __len__(self) -> int:
        return len(self.clustering.model) * self.per_cluster

    def policy(self, actions: Sequence[Path], epsilon: Sequence[float] = ()) -> LearnedPolicy:
        """The policy with these paths, one per cell; without rates of exploration it explores nothing."""
        parts = self.clustering
        if self.regimes is None:
            return TablePolicy(
                scaler=parts.scaler,
                clusters=parts.model,
                actions=tuple(actions),
                epsilon=tuple(epsilon),
                baseline=self.baseline,
                max_decode_kv_ratio=self.guards.max_decode_kv_ratio,
                max_local_tokens=self.guards.max_local_tokens,
            )
        rows = range(0, len(self), self.per_cluster)
        return RegimePolicy(
            scaler=parts.scaler,
            clusters=parts.model,
            regimes=self.regimes,
            actions=tuple(tuple(actions[row : row + self.per_cluster]) for row in rows),
            epsilon=tuple(tuple(epsilon[row : row + self.per_cluster]) for row in rows) if epsilon else (),
            baseline=self.baseline,
            max_decode_kv_ratio=self.guards.max_decode_kv_ratio,
            max_local_tokens=self.guards.max_local_tokens,
        )

    def look_up(self, row: ServedRow) -> int | None:
        """The cell that a request would have had, whoever decided; None where a guard would have, or loads are unknown.

        Whether the decode worker's cache was too full is not in a row: such a request counts as any other.
        """
        if not row.has_numbers or row.features.isl_tokens > self.guards.max_local_tokens:
            return None
        cluster = self.clustering.assign(row.features)
        if self.regimes is None:
            return cluster
        if row.prefill_backlog_tokens is None or row.decode_requests is None:
            return None
        return cluster * self.per_cluster + self.regimes.assign(row.prefill_backlog_tokens, row.decode_requests)


def shares(table: Table, rows: Sequence[ServedRow]) -> tuple[float, ...]:
    """Of all rows, each cell's; guarded requests belong to none."""
    counts = Counter(map(table.look_up, rows))
    return tuple(counts[cell] / max(1, len(rows)) for cell in range(len(table)))


def first_cells(table: Table, rows: Sequence[ServedRow]) -> list[Cell]:
    """Every cell with what the baseline mostly did there in rows that it decided; remote where it never came."""
    local: Counter[int | None] = Counter()
    for row in rows:
        local[table.look_up(row)] += 1 if row.path is Path.LOCAL else -1
    return [_first_cell(Path.LOCAL if local[cell] > 0 else Path.REMOTE) for cell in range(len(table))]


def _first_cell(path: Path) -> Cell:
    return Cell(incumbent=path, baseline=path)
