"""A comparison as Markdown.

The rule of this module: order and words only; every figure is one of `results`.
"""

from collections.abc import Iterator, Sequence

from loadtest.compare.baselines import DYNAMO_TUNED
from loadtest.compare.bounds import PAPER, Loss
from loadtest.compare.layout import HEADINGS, NO_CLAIM, figure, points, table
from loadtest.compare.live_report import course_parts, live_parts
from loadtest.compare.results import ArmResult, CellResult, DecisionCost, Finding
from loadtest.compare.session import Report

SHOWN = ("attained_ratio", "ttft_p50_s", "ttft_p90_s", "tpot_p50_s", "tpot_p90_s")


def markdown(report: Report, pictures: Sequence[str] = ()) -> str:
    """The whole report; pictures are file names beside it."""
    parts = [f"# Comparison: {report.preset}"]
    if not report.is_claim:
        parts.append(NO_CLAIM)
    parts += [*_bounds(report), *_losses(report), *_paper(report)]
    if report.live is not None:
        parts += live_parts(report.live)
    for cell in report.cells:
        parts += _cell(cell)
    parts += [f"Skipped: {one.place}: {one.why}." for one in report.skipped]
    parts += [*_costs(report.costs), *_findings(report.findings)]
    parts += [f"![{name}]({name})" for name in pictures]
    return "\n\n".join(parts) + "\n"


def bound_lines(report: Report) -> list[str]:
    """A line for each bound, then what is no bound."""
    bounds = [
        f"{'ok  ' if one.holds else 'MISS'} {one.what}: better by {points(one.measured)}, required {one.required:.0%}"
        for one in report.bounds
    ]
    return bounds + [f"     {one.what}: better by {points(one.measured)}, no bound" for one in report.strongest]


def _bounds(report: Report) -> Iterator[str]:
    if report.strongest:
        yield "## Beside the strongest rule"
        yield "No bounds: the rule that attained most on the learning half may be another than Dynamo's."
        yield table(("", "better by"), [(one.what, points(one.measured)) for one in report.strongest])
    if report.bounds:
        yield "## Bounds"
        yield table(
            ("bound", "required", "measured", "holds"),
            [
                (one.what, f"{one.required:.0%}", points(one.measured), "yes" if one.holds else "**no**")
                for one in report.bounds
            ],
        )


def _losses(report: Report) -> Iterator[str]:
    if not report.cells:
        return
    yield "## Losing cells"
    if not report.losses:
        yield "The best learned policy is nowhere worse than the tuned rule by more than 1 %."
        return
    yield "Where the best learned policy is worse than the tuned rule by over 1 %, within the interval or beyond it."
    yield table(("cell", "policy", "metric", "worse by", "beyond the interval"), map(_loss_row, report.losses))


def _loss_row(loss: Loss) -> tuple[str, ...]:
    return (loss.cell, loss.arm, loss.metric, points(loss.worse_by), "**yes**" if loss.is_beyond else "no")


def _paper(report: Report) -> Iterator[str]:
    if not report.paper:
        return
    ttft, tpot = PAPER["ttft_p90_s"], PAPER["tpot_p90_s"]
    yield "## The paper's static table"
    yield (
        f"The paper's claim, against Dynamo on a real cluster: P90 TTFT {ttft[0]:.1%} to {ttft[1]:.1%} lower, P90 TPOT"
        f" {tpot[0]:.1%} to {tpot[1]:.1%} lower. Here, against the tuned rule:"
    )
    yield table(("", "lower by"), [(one.what, points(one.measured)) for one in report.paper])


def _cell(cell: CellResult) -> Iterator[str]:
    yield f"## {cell.label}"
    yield (
        f"{cell.requests_per_s:.3g} requests/s (100 % is where the tuned rule attains 70 % on the learning half; it had"
        f" {cell.saturation_ratio:.1%} there), TTFT at most {cell.slo_ttft_s:g} s and TPOT at most"
        f" {1e3 * (cell.slo_tpot_s or 0):g} ms. {cell.requests} requests learned from, {cell.requests} others judged"
        f" on, {cell.seeds} seeds. Dynamo's rule was tuned among {cell.tried}. Best on the learning half: {cell.best}."
    )
    if cell.stand_ins:
        yield f"Generators stood in for {', '.join(cell.stand_ins)}."
    yield table(
        ("policy", *(HEADINGS[metric] for metric in SHOWN), "local", "learning half", "parameters"),
        map(_arm_row, cell.arms),
    )
    for other in dict.fromkeys((DYNAMO_TUNED, cell.strongest)):
        which = ", the strongest rule on the learning half" if other == cell.strongest else ""
        yield f"Beside {other}{which}: SLO met in points, latencies relative."
        yield _beside(cell, other)
    yield from course_parts(cell.courses)


def _beside(cell: CellResult, other: str) -> str:
    return table(
        ("policy", *(HEADINGS[metric].partition(",")[0] for metric in SHOWN)),
        [
            (arm.name, *(points(arm.beside[other].get(metric)) for metric in SHOWN))
            for arm in cell.arms
            if other in arm.beside
        ],
    )


def _arm_row(arm: ArmResult) -> tuple[str, ...]:
    return (
        arm.name,
        *(figure(metric, arm.figures[metric]) for metric in SHOWN),
        f"{arm.figures['local_ratio'].value:.0%}",
        f"{arm.learned_ratio:.1%}",
        arm.words,
    )


def _costs(costs: Sequence[DecisionCost]) -> Iterator[str]:
    if costs:
        yield "## Decision cost"
        yield table(
            ("part", "P50, us", "P99, us", "calls"),
            [(one.part, f"{one.p50_us:.1f}", f"{one.p99_us:.1f}", str(one.calls)) for one in costs],
        )


def _findings(findings: Sequence[Finding]) -> Iterator[str]:
    for group in dict.fromkeys(one.group for one in findings):
        yield f"## {group.capitalize()}"
        yield table(
            (
                "condition",
                "policy",
                "SLO met",
                "TTFT P90, s",
                "TPOT P90, ms",
                "SLO met, points",
                "TTFT P90",
                "TPOT P90",
            ),
            [
                (
                    one.condition,
                    one.arm,
                    *(figure(metric, one.figures[metric]) for metric in ("attained_ratio", "ttft_p90_s", "tpot_p90_s")),
                    *(points(one.beside_rule.get(metric)) for metric in ("attained_ratio", "ttft_p90_s", "tpot_p90_s")),
                )
                for one in findings
                if one.group == group
            ],
        )
