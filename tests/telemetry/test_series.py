"""The accumulators: exact counts and sums, label sets, pruning."""

from math import fsum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.settings import DefaultSloSettings
from gateway.telemetry.buckets import DECISION_BUCKETS_S, DURATION_BUCKETS_S, TPOT_BUCKETS_S, TTFT_BUCKETS_S
from gateway.telemetry.series import CounterSeries, Family, GaugeSeries, HistogramSeries

BOUNDS = (0.1, 0.5, 1.0)


def lines(series: HistogramSeries) -> dict[str, float]:
    return {sample.labels.get("le", sample.name): sample.value for sample in series.samples("x", {})}


def test_value_on_a_boundary_belongs_to_the_bucket_that_it_closes() -> None:
    series = HistogramSeries(BOUNDS)
    for seconds in (0.1, 0.3, 0.5, 0.75, 2.0):
        series.observe(seconds)
    assert lines(series) == {"0.1": 1, "0.5": 3, "1.0": 4, "+Inf": 5, "x_count": 5, "x_sum": 3.65}


@given(st.lists(st.floats(0, 1e4)))
def test_buckets_are_cumulative_counts_of_what_was_observed(values: list[float]) -> None:
    series = HistogramSeries(TTFT_BUCKETS_S)
    for seconds in values:
        series.observe(seconds)
    shown = lines(series)
    for bound in TTFT_BUCKETS_S:
        assert shown[repr(bound)] == sum(seconds <= bound for seconds in values)
    assert shown["+Inf"] == shown["x_count"] == len(values)
    assert shown["x_sum"] == pytest.approx(fsum(values))


def test_gauge_goes_up_and_down() -> None:
    gauge = GaugeSeries()
    gauge.inc()
    gauge.inc(4)
    gauge.dec(2)
    assert [sample.value for sample in gauge.samples("x", {})] == [3]


def test_family_gives_one_series_per_label_set() -> None:
    family = Family("x_total", ("worker", "kind"), CounterSeries)
    family.labels("a", "timeout").inc()
    family.labels("a", "timeout").inc(2)
    family.labels("b", "timeout").inc()
    assert [(sample.name, sample.labels, sample.value) for sample in family.samples()] == [
        ("x_total", {"worker": "a", "kind": "timeout"}, 3),
        ("x_total", {"worker": "b", "kind": "timeout"}, 1),
    ]


def test_family_refuses_a_wrong_number_of_labels() -> None:
    with pytest.raises(ValueError, match="has labels"):
        Family("x_total", ("worker", "kind"), CounterSeries).labels("a")


def test_family_keeps_only_the_named_values_of_a_label() -> None:
    family = Family("x_total", ("worker", "kind"), CounterSeries)
    for worker in ("a", "b", "c"):
        family.labels(worker, "timeout").inc()
    family.keep("worker", {"a", "c"})
    assert [sample.labels["worker"] for sample in family.samples()] == ["a", "c"]


@pytest.mark.parametrize("buckets", [TTFT_BUCKETS_S, TPOT_BUCKETS_S, DURATION_BUCKETS_S, DECISION_BUCKETS_S])
def test_boundaries_rise(buckets: tuple[float, ...]) -> None:
    assert list(buckets) == sorted(set(buckets))


def test_the_default_bounds_are_boundaries() -> None:
    default = DefaultSloSettings()
    assert default.ttft_s in TTFT_BUCKETS_S
    assert default.tpot_s in TPOT_BUCKETS_S
