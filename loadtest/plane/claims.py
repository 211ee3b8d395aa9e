"""What must come out, and whether it does.

The rule of this module: pure. A claim is judged by its median over rounds; the lowest and highest stand beside it.
What was not measured, or has nothing to be compared with, is no claim.
"""

from collections.abc import Callable, Iterator

import numpy as np

from loadtest.plane.results import Report, Spread, added_p50_us, cpu_ratio, failed, stream_bytes
from loadtest.plane.rivals import VLLM_ROUTER
from loadtest.plane.scenarios import CPU_SCENARIOS, LATENCY
from loadtest.replicas.checks import Check

SINGLE, PAIR = "single", "pd"
JUDGED_STREAMS = 2000
MOST_STREAM_BYTES = 16 * 1024
MOST_HAND_OVER_US = 150.0


def claims(report: Report) -> list[Check]:
    """All that can be judged, of the first of this gateway's data planes."""
    return [*_all_answered(report), *_cpu(report), *_latency(report), *_memory(report), *_hand_overs(report)]


def _all_answered(report: Report) -> Iterator[Check]:
    if report.samples:
        lost = {name: failed(report, name) for name in report.ours}
        yield Check(
            what="requests that failed",
            measured=", ".join(f"{count} through {name}" for name, count in lost.items()),
            required="0",
            holds=not any(lost.values()),
        )


def _cpu(report: Report) -> Iterator[Check]:
    for scenario in CPU_SCENARIOS:
        found = cpu_ratio(report, SINGLE, scenario.name, report.ours[0], VLLM_ROUTER)
        if found is not None and scenario.least_ratio is not None:
            yield Check(
                what=f"{scenario.title}: times less CPU time than {VLLM_ROUTER}",
                measured=spread_words(found, lambda value: f"{value:.2f}"),
                required=f"at least {scenario.least_ratio:.1f}",
                holds=found.middle >= scenario.least_ratio,
            )


def _latency(report: Report) -> Iterator[Check]:
    own = added_p50_us(report, SINGLE, LATENCY.name, report.ours[0])
    other = added_p50_us(report, SINGLE, LATENCY.name, VLLM_ROUTER)
    if own is not None and other is not None:
        yield Check(
            what=f"{LATENCY.title}: added P50, us",
            measured=spread_words(own, lambda value: f"{value:.0f}"),
            required=f"at most {VLLM_ROUTER}'s {other.middle:.0f}",
            holds=own.middle <= other.middle,
        )


def _memory(report: Report) -> Iterator[Check]:
    found = stream_bytes(report, SINGLE, report.ours[0], JUDGED_STREAMS)
    if found is not None:
        yield Check(
            what=f"memory of each of {JUDGED_STREAMS:,} streams, KB",
            measured=spread_words(found, lambda value: f"{value / 1024:.1f}"),
            required=f"at most {MOST_STREAM_BYTES / 1024:.0f}",
            holds=found.middle <= MOST_STREAM_BYTES,
        )


def _hand_overs(report: Report) -> Iterator[Check]:
    for one in report.hand_overs:
        if one.proxy == report.ours[0]:
            p50, p90, p99 = (float(value) for value in np.percentile(one.gaps_us, (50, 90, 99)))
            hop = float(np.median(one.hops_us))
            yield Check(
                what="remote path: from the prefill answer to the decode request, P50, us",
                measured=f"{p50:.0f}, P90 {p90:.0f}, P99 {p99:.0f}; a bare echo {hop:.0f}",
                required=f"at most {MOST_HAND_OVER_US:.0f}",
                holds=p50 <= MOST_HAND_OVER_US,
            )


def spread_words(found: Spread, words: Callable[[float], str]) -> str:
    """The median, and what it lies between."""
    return f"{words(found.middle)} [{words(found.low)}, {words(found.high)}]"
