"""A comparison of conversations as Markdown.

The rule of this module: order and words only; every figure is one of `results`.
"""

from collections.abc import Sequence

from loadtest.compare.bootstrap import Interval
from loadtest.compare.layout import NO_CLAIM, table
from loadtest.conserve.results import ArmFigures, CellFigures, Claim, ConserveReport

HEADINGS = (
    "",
    "TTFET P50, s",
    "TTFET P95, s",
    "last-turn TBT P50, ms",
    "P95, ms",
    "SLO met",
    "energy, kJ",
    "transfers",
    "prefill busy",
    "decode busy",
    "local",
)
EXPLAINED = (
    "TTFET is the time to a conversation's first token that its user sees, without the pauses of tools before it."
    " Energy is modelled, idle and busy, per conversation. All arms of a cell serve the same conversations; the load is"
    " a share of what the named baseline keeps up with. The floor is the TTFET of the same conversations where"
    " nobody waits: prefill, own generation, no queue. Intervals are 95 %."
)


def markdown(report: ConserveReport) -> str:
    """The whole report."""
    parts = ["# Comparison: conserve"]
    if not report.is_claim:
        parts.append(NO_CLAIM)
    parts += ["## Claims", table(("cell", "claim", "required", "found", "holds"), map(_claim, report.claims))]
    parts += ["## Cells", EXPLAINED]
    for cell in report.cells:
        parts += _cell(cell)
    if report.bundles:
        parts += ["## Policies", table(("learned on", "bundle of `combined`"), report.bundles.items())]
    return "\n\n".join(parts) + "\n"


def claim_lines(claims: Sequence[Claim]) -> list[str]:
    """A line for each claim."""
    return [
        f"{'ok  ' if one.holds else 'MISS'} {one.cell}: {one.what}: {one.found}, required {one.required}"
        for one in claims
    ]


def _claim(one: Claim) -> tuple[str, ...]:
    return one.cell, one.what, one.required, one.found, "yes" if one.holds else "**no**"


def _cell(cell: CellFigures) -> list[str]:
    facts = (
        f"The baseline keeps up with {cell.saturation_rps:.1f} turns/s; {cell.conversations_rps:.2f}"
        f" conversations begin per second, {cell.conversations} of each of {cell.seeds} seeds. Live conversations take"
        f" {cell.live_kv_tokens / cell.kv_tokens:.2f} times the KV of the decode workers. Floor of TTFET:"
        f" P50 {cell.floor_p50_s:.2f} s, P95 {cell.floor_p95_s:.2f} s."
    )
    if cell.stand_ins:
        facts += f" Generated in place of {', '.join(cell.stand_ins)}."
    return [f"### {cell.label}", facts, table(HEADINGS, map(_row, cell.arms))]


def _row(arm: ArmFigures) -> tuple[str, ...]:
    found = arm.figures
    return (
        arm.name,
        _figure(found["ttfet_p50_s"], 1.0, 2),
        _figure(found["ttfet_p95_s"], 1.0, 2),
        _figure(found["last_tbt_p50_s"], 1e3, 1),
        _figure(found["last_tbt_p95_s"], 1e3, 1),
        f"{found['attained_ratio'].value:.1%}",
        _figure(found["energy_j"], 1e-3, 2),
        f"{found['transfers_mean'].value:.2f}",
        f"{arm.prefill_busy:.0%}",
        f"{arm.decode_busy:.0%}",
        f"{arm.local_ratio:.0%}",
    )


def _figure(found: Interval, factor: float, digits: int) -> str:
    own = found.shifted(factor)
    return f"{own.value:.{digits}f} [{own.low:.{digits}f}, {own.high:.{digits}f}]"
