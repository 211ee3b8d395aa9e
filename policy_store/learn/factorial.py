"""Scanning all cells at once: in every turn each cell takes the other path with some probability, drawn for itself.

The rule of this module: what one cell's path does is read from all turns together, by least squares on every cell's
path and on what arrived, which no path changes. A turn then tells about all cells, where scanning one after
the other spends as many turns on each: what a table of clusters x regimes needs. No paper's rule [D].
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray

from gateway.core.types import Path
from policy_store.learn.bandit import Arm, Cell, incumbents
from policy_store.learn.course import Course, Phase
from policy_store.learn.environment import ServedRow, attainment
from policy_store.learn.scan import own_arm
from policy_store.learn.tables import Table
from policy_store.learn.verdict import Contrast, Verdict, judged_by

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class FactorialPlan:
    """How long is scanned."""

    turns: int = 300
    """Of one pass."""
    turn: int = 100
    """Requests of a turn."""
    passes: int = 3
    """Each around the paths that the one before has chosen."""
    flip: float = 0.2
    """How often a cell takes the other path: the more, the more is seen, and the further from the table itself."""
    washout: float = 0.25
    """The share of a turn that is not judged: its requests find what the turn before has left."""
    min_share: float = 0.002
    """A rarer cell keeps its path."""
    tie_errors: float = 2.0
    """A difference of at most so many standard errors is a tie; with many cells at once, some differ by chance."""
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One turn."""

    actions: tuple[Path, ...]
    judged: range
    """The orders of the requests that count."""


def scan_at_once(
    course: Course, table: Table, cells: Sequence[Cell], *, shares: Sequence[float], plan: FactorialPlan
) -> tuple[list[Cell], list[Verdict]]:
    """Scan every cell with enough of the traffic; the cells after it, and all verdicts, pass by pass."""
    found = list(cells)
    verdicts: list[Verdict] = []
    scanned = [cell for cell, share in enumerate(shares) if share >= plan.min_share]
    rng = Random(plan.seed)  # noqa: S311 (not a secret)
    turns: list[Turn] = []
    rows: list[ServedRow] = []
    for _ in range(plan.passes if scanned else 0):
        _serve_pass(course, table, found, scanned, plan, rng, turns=turns, rows=rows)
        for verdict in _verdicts(table, found, scanned, turns, rows, plan):
            found[verdict.cell] = verdict.seeded(found[verdict.cell])
            verdicts.append(verdict)
    return found, verdicts


def _serve_pass(
    course: Course,
    table: Table,
    cells: Sequence[Cell],
    scanned: Sequence[int],
    plan: FactorialPlan,
    rng: Random,
    *,
    turns: list[Turn],
    rows: list[ServedRow],
) -> None:
    """Add one pass's turns, and the rows that ended meanwhile."""
    washout = math.floor(plan.washout * plan.turn)
    for _ in range(plan.turns):
        actions = list(incumbents(cells))
        for cell in scanned:
            if rng.random() < plan.flip:
                actions[cell] = Path.LOCAL if actions[cell] is Path.REMOTE else Path.REMOTE
        judged = range(course.served + washout, course.served + plan.turn)
        turns.append(Turn(actions=tuple(actions), judged=judged))
        rows += course.serve(Phase.SCAN, table.policy(actions), plan.turn)
    # The last turn's slow requests must not be missing.
    rows += course.serve(Phase.SCAN, table.policy(incumbents(cells)), plan.turn)


def _verdicts(
    table: Table,
    cells: Sequence[Cell],
    scanned: Sequence[int],
    turns: Sequence[Turn],
    rows: Sequence[ServedRow],
    plan: FactorialPlan,
) -> list[Verdict]:
    by_order = {row.order: row for row in rows if row.attained is not None}
    of_turn = [[by_order[order] for order in turn.judged if order in by_order] for turn in turns]
    kept = [place for place, judged in enumerate(of_turn) if judged]
    heard = [of_turn[place] for place in kept]
    tried = [turns[place].actions for place in kept]
    work = _standardised(np.column_stack([_tokens(heard), _expected(table, heard)])) if heard else np.zeros((0, 3))
    attained = np.array([attainment(judged) or 0.0 for judged in heard])
    paths = np.array([[float(actions[cell] is Path.LOCAL) for cell in scanned] for actions in tried])
    paths = paths.reshape(len(tried), len(scanned))
    seen = [_seen(cell, tried, heard) for cell in scanned]
    per_token = _per_local_token(attained, work, paths, seen, table.per_cluster)
    verdicts = []
    for one, whole in zip(seen, _least_squares(attained, work, paths), strict=True):
        of_regime = per_token[one.cell % table.per_cluster]
        others = of_regime.times(one.tokens) if math.isfinite(of_regime.error) else None
        chosen = judged_by(cells[one.cell], whole, one.local, one.remote, tie_errors=plan.tie_errors, others=others)
        verdicts.append(Verdict(cell=one.cell, chosen=chosen, whole=whole, local=one.local, remote=one.remote))
    return verdicts


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One cell's own requests, over all turns."""

    cell: int
    share: float
    """Of all requests."""
    tokens: float
    """Mean prompt tokens that a local prefill would compute."""
    local: Arm
    remote: Arm


def _seen(cell: int, tried: Sequence[Sequence[Path]], heard: Sequence[Sequence[ServedRow]]) -> Seen:
    own: dict[Path, list[ServedRow]] = {Path.LOCAL: [], Path.REMOTE: []}
    for actions, rows in zip(tried, heard, strict=True):
        own[actions[cell]] += [row for row in rows if row.cell == cell]
    both = own[Path.LOCAL] + own[Path.REMOTE]
    return Seen(
        cell=cell,
        share=len(both) / max(1, sum(map(len, heard))),
        tokens=sum(row.features.decode_isl_tokens for row in both) / max(1, len(both)),
        local=own_arm(own[Path.LOCAL], cell),
        remote=own_arm(own[Path.REMOTE], cell),
    )


def _per_local_token(attained: Array, work: Array, paths: Array, seen: Sequence[Seen], regimes: int) -> list[Contrast]:
    """What a prompt token that is prefilled locally and not remotely does to others, by regime: SLOs met, per token.

    What a small cell does to others cannot be seen, but what all of a regime do together can: it is what the turns'
    attainment has beyond that of the requests that took the paths, by how many tokens the paths prefilled locally.
    Where prefill workers are idle a local prefill only slows decoding; where they are busy a remote one makes others
    wait too.
    """
    share = np.array([one.share for one in seen])
    local = np.array([one.local.value for one in seen])
    remote = np.array([one.remote.value for one in seen])
    own = (paths * (share * local) + (1.0 - paths) * (share * remote)).sum(axis=1)
    tokens = paths * (share * np.array([one.tokens for one in seen]))
    regime = np.array([one.cell % regimes for one in seen])
    columns = np.column_stack([tokens[:, regime == each].sum(axis=1) for each in range(regimes)])
    return _least_squares(attained - own, work, columns)


def _least_squares(attained: Array, work: Array, columns: Array) -> list[Contrast]:
    """Each column's effect on the turns' attainment, beside that of the work; unknown where there are too few turns."""
    design = np.column_stack([np.ones(len(attained)), work, columns])
    spare = len(attained) - design.shape[1]
    if spare < 1:
        return [Contrast(difference=0.0, error=math.inf) for _ in range(columns.shape[1])]
    inverse = np.linalg.pinv(design.T @ design)
    effects = inverse @ design.T @ attained
    variance = float(((attained - design @ effects) ** 2).sum()) / spare
    errors = np.sqrt(np.maximum(np.diag(inverse), 0.0) * variance)
    first = design.shape[1] - columns.shape[1]
    pairs = zip(effects[first:].tolist(), errors[first:].tolist(), strict=True)
    # A column that never changes has no effect that could be seen.
    return [Contrast(difference=effect, error=error if error > 0.0 else math.inf) for effect, error in pairs]


def _tokens(heard: Sequence[Sequence[ServedRow]]) -> Array:
    """Prompt tokens per request of each turn, and of the one before."""
    tokens = np.array([sum(row.features.isl_tokens for row in rows) / len(rows) for rows in heard])
    return np.column_stack([tokens, np.concatenate([tokens[:1], tokens[:-1]])])


def _expected(table: Table, heard: Sequence[Sequence[ServedRow]]) -> Array:
    """What each turn's mix of requests would attain if each did as its cluster does on the whole.

    Long prompts miss more than short ones whatever their path; a turn that had many of them says nothing by that.
    """
    clusters = [[table.clustering.assign(row.features) if row.has_numbers else -1 for row in rows] for rows in heard]
    met: Counter[int] = Counter()
    of_all: Counter[int] = Counter()
    for rows, found in zip(heard, clusters, strict=True):
        for row, cluster in zip(rows, found, strict=True):
            of_all[cluster] += 1
            met[cluster] += bool(row.attained)
    expected: Array = np.array([sum(met[each] / of_all[each] for each in found) / len(found) for found in clusters])
    return expected


def _standardised(columns: Array) -> Array:
    scale = columns.std(axis=0)
    standardised: Array = (columns - columns.mean(axis=0)) / np.where(scale > 0.0, scale, 1.0)
    return standardised
