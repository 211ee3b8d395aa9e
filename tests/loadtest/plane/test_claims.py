"""Each claim holds at its bound and misses beyond it; what cannot be compared is no claim."""

from typing import Any

import pytest

from loadtest.plane.claims import claims
from loadtest.plane.results import HandOver, Report
from loadtest.plane.rivals import VLLM_ROUTER
from loadtest.plane.scenarios import BURST, LATENCY, PACED_40, PACED_1000, PLAIN
from tests.loadtest.plane.plane_lab import OURS, good_report, sample, stream_memory

HAND_OVER = "remote path: from the prefill answer to the decode request, P50, us"


def missed(report: Report) -> list[str]:
    return [check.what for check in claims(report) if not check.holds]


def with_more(*samples: Any) -> Report:
    """Further rounds."""
    report = good_report()
    return good_report(samples=[*report.samples, *samples])


def rounds(scenario: str, **changes: Any) -> list[Any]:
    """Two more of ours, so that they are the median, and as many of the other's as they were."""
    beside = {PLAIN.name: 150.0, BURST.name: 10.0, PACED_1000.name: 40.0}
    return [
        one
        for number in (2, 3)
        for one in (
            sample(scenario, OURS, round=number, **changes),
            sample(scenario, VLLM_ROUTER, round=number, cpu_us=beside[scenario]),
        )
    ]


def test_all_hold_at_their_bounds() -> None:
    found = claims(good_report())
    assert len(found) == 7
    assert missed(good_report()) == []


@pytest.mark.parametrize(("scenario", "cpu_us"), [(PLAIN, 101.0), (BURST, 5.1), (PACED_1000, 40.1)])
def test_more_cpu_time_in_most_rounds_misses(scenario: Any, cpu_us: float) -> None:
    report = with_more(*rounds(scenario.name, cpu_us=cpu_us))
    assert missed(report) == [f"{scenario.title}: times less CPU time than {VLLM_ROUTER}"]


def test_forty_paced_streams_are_shown_and_not_judged() -> None:
    slow = [sample(PACED_40.name, OURS, cpu_us=900.0), sample(PACED_40.name, VLLM_ROUTER, cpu_us=1.0)]
    assert missed(with_more(*slow)) == []


def test_more_latency_than_the_other_adds_misses() -> None:
    samples = [one for one in good_report().samples if (one.scenario, one.proxy) != (LATENCY.name, OURS)]
    report = good_report(samples=[*samples, sample(LATENCY.name, OURS, p50_us=801.0)])
    assert missed(report) == [f"{LATENCY.title}: added P50, us"]


def test_larger_streams_miss() -> None:
    assert missed(good_report(memory=[stream_memory(OURS, 16.1)])) == ["memory of each of 2,000 streams, KB"]


def test_a_slower_hand_over_misses() -> None:
    slow = HandOver(proxy=OURS, gaps_us=[100.0, 151.0, 900.0], hops_us=[40.0])
    assert missed(good_report(hand_overs=[slow])) == [HAND_OVER]


def test_anothers_hand_over_is_not_judged() -> None:
    slow = HandOver(proxy=VLLM_ROUTER, gaps_us=[9000.0], hops_us=[40.0])
    assert missed(good_report(hand_overs=[slow])) == []


def test_one_failed_request_misses() -> None:
    assert missed(with_more(sample(PACED_40.name, OURS, failed=1))) == ["requests that failed"]


def test_without_the_other_only_what_stands_alone_is_judged() -> None:
    report = good_report(samples=[one for one in good_report().samples if one.proxy != VLLM_ROUTER])
    assert [check.what for check in claims(report)] == [
        "requests that failed",
        "memory of each of 2,000 streams, KB",
        HAND_OVER,
    ]


def test_the_pair_has_no_bounds_on_cpu_time() -> None:
    slow = [
        sample(PLAIN.name, OURS, fleet="pd", cpu_us=900.0),
        sample(PLAIN.name, VLLM_ROUTER, fleet="pd", cpu_us=1.0),
    ]
    assert missed(with_more(*slow)) == []


def test_a_line_says_what_was_measured_and_required() -> None:
    lines = [str(check) for check in claims(good_report())]
    assert (
        "ok   plain requests, 32 clients: times less CPU time than vllm-router: 1.50 [1.50, 1.50] (at least 1.5)"
        in lines
    )
    assert f"ok   {HAND_OVER}: 150, P90 750, P99 885; a bare echo 40 (at most 150)" in lines
