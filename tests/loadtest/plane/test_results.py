"""Ratios and spreads, round by round."""

import pytest

from loadtest.plane.results import (
    DIRECT,
    Spread,
    added_p50_us,
    cpu_ratio,
    cpu_spread,
    failed,
    stream_bytes,
)
from loadtest.plane.rivals import VLLM_ROUTER
from loadtest.plane.scenarios import LATENCY, PLAIN
from tests.loadtest.plane.plane_lab import OURS, good_report, sample, stream_memory

ROUNDS = [
    sample(PLAIN.name, proxy, round=number, cpu_us=cpu_us)
    for proxy, costs in ((OURS, (100.0, 50.0, 80.0)), (VLLM_ROUTER, (150.0, 100.0, 400.0)))
    for number, cpu_us in enumerate(costs, start=1)
]


def test_a_spread_is_lowest_median_and_highest() -> None:
    assert Spread.of([3.0, 1.0, 2.0]) == Spread(1.0, 2.0, 3.0)
    assert Spread.of([]) is None


def test_cpu_time_is_spread_over_rounds() -> None:
    assert cpu_spread(good_report(samples=ROUNDS), "single", PLAIN.name, OURS) == Spread(50.0, 80.0, 100.0)


def test_ratios_are_taken_in_each_round() -> None:
    report = good_report(samples=ROUNDS)
    assert cpu_ratio(report, "single", PLAIN.name, OURS, VLLM_ROUTER) == Spread(1.5, 2.0, 5.0)
    assert cpu_ratio(report, "pd", PLAIN.name, OURS, VLLM_ROUTER) is None


def test_a_round_that_only_one_of_them_has_is_left_out() -> None:
    report = good_report(samples=[one for one in ROUNDS if (one.proxy, one.round) != (VLLM_ROUTER, 3)])
    assert cpu_ratio(report, "single", PLAIN.name, OURS, VLLM_ROUTER) == Spread(1.5, 1.75, 2.0)


def test_a_load_that_brought_nothing_has_no_cost() -> None:
    report = good_report(samples=[sample(PLAIN.name, OURS, cpu_us=None)])
    assert cpu_spread(report, "single", PLAIN.name, OURS) is None


def test_latency_is_what_is_added_to_going_direct() -> None:
    samples = [
        sample(LATENCY.name, name, round=number, p50_us=p50_us)
        for name, values in ((DIRECT, (200.0, 300.0)), (OURS, (500.0, 700.0)))
        for number, p50_us in enumerate(values)
    ]
    assert added_p50_us(good_report(samples=samples), "single", LATENCY.name, OURS) == Spread(300.0, 350.0, 400.0)


def test_memory_is_told_by_number_of_streams() -> None:
    report = good_report(memory=[stream_memory(OURS, 8.0, streams=1000), stream_memory(OURS, 10.0)])
    found = stream_bytes(report, "single", OURS, 1000)
    assert found is not None
    assert found.middle == pytest.approx(8.0 * 1024)
    assert stream_bytes(report, "single", VLLM_ROUTER, 1000) is None


def test_failures_are_those_of_one_proxy() -> None:
    report = good_report(samples=[sample("a", OURS, failed=2), sample("b", OURS, failed=3), sample("a", "x", failed=9)])
    assert failed(report, OURS) == 5
