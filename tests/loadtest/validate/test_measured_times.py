import pytest

from loadtest.validate.measured_times import METRICS, measured_times
from tests.loadtest.validate.measured_lab import small_run


def test_the_first_request_maps_the_two_clocks() -> None:
    times = measured_times(small_run())
    assert times.arrival_s.tolist() == [0.0, 0.25]
    assert times.first_token_s.tolist() == [0.5, 1.0]


def test_queueing_begins_at_arrival_and_not_when_the_scheduler_has_the_request() -> None:
    assert measured_times(small_run()).queueing_s.tolist() == [0.0, 0.5]


def test_ttft_runs_from_arrival() -> None:
    assert measured_times(small_run()).ttft_s.tolist() == [0.5, 0.75]


def test_a_single_output_token_has_no_time_per_token() -> None:
    assert measured_times(small_run()).tpot_s.tolist() == [pytest.approx(0.5)]


def test_three_metrics_are_compared() -> None:
    assert list(METRICS) == ["queueing", "TTFT", "TPOT"]
