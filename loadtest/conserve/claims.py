"""What must come out, and whether it does.

The rule of this module: a claim names its baseline and is judged at that baseline's load; it is met by the measured
value, and its interval is printed beside it. "No worse" allows what can be told from noise: `ALLOWED`, where the
interval reaches it.
"""

from collections.abc import Iterator, Sequence

from loadtest.compare.bootstrap import Interval
from loadtest.conserve.arms import (
    CONSERVE_ARM,
    CONSERVE_CAPPED,
    CONSERVE_FIFO,
    PER_TURN,
    PER_TURN_COLD,
    REMOTE,
    REMOTE_COLD,
)
from loadtest.conserve.figures import POINTS
from loadtest.conserve.results import ArmFigures, CellFigures, Claim

ALLOWED = 0.01
COMBINED = "combined"
CONSERVE = CONSERVE_ARM.name
P_RICH, D_RICH = "2P2D", "1P3D"
BUSY = 0.80
NAMES = {
    "ttfet_p95_s": "P95 TTFET",
    "last_tbt_p95_s": "P95 last-turn TBT",
    "energy_j": "energy per conversation",
    "attained_ratio": "SLO attainment",
}


def claims(cells: Sequence[CellFigures]) -> list[Claim]:
    """All that can be judged of these cells."""
    return [claim for cell in cells for claim in (_scarce(cell) if cell.kv_share < 1.0 else _of(cell))]


def _of(cell: CellFigures) -> Iterator[Claim]:
    conserve = cell.arm(CONSERVE)
    if conserve is not None:
        yield _transfers(cell, conserve)
        yield from _conserve(cell, conserve)
    capped = cell.arm(CONSERVE_CAPPED.name)
    if capped is not None and conserve is not None:
        yield from _tiers(cell, conserve, capped)
    mixed = cell.arm(COMBINED)
    if mixed is not None and conserve is not None:
        yield from _combined(cell, mixed, conserve)


def _transfers(cell: CellFigures, conserve: ArmFigures) -> Claim:
    found = conserve.figures["transfers_mean"].value
    return Claim(
        cell=cell.label,
        what="conserve: transfers per conversation",
        required="1.00",
        found=f"{found:.3f}",
        holds=f"{found:.2f}" == "1.00",
    )


def _conserve(cell: CellFigures, conserve: ArmFigures) -> Iterator[Claim]:
    match cell.baseline:
        case PER_TURN.name:
            yield _lower(cell, conserve, "energy_j", 0.075)
            yield _no_worse(cell, conserve, "ttfet_p95_s")
            yield _no_worse(cell, conserve, "attained_ratio")
        case PER_TURN_COLD.name:
            yield _lower(cell, conserve, "energy_j", 0.075)
            yield _lower(cell, conserve, "ttfet_p95_s", 0.35)
            yield _no_worse(cell, conserve, "attained_ratio")
        case REMOTE.name | REMOTE_COLD.name if cell.pools == P_RICH:
            yield _lower(cell, conserve, "ttfet_p95_s", 0.51)


def _tiers(cell: CellFigures, conserve: ArmFigures, capped: ArmFigures) -> Iterator[Claim]:
    own, full = capped.figures["attained_ratio"].value, conserve.figures["attained_ratio"].value
    if own < full - ALLOWED:
        return  # a load at which they do not hold the SLO: the table shows it
    saved = 1.0 - capped.figures["energy_j"].value / conserve.figures["energy_j"].value
    yield Claim(
        cell=cell.label,
        what="energy per conversation of capped decoders against 'conserve', the SLO held",
        required="12.0% lower",
        found=f"{saved:.1%} lower (SLO met {own:.1%}, {full:.1%})",
        holds=saved >= 0.12,
    )


def _combined(cell: CellFigures, mixed: ArmFigures, conserve: ArmFigures) -> Iterator[Claim]:
    baseline = cell.arm(cell.baseline)
    assert baseline is not None
    for metric in ("ttfet_p95_s", "last_tbt_p95_s"):
        yield _no_worse(cell, mixed, metric)
        yield _beside_conserve(cell, mixed, conserve, metric)
    if cell.pools == D_RICH and cell.baseline == PER_TURN.name and baseline.prefill_busy >= BUSY:
        best_s = min(baseline.figures["ttfet_p95_s"].value, conserve.figures["ttfet_p95_s"].value)
        lower = 1.0 - mixed.figures["ttfet_p95_s"].value / best_s
        yield Claim(
            cell=cell.label,
            what=f"combined: P95 TTFET below the better of both, prefillers {baseline.prefill_busy:.0%} busy",
            required="15.0% lower",
            found=f"{lower:.1%} lower",
            holds=lower >= 0.15,
        )
    gap = (mixed.figures["energy_j"].value - conserve.figures["energy_j"].value) / baseline.figures["energy_j"].value
    yield Claim(
        cell=cell.label,
        what="combined: energy above ConServe's, in points of the baseline's",
        required="at most 4.0",
        found=f"{100 * gap:+.1f}",
        holds=gap <= 0.04,
    )


def _scarce(cell: CellFigures) -> Iterator[Claim]:
    conserve = cell.arm(CONSERVE)
    assert conserve is not None
    found = conserve.beside["ttfet_p95_s"]
    yield Claim(
        cell=cell.label,
        what=f"conserve: P95 TTFET against '{cell.baseline}', conversations {_over(cell):.2f} times the KV",
        required="at most 10.0% higher",
        found=_percent(found),
        holds=found.value <= 0.10,
    )
    fifo = cell.arm(CONSERVE_FIFO.name)
    if fifo is not None:
        yield Claim(
            cell=cell.label,
            what="conserve, plain FIFO: P95 TTFET, shown beside it",
            required="-",
            found=_percent(fifo.beside["ttfet_p95_s"]),
            holds=True,
        )


def _over(cell: CellFigures) -> float:
    return cell.live_kv_tokens / cell.kv_tokens


def _lower(cell: CellFigures, arm: ArmFigures, metric: str, by: float) -> Claim:
    found = arm.beside[metric]
    return Claim(
        cell=cell.label,
        what=f"{arm.name}: {NAMES[metric]} against '{cell.baseline}'",
        required=f"{by:.1%} lower",
        found=_percent(found),
        holds=found.value <= -by,
    )


def _no_worse(cell: CellFigures, arm: ArmFigures, metric: str) -> Claim:
    found = arm.beside[metric]
    worse = Interval(-found.value, -found.high, -found.low) if metric in POINTS else found
    return Claim(
        cell=cell.label,
        what=f"{arm.name}: {NAMES[metric]} against '{cell.baseline}'",
        required="no lower" if metric in POINTS else "no higher",
        found=_percent(found),
        holds=worse.value <= ALLOWED or worse.low <= 0.0,
    )


def _beside_conserve(cell: CellFigures, mixed: ArmFigures, conserve: ArmFigures, metric: str) -> Claim:
    found = mixed.figures[metric].value / conserve.figures[metric].value - 1.0
    return Claim(
        cell=cell.label,
        what=f"{mixed.name}: {NAMES[metric]} against 'conserve'",
        required="no higher",
        found=f"{found:+.1%}",
        holds=found <= ALLOWED,
    )


def _percent(found: Interval) -> str:
    return f"{found.value:+.1%} [{found.low:+.1%}, {found.high:+.1%}]"
