"""The parts of a report about learning while serving, on a running gateway above all.

The rule of this module: layout only; every figure is one of `results`.
"""

from collections.abc import Iterator, Sequence

from loadtest.compare.layout import HEADINGS, figure, plain, points, share, table
from loadtest.compare.results import Course, LiveArm, LiveLap, LiveResult
from loadtest.report.tables import DASH

SHOWN = ("attained_ratio", "ttft_p90_s", "tpot_p90_s")
SHOWN_HEADINGS = tuple(HEADINGS[metric] for metric in SHOWN)


def live_parts(result: LiveResult) -> Iterator[str]:
    """The section's paragraphs and tables."""
    yield f"## {result.place}, live"
    yield (
        f"Emulated workers at {result.speed:g} times the clock's pace behind a running gateway; times are the engine's."
        f" {result.requests_per_s:.3g} requests/s: a load of 100 %. Dynamo's rule was tuned among"
        f" {result.tried_rules} in the simulator. {result.judge_requests} requests that nobody learned from, served in"
        f" {result.rounds} rounds by each in turn. The whole took {result.took_s / 60:.0f} minutes."
    )
    if result.stand_ins:
        yield f"Generators stood in for {', '.join(result.stand_ins)}."
    yield table(("policy", *SHOWN_HEADINGS, "by round", "parameters"), map(_arm, result.arms))
    yield "Beside the tuned rule: SLO met in points, latencies relative."
    yield table(
        ("policy", *SHOWN_HEADINGS),
        [(arm.name, *(points(arm.beside_rule[metric]) for metric in SHOWN)) for arm in result.arms if arm.beside_rule],
    )
    yield "The same requests in the simulator:"
    yield table(("policy", *SHOWN_HEADINGS), map(_simulated, result.arms))
    yield from _exploration(result)
    late_ms = (1e3 * max(lap.sent_late_s for lap in result.laps), 1e3 * max(lap.loop_late_s for lap in result.laps))
    yield (
        f"How far the machine kept up: requests were sent at most {late_ms[0]:.0f} ms late at a lap's 99th percentile,"
        f" and the gateway's loop was at most {late_ms[1]:.0f} ms late (real milliseconds; {result.speed:g} times as"
        " many of the engine's)."
    )
    yield table(("lap", "served by", *SHOWN_HEADINGS, "parameters"), _laps(result.laps))


def course_parts(courses: Sequence[Course]) -> Iterator[str]:
    """What learning while serving cost."""
    scanned = [one for one in courses if one.scan_attained is not None]
    if scanned:
        yield table(
            ("learned while serving", "requests", "met while scanning", "met after it", "missed for scanning"),
            [
                (
                    one.arm,
                    str(one.requests),
                    share(one.scan_attained),
                    share(one.run_attained),
                    DASH if one.missed_for_scanning is None else f"{one.missed_for_scanning:.0f}",
                )
                for one in scanned
            ],
        )


def _exploration(result: LiveResult) -> Iterator[str]:
    found = result.exploration
    yield "### What exploring cost"
    yield (
        f"{found.requests} requests were served by weights that were tried, in laps of the same"
        f" {result.learn_requests}: {found.attained:.1%} met the SLO, {found.missed} missed it."
        " Where the last column is below 0, fewer missed it than would have."
    )
    yield table(
        ("had they been served by", "SLO met there", "missed for exploring"),
        [(name, share(met), f"{found.missed_beyond[name]:+.0f}") for name, met in found.others.items()],
    )
    yield from course_parts(result.courses)


def _arm(arm: LiveArm) -> tuple[str, ...]:
    rounds = ", ".join(f"{each:.1%}" for each in arm.by_round)
    return (arm.name, *(figure(metric, arm.figures[metric]) for metric in SHOWN), rounds, arm.words)


def _simulated(arm: LiveArm) -> tuple[str, ...]:
    return (arm.name, *(plain(metric, arm.simulated[metric]) for metric in SHOWN))


def _laps(laps: list[LiveLap]) -> Iterator[tuple[str, ...]]:
    for number, lap in enumerate(laps, start=1):
        yield (
            f"{number}, {lap.phase}",
            lap.arm,
            share(lap.met / lap.requests),
            plain("ttft_p90_s", lap.ttft_p90_s),
            plain("tpot_p90_s", lap.tpot_p90_s),
            lap.words,
        )
