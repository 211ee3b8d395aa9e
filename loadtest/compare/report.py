"""A comparison as Markdown.

The rule of this module: layout only; every figure is one of `results`. An interval stands in brackets behind its value.
"""

from collections.abc import Iterable, Iterator, Sequence

from loadtest.compare.baselines import DYNAMO_TUNED
from loadtest.compare.bootstrap import SHARES, Interval
from loadtest.compare.bounds import PAPER, Loss
from loadtest.compare.results import ArmResult, CellResult, Course, DecisionCost, Finding
from loadtest.compare.session import Report
from loadtest.report.tables import DASH

NO_CLAIM = "This run is no claim: it has too little traffic, or too few seeds or cells."
SHOWN = ("attained_ratio", "ttft_p50_s", "ttft_p90_s", "tpot_p50_s", "tpot_p90_s")
UNITS = {"ttft_p50_s": (1.0, 2), "ttft_p90_s": (1.0, 2), "tpot_p50_s": (1e3, 1), "tpot_p90_s": (1e3, 1)}
"""Factor and digits of latencies."""
HEADINGS = {
    "attained_ratio": "SLO met",
    "ttft_p50_s": "TTFT P50, s",
    "ttft_p90_s": "TTFT P90, s",
    "tpot_p50_s": "TPOT P50, ms",
    "tpot_p90_s": "TPOT P90, ms",
    "local_ratio": "local",
}


def markdown(report: Report, pictures: Sequence[str] = ()) -> str:
    """The whole report; pictures are file names beside it."""
    parts = [f"# Comparison: {report.preset}"]
    if not report.is_claim:
        parts.append(NO_CLAIM)
    parts += [*_bounds(report), *_losses(report), *_paper(report)]
    for cell in report.cells:
        parts += _cell(cell)
    parts += [f"Skipped: {one.place}: {one.why}." for one in report.skipped]
    parts += [*_costs(report.costs), *_findings(report.findings)]
    parts += [f"![{name}]({name})" for name in pictures]
    return "\n\n".join(parts) + "\n"


def bound_lines(report: Report) -> list[str]:
    """A line for each bound, then what is no bound."""
    bounds = [
        f"{'ok  ' if one.holds else 'MISS'} {one.what}: better by {_points(one.measured)}, required {one.required:.0%}"
        for one in report.bounds
    ]
    return bounds + [f"     {one.what}: better by {_points(one.measured)}, no bound" for one in report.strongest]


def _bounds(report: Report) -> Iterator[str]:
    if report.strongest:
        yield "## Beside the strongest rule"
        yield "No bounds: the rule that attained most on the learning half may be another than Dynamo's."
        yield _table(("", "better by"), [(one.what, _points(one.measured)) for one in report.strongest])
    if report.bounds:
        yield "## Bounds"
        yield _table(
            ("bound", "required", "measured", "holds"),
            [
                (one.what, f"{one.required:.0%}", _points(one.measured), "yes" if one.holds else "**no**")
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
    yield _table(("cell", "policy", "metric", "worse by", "beyond the interval"), map(_loss_row, report.losses))


def _loss_row(loss: Loss) -> tuple[str, ...]:
    return (loss.cell, loss.arm, loss.metric, _points(loss.worse_by), "**yes**" if loss.is_beyond else "no")


def _paper(report: Report) -> Iterator[str]:
    if not report.paper:
        return
    ttft, tpot = PAPER["ttft_p90_s"], PAPER["tpot_p90_s"]
    yield "## The paper's static table"
    yield (
        f"The paper's claim, against Dynamo on a real cluster: P90 TTFT {ttft[0]:.1%} to {ttft[1]:.1%} lower, P90 TPOT"
        f" {tpot[0]:.1%} to {tpot[1]:.1%} lower. Here, against the tuned rule:"
    )
    yield _table(("", "lower by"), [(one.what, _points(one.measured)) for one in report.paper])


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
    yield _table(
        ("policy", *(HEADINGS[metric] for metric in SHOWN), "local", "learning half", "parameters"),
        map(_arm_row, cell.arms),
    )
    for other in dict.fromkeys((DYNAMO_TUNED, cell.strongest)):
        which = ", the strongest rule on the learning half" if other == cell.strongest else ""
        yield f"Beside {other}{which}: SLO met in points, latencies relative."
        yield _beside(cell, other)
    yield from _courses(cell.courses)


def _beside(cell: CellResult, other: str) -> str:
    return _table(
        ("policy", *(HEADINGS[metric].partition(",")[0] for metric in SHOWN)),
        [
            (arm.name, *(_points(arm.beside[other].get(metric)) for metric in SHOWN))
            for arm in cell.arms
            if other in arm.beside
        ],
    )


def _courses(courses: Sequence[Course]) -> Iterator[str]:
    scanned = [one for one in courses if one.scan_attained is not None]
    if scanned:
        yield _table(
            ("learned while serving", "requests", "met while scanning", "met after it", "missed for scanning"),
            [
                (
                    one.arm,
                    str(one.requests),
                    _share(one.scan_attained),
                    _share(one.run_attained),
                    DASH if one.missed_for_scanning is None else f"{one.missed_for_scanning:.0f}",
                )
                for one in scanned
            ],
        )


def _arm_row(arm: ArmResult) -> tuple[str, ...]:
    return (
        arm.name,
        *(_figure(metric, arm.figures[metric]) for metric in SHOWN),
        f"{arm.figures['local_ratio'].value:.0%}",
        f"{arm.learned_ratio:.1%}",
        arm.words,
    )


def _costs(costs: Sequence[DecisionCost]) -> Iterator[str]:
    if costs:
        yield "## Decision cost"
        yield _table(
            ("part", "P50, us", "P99, us", "calls"),
            [(one.part, f"{one.p50_us:.1f}", f"{one.p99_us:.1f}", str(one.calls)) for one in costs],
        )


def _findings(findings: Sequence[Finding]) -> Iterator[str]:
    for group in dict.fromkeys(one.group for one in findings):
        yield f"## {group.capitalize()}"
        yield _table(
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
                    *(
                        _figure(metric, one.figures[metric])
                        for metric in ("attained_ratio", "ttft_p90_s", "tpot_p90_s")
                    ),
                    *(
                        _points(one.beside_rule.get(metric))
                        for metric in ("attained_ratio", "ttft_p90_s", "tpot_p90_s")
                    ),
                )
                for one in findings
                if one.group == group
            ],
        )


def _figure(metric: str, found: Interval) -> str:
    if metric in SHARES:
        return f"{found.value:.1%} [{found.low:.1%}, {found.high:.1%}]"
    factor, digits = UNITS[metric]
    own = found.shifted(factor)
    return f"{own.value:.{digits}f} [{own.low:.{digits}f}, {own.high:.{digits}f}]"


def _points(found: Interval | None) -> str:
    return DASH if found is None else f"{found.value:+.1%} [{found.low:+.1%}, {found.high:+.1%}]"


def _share(value: float | None) -> str:
    return DASH if value is None else f"{value:.1%}"


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
