"""Scanning: each cell's two paths are tried in turns while all other cells keep theirs.

The rule of this module: a path is judged by the requests that were routed while it was tried, whenever they end, and
by nothing else (methods.md 1.3, step 3 [D]). Turns go remote, local, local, remote, so that a steady drift of the load
favours neither.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.core.types import Path
from policy_store.learn.bandit import Arm, Cell, incumbents
from policy_store.learn.course import Course, Phase
from policy_store.learn.environment import ServedRow, attainment, judged
from policy_store.learn.tables import Table
from policy_store.learn.verdict import Verdict, contrast, judged_by

SCAN_FACTOR = 15.7
"""2 (1.96 + 0.84)^2: two-sided 95 % confidence, 80 % power."""
ORDER = (Path.REMOTE, Path.LOCAL, Path.LOCAL, Path.REMOTE)


def requests_per_arm(attained: float, effect: float) -> int:
    """Requests that each of two paths needs for a difference of attainment to be seen (methods.md 1.2 [D]).

    With 95 % confidence and 80 % power: at an attainment of 0.8, an effect of 0.1 needs 252, one of 0.05 1,005.
    """
    return math.ceil(SCAN_FACTOR * attained * (1.0 - attained) / effect**2)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanPlan:
    """How long is scanned; `n_scan`, `block_len` and `passes` as in methods.md 1.3, the rest is this project's."""

    n_scan: int = 200
    """The cell's own requests per path, at least."""
    block_len: int = 50
    """The cell's own requests per turn."""
    passes: int = 2
    """Cells interact: the second pass scans beside the incumbents that the first has chosen."""
    effect: float | None = 0.05
    """The difference of the whole attainment that shall be seen: it sets how many requests of the whole traffic a path
    gets at least. None asks for `n_scan` only."""
    min_turn: int = 200
    """Requests of the whole traffic per turn, at least: a shorter one mostly shows what the turn before has left."""
    max_turn: int = 2000
    """And at most."""
    max_per_path: int = 8000
    """Requests of the whole traffic per path of one cell, at most: a rare cell gets fewer of its own."""
    min_own: int = 40
    """A cell that would get fewer of its own per path is not scanned, and keeps its path."""
    washout: float = 0.25
    """The share of a turn that is not judged: its requests find what the turn before has left."""
    tie_errors: float = 1.0
    """A difference of at most so many standard errors is a tie."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """How one cell is scanned, in requests of the whole traffic."""

    length: int
    """Of one turn."""
    rounds: int
    """How often remote, local, local, remote is gone through."""


def plan_turns(plan: ScanPlan, share: float, attained: float) -> Turns | None:
    """How a cell with this share of the traffic is scanned; None where it is too rare to be judged."""
    if share <= 0.0:
        return None
    length = max(plan.min_turn, min(plan.max_turn, math.ceil(plan.block_len / share)))
    per_path = math.ceil(plan.n_scan / share)
    if plan.effect is not None:
        per_path = max(per_path, requests_per_arm(attained, plan.effect))
    rounds = max(1, round(min(per_path, plan.max_per_path) / (2 * length)))
    if rounds * 2 * length * share < plan.min_own:
        return None
    return Turns(length=length, rounds=rounds)


def scan(
    course: Course, table: Table, cells: Sequence[Cell], *, shares: Sequence[float], attained: float, plan: ScanPlan
) -> tuple[list[Cell], list[Verdict]]:
    """Scan every cell with a share above 0, the largest first, so many passes; the cells after it, and all verdicts.

    Args:
        course: serves.
        table: what the cells belong to.
        cells: as they are; those that are not scanned stay so.
        shares: of the whole traffic, by cell; 0 leaves a cell out.
        attained: the attainment so far, which sets how many requests are enough.
        plan: how long is scanned.
    """
    found = list(cells)
    verdicts = []
    order = sorted(range(len(found)), key=lambda cell: -shares[cell])
    for _ in range(plan.passes):
        for cell in order:
            how = plan_turns(plan, shares[cell], attained)
            if how is None:
                continue
            verdict = scan_cell(course, table, found, cell, how, plan)
            if verdict is not None:
                found[cell] = verdict.seeded(found[cell])
                verdicts.append(verdict)
    return found, verdicts


def scan_cell(
    course: Course, table: Table, cells: Sequence[Cell], cell: int, how: Turns, plan: ScanPlan
) -> Verdict | None:
    """Try both paths of one cell in turns; None where one of them has no outcome that could be judged."""
    actions = list(incumbents(cells))
    washout = math.floor(plan.washout * how.length)
    spans: dict[Path, list[range]] = {Path.LOCAL: [], Path.REMOTE: []}
    rows: list[ServedRow] = []
    for path in ORDER * how.rounds:
        actions[cell] = path
        spans[path].append(range(course.served + washout, course.served + how.length))
        rows += course.serve(Phase.SCAN, table.policy(actions), how.length, cell=cell, path=path)
    # The last turn's slow requests must not be missing, or its path would look better than it is.
    rows += course.serve(Phase.SCAN, table.policy(incumbents(cells)), how.length)
    tried = {path: [row for row in rows if _within(row, spans[path])] for path in Path}
    local, remote = attainment(tried[Path.LOCAL]), attainment(tried[Path.REMOTE])
    if local is None or remote is None:
        return None
    whole = contrast(local, judged(tried[Path.LOCAL]), remote, judged(tried[Path.REMOTE]))
    of_local, of_remote = own_arm(tried[Path.LOCAL], cell), own_arm(tried[Path.REMOTE], cell)
    chosen = judged_by(cells[cell], whole, of_local, of_remote, tie_errors=plan.tie_errors)
    return Verdict(cell=cell, chosen=chosen, whole=whole, local=of_local, remote=of_remote)


def own_arm(rows: Sequence[ServedRow], cell: int) -> Arm:
    """The attainment of one cell's own requests; the rows are those of one path."""
    own = [row for row in rows if row.cell == cell and row.is_learnable]
    return Arm(value=attainment(own) or 0.0, requests=len(own))


def _within(row: ServedRow, spans: Sequence[range]) -> bool:
    return any(row.order in span for span in spans)
