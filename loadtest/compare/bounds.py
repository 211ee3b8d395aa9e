"""What a preset must show, as data, and whether it does.

The rule of this module: a bound is met by the measured value; its interval is printed beside it. A cell is lost where a
metric is worse than a baseline's by more than is allowed even at the better end of its interval.
"""

from collections.abc import Iterator, Sequence

import msgspec

from loadtest.compare.baselines import DYNAMO, DYNAMO_TUNED
from loadtest.compare.bootstrap import JUDGED, Interval
from loadtest.compare.cells import LLAMA_70B, Place
from loadtest.compare.learned import STATIC_TABLE
from loadtest.compare.results import ArmResult, CellResult, LiveResult

HIGHER_IS_BETTER = ("attained_ratio",)
ALLOWED = 0.01
"""Beyond its interval, no metric may be worse by more."""


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """That the best learned policy of some cells is better than a baseline by so much."""

    metric: str
    beside: str
    """The baseline."""
    better_by: float
    """Attainment: points, 0.01 being one. Latencies: as a share of the baseline's."""
    workload: str = "mix"
    pools: str
    engine: str = LLAMA_70B
    slo: str = "standard"
    load: float = 1.0

    def is_about(self, cell: CellResult) -> bool:
        """Whether it says something of a cell that was run."""
        return self._where == (cell.workload, cell.pools, cell.engine, cell.slo, cell.load)

    def is_at(self, place: Place, load: float) -> bool:
        """Whether it says something of a cell to be run."""
        return self._where == (place.workload, place.pools, place.engine, place.slo.name, load)

    @property
    def _where(self) -> tuple[str, str, str, str, float]:
        return self.workload, self.pools, self.engine, self.slo, self.load


HEADLINE = tuple(
    Bound(metric=metric, beside=beside, better_by=better_by, pools=pools)
    for pools in ("2P2D", "1P3D")
    for metric, beside, better_by in (
        ("ttft_p90_s", DYNAMO_TUNED, 0.10),
        ("tpot_p90_s", DYNAMO_TUNED, 0.20),
        ("attained_ratio", DYNAMO_TUNED, 0.08),
        ("attained_ratio", DYNAMO, 0.20),
    )
)
"""All of one pool are of the same policy."""

PAPER = {"ttft_p90_s": (0.057, 0.079), "tpot_p90_s": (0.026, 0.101)}
"""What the paper says of its static table against Dynamo, on a real cluster: so much lower (methods.md 1.1 [?])."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """A bound and what was measured."""

    what: str
    required: float
    measured: Interval | None
    """How much better, in the bound's own unit; None where the cell was not run."""
    holds: bool


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """A metric of a cell's best learned policy that is worse than the tuned rule's."""

    cell: str
    arm: str
    metric: str
    worse_by: Interval
    is_beyond: bool
    """Worse by more than is allowed at the better end of the interval too; else only in its value."""


def verdicts(bounds: Sequence[Bound], cells: Sequence[CellResult]) -> list[Verdict]:
    """Each bound beside what was measured."""
    return [_verdict(bound, next((cell for cell in cells if bound.is_about(cell)), None)) for bound in bounds]


def losses(cells: Sequence[CellResult], *, beside: str = DYNAMO_TUNED, allowed: float = ALLOWED) -> list[Loss]:
    """Where the best learned policy is worse in its value by more than is allowed."""
    return [loss for cell in cells for loss in _losses(cell, beside, allowed)]


def no_loss(cells: Sequence[CellResult]) -> Verdict:
    """That no metric of any cell is lost; a cell in which nothing was compared proves nothing."""
    compared = [cell for cell in cells if cell.best == DYNAMO_TUNED or DYNAMO_TUNED in cell.arm(cell.best).beside]
    lost = [loss for loss in losses(cells) if loss.is_beyond]
    worst = max((loss.worse_by for loss in lost), key=lambda one: one.low, default=None)
    return Verdict(
        what=f"{len(compared)} cells: metrics worse than the tuned rule's by over {ALLOWED:.0%} beyond their interval:"
        f" {len(lost)}",
        required=-ALLOWED,
        measured=None if worst is None else _turned(worst),
        holds=bool(cells) and len(compared) == len(cells) and not lost,
    )


def learned_live(result: LiveResult) -> Verdict:
    """That what was learned on a running gateway meets the SLO more often than the tuned rule does there."""
    found = result.arms[-1].beside_rule["attained_ratio"]
    return Verdict(
        what=f"{result.place}/100%: learned live, SLO met, against {DYNAMO_TUNED} (above 0 points)",
        required=0.0,
        measured=found,
        holds=found.value > 0,
    )


def beside_strongest(bounds: Sequence[Bound], cells: Sequence[CellResult]) -> list[Verdict]:
    """The best learned policy of the bounds' cells beside the strongest rule there, whoever's it is; no bounds."""
    return [
        Verdict(
            what=f"{cell.label}: {metric} of {cell.best!r} against {cell.strongest}",
            required=0.0,
            measured=found,
            holds=found is not None and found.value >= 0,
        )
        for cell in cells
        if any(bound.is_about(cell) for bound in bounds)
        for metric in dict.fromkeys(bound.metric for bound in bounds)
        for found in (_better_by(cell.arm(cell.best), cell.strongest, metric),)
    ]


def paper_rows(cells: Sequence[CellResult]) -> list[Verdict]:
    """The paper's static table against the tuned rule, beside the paper's claim; no bounds."""
    rows = []
    for cell in cells:
        arm = next((arm for arm in cell.arms if arm.name == STATIC_TABLE), None)
        if arm is None:
            continue
        for metric, (least, most) in PAPER.items():
            found = _better_by(arm, DYNAMO_TUNED, metric)
            rows.append(
                Verdict(
                    what=f"{cell.label}: {metric} of the static table (the paper: {least:.1%} to {most:.1%} lower)",
                    required=least,
                    measured=found,
                    holds=found is not None and found.value >= least,
                )
            )
    return rows


def _verdict(bound: Bound, cell: CellResult | None) -> Verdict:
    found = None if cell is None else _better_by(cell.arm(cell.best), bound.beside, bound.metric)
    who = "" if cell is None else f" of {cell.best!r}"
    return Verdict(
        what=f"{bound.workload}/{bound.pools}/{bound.engine}/{bound.slo}/{bound.load:.0%}: {bound.metric}{who} against"
        f" {bound.beside}",
        required=bound.better_by,
        measured=found,
        holds=found is not None and found.value >= bound.better_by,
    )


def _losses(cell: CellResult, beside: str, allowed: float) -> Iterator[Loss]:
    arm = cell.arm(cell.best)
    for metric in JUDGED:
        found = _better_by(arm, beside, metric)
        if found is not None and found.value < -allowed:
            yield Loss(
                cell=cell.label, arm=arm.name, metric=metric, worse_by=_turned(found), is_beyond=found.high < -allowed
            )


def _better_by(arm: ArmResult, beside: str, metric: str) -> Interval | None:
    """Positive is better; None where the arm was not compared with that baseline."""
    found = arm.beside.get(beside, {}).get(metric)
    if found is None or metric in HIGHER_IS_BETTER:
        return found
    return _turned(found)


def _turned(found: Interval) -> Interval:
    return Interval(-found.value, -found.high, -found.low)
