"""The tables.

The rule of this module: Markdown, so that what is printed can stand in a document as it is; each figure is the median
over rounds with the lowest and the highest.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from loadtest.plane.claims import spread_words
from loadtest.plane.results import DIRECT, Report, Spread, added_p50_us, cpu_ratio, cpu_spread, stream_bytes
from loadtest.plane.rivals import RIVALS, VLLM_ROUTER
from loadtest.plane.scenarios import CPU_SCENARIOS, LATENCY, MEMORY_STREAMS

NOTHING = "-"


def tables(report: Report) -> str:
    """All tables that have a row."""
    fleets = dict.fromkeys([*(one.fleet for one in report.samples), *(one.fleet for one in report.memory)])
    blocks = [block for fleet in fleets for block in _of_fleet(report, fleet)]
    if report.hand_overs:
        blocks.append(_hand_over_table(report))
    return "\n\n".join(blocks)


def _of_fleet(report: Report, fleet: str) -> Iterator[str]:
    measured = {one.scenario for one in report.samples if one.fleet == fleet}
    for scenario in CPU_SCENARIOS:
        if scenario.name in measured:
            head = ("proxy", f"CPU us per {scenario.unit}", *(f"times less than {rival}" for rival in RIVALS))
            rows = [_cpu_row(report, fleet, scenario.name, proxy) for proxy in report.proxies]
            yield f"{fleet}, {scenario.title}\n\n" + markdown(head, rows)
    if LATENCY.name in measured:
        rows = [_latency_row(report, fleet, proxy) for proxy in (DIRECT, *report.proxies)]
        yield f"{fleet}, {LATENCY.title}\n\n" + markdown(("proxy", "P50, us", "added P50, us"), rows)
    if any(one.fleet == fleet for one in report.memory):
        head = ("proxy", *(f"KB for each of {streams:,} streams" for streams in MEMORY_STREAMS))
        rows = [_memory_row(report, fleet, proxy) for proxy in report.proxies]
        yield f"{fleet}, memory\n\n" + markdown(head, rows)


def _cpu_row(report: Report, fleet: str, scenario: str, proxy: str) -> list[str]:
    ratios = [cpu_ratio(report, fleet, scenario, proxy, rival) for rival in RIVALS]
    return [
        proxy,
        _cell(cpu_spread(report, fleet, scenario, proxy), lambda value: f"{value:.1f}"),
        *(_cell(ratio, lambda value: f"{value:.2f}") for ratio in ratios),
    ]


def _latency_row(report: Report, fleet: str, proxy: str) -> list[str]:
    own = [
        one.p50_us
        for one in report.samples
        if (one.fleet, one.scenario, one.proxy) == (fleet, LATENCY.name, proxy) and one.p50_us is not None
    ]
    added = None if proxy == DIRECT else added_p50_us(report, fleet, LATENCY.name, proxy)
    return [proxy, *(_cell(found, lambda value: f"{value:.0f}") for found in (Spread.of(own), added))]


def _memory_row(report: Report, fleet: str, proxy: str) -> list[str]:
    found = [stream_bytes(report, fleet, proxy, streams) for streams in MEMORY_STREAMS]
    return [proxy, *(_cell(one, lambda value: f"{value / 1024:.1f}") for one in found)]


def _hand_over_table(report: Report) -> str:
    rows = [
        [one.proxy, *(" / ".join(f"{value:.0f}" for value in np.percentile(values, (50, 90, 99))) for values in pair)]
        for one in report.hand_overs
        for pair in [(one.gaps_us, one.hops_us)]
    ]
    head = ("proxy", "gap P50 / P90 / P99, us", "a bare echo, us")
    return "from the prefill answer to the decode request\n\n" + markdown(head, rows)


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose columns after the first stand to the right."""
    lines = [head, ["---", *["--:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def summary(report: Report) -> list[str]:
    """What was left out, in a line each."""
    lines = [f"skipped: {what}" for what in report.skipped]
    if VLLM_ROUTER not in report.proxies:
        lines.append(f"without {VLLM_ROUTER} what is claimed beside it is not judged")
    return lines


def _cell(found: Spread | None, words: Callable[[float], str]) -> str:
    return NOTHING if found is None else spread_words(found, words)
