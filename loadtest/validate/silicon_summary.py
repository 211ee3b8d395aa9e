"""What the comparison with public benchmarks says, by model and by system, against the bounds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from loadtest.engine.fitting.shapes import LLAMA_70B, QWEN3_32B
from loadtest.validate.silicon_rows import SiliconRow

TTFT_BOUND = 0.25
"""Of the median absolute error over a bounded model's rows."""
TPOT_BOUND = 0.15
"""The same of TPOT."""
BOUNDED_MODELS = (LLAMA_70B, QWEN3_32B)
"""Rows of other models are shown beside: what their concurrency counts is not known."""
WORST_ROWS = 8

Group = tuple[str, ...]
Key = Callable[[SiliconRow], Group]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupErrors:
    """Errors over a group of rows, relative to the measurements."""

    group: Group
    """Model; then system and GPUs, where the group is that narrow."""
    rows: int
    ttft_median: float
    """Median absolute error."""
    ttft_bias: float
    """Median signed error."""
    tpot_median: float
    tpot_bias: float
    is_bounded: bool

    @property
    def ttft_holds(self) -> bool:
        """True within the bound."""
        return self.ttft_median <= TTFT_BOUND

    @property
    def tpot_holds(self) -> bool:
        """True within the bound."""
        return self.tpot_median <= TPOT_BOUND


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The comparison as a whole."""

    models: tuple[GroupErrors, ...]
    systems: tuple[GroupErrors, ...]
    """By model and system."""
    splits: tuple[GroupErrors, ...]
    """By model, system and GPUs."""
    worst: tuple[SiliconRow, ...]
    """Rows of bounded models whose larger error, in units of its bound, is largest."""

    @property
    def holds(self) -> bool:
        """True where both bounds hold for every bounded model."""
        return all(model.ttft_holds and model.tpot_holds for model in self.models if model.is_bounded)


def summarise(rows: Sequence[SiliconRow]) -> Summary:
    """Medians by model, by system and by split, and the rows that are furthest off."""
    bounded = [row for row in rows if row.measured.model in BOUNDED_MODELS]
    return Summary(
        models=_errors(rows, lambda row: (row.measured.model.name,), bounds=True),
        systems=_errors(rows, lambda row: (row.measured.model.name, row.measured.system.name)),
        splits=_errors(rows, lambda row: (row.measured.model.name, row.measured.system.name, f"tp{row.measured.gpus}")),
        worst=tuple(sorted(bounded, key=_badness, reverse=True)[:WORST_ROWS]),
    )


def _errors(rows: Sequence[SiliconRow], key: Key, *, bounds: bool = False) -> tuple[GroupErrors, ...]:
    groups: dict[Group, list[SiliconRow]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return tuple(
        _group_errors(group, members, is_bounded=bounds and members[0].measured.model in BOUNDED_MODELS)
        for group, members in sorted(groups.items())
    )


def _group_errors(group: Group, rows: Sequence[SiliconRow], *, is_bounded: bool) -> GroupErrors:
    ttft = np.array([row.ttft_error for row in rows])
    tpot = np.array([row.tpot_error for row in rows])
    return GroupErrors(
        group=group,
        rows=len(rows),
        ttft_median=float(np.median(np.abs(ttft))),
        ttft_bias=float(np.median(ttft)),
        tpot_median=float(np.median(np.abs(tpot))),
        tpot_bias=float(np.median(tpot)),
        is_bounded=is_bounded,
    )


def _badness(row: SiliconRow) -> float:
    return max(abs(row.ttft_error) / TTFT_BOUND, abs(row.tpot_error) / TPOT_BOUND)
