import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.types import SloTarget
from loadtest.client.records import Record
from loadtest.report.summary import NO_PATH, percentiles, summarise

SLO = SloTarget(name="run", ttft_s=2.0, tpot_s=0.04)


def record(index: int = 0, **change: object) -> Record:
    """A request that met the SLO: scheduled at its index, two seconds long."""
    good = Record(
        request_id=str(index), index=index, scheduled_s=float(index), sent_s=float(index), lag_s=0.0, status=200,
        ok=True, input_tokens=100, output_tokens=10, cached_tokens=40, ttft_s=1.0, tpot_s=0.02, itl_max_s=0.1,
        itl_p99_s=0.05, itl_count=9, e2e_s=2.0, path="local", worker="d0", policy="p", decision_id="1",
    )  # fmt: skip
    return msgspec.structs.replace(good, **change)


def failure(index: int = 0, error: str = "http_503: busy", **change: object) -> Record:
    return record(
        index, ok=False, error=error, ttft_s=None, tpot_s=None, itl_p99_s=None, input_tokens=None,
        output_tokens=None, cached_tokens=None, path=None, worker=None, **change,
    )  # fmt: skip


def test_counts_tell_completed_failed_and_cancelled_apart() -> None:
    run = [record(0), record(1), failure(2), failure(3, "timeout"), failure(4, "cancelled")]
    summary = summarise(run, SLO, asked=9)
    assert (summary.asked, summary.completed, summary.failed, summary.cancelled) == (9, 2, 2, 1)
    assert summary.errors == {"http_503": 1, "timeout": 1}


def test_a_failure_misses_the_slo_and_a_cancelled_request_is_not_judged() -> None:
    run = [record(0), record(1, ttft_s=3.0), failure(2), failure(3, "cancelled", e2e_s=1.0)]
    assert summarise(run, SLO).attained_ratio == 1 / 3


def test_latencies_are_those_of_requests_that_ended_well() -> None:
    summary = summarise([record(0), record(1, ok=False, error="truncated", ttft_s=50.0)], SLO)
    assert summary.ttft_s is not None
    assert (summary.ttft_s.count, summary.ttft_s.p99) == (1, 1.0)


def test_percentiles_interpolate_between_the_closest_ranks() -> None:
    found = percentiles([4.0, 1.0, None, 3.0, 2.0])
    assert found is not None
    assert (found.count, found.mean, found.p50) == (4, 2.5, 2.5)
    assert found.p90 == pytest.approx(3.7)
    assert found.p99 == pytest.approx(3.97)


@given(values=st.lists(st.floats(0, 1e6), min_size=1))
def test_percentiles_ascend_within_the_values(values: list[float]) -> None:
    found = percentiles(values)
    assert found is not None
    assert min(values) <= found.p50 <= found.p90 <= found.p99 <= max(values)


def test_rates_are_over_the_time_from_the_first_arrival_to_the_last_end() -> None:
    summary = summarise([record(3), record(5, ttft_s=2.5), record(4, e2e_s=7.0)], SLO)
    assert summary.duration_s == 8.0
    assert summary.requests_per_s == 3 / 8
    assert summary.output_tokens_per_s == 30 / 8
    assert summary.goodput_per_s == 2 / 8


def test_the_cached_share_leaves_out_who_does_not_report_it() -> None:
    summary = summarise([record(0), record(1, cached_tokens=None, input_tokens=10_000)], SLO)
    assert summary.cached_ratio == 0.4
    assert summary.input_tokens == 10_100
    assert summarise([record(0, cached_tokens=None)], SLO).cached_ratio is None


def test_each_path_is_summed_up_by_itself() -> None:
    run = [record(0), record(1, ttft_s=3.0), record(2, path="remote", ttft_s=0.5), failure(3)]
    paths = summarise(run, SLO).paths
    assert {name: (path.requests, path.attained_ratio) for name, path in paths.items()} == {
        "local": (2, 0.5),
        "remote": (1, 1.0),
        NO_PATH: (1, 0.0),
    }
    remote = paths["remote"].ttft_s
    assert remote is not None
    assert remote.p50 == 0.5


def test_requests_are_counted_by_worker() -> None:
    run = [record(0), record(1, worker="d1"), record(2), failure(3)]
    assert summarise(run, SLO).workers == {"d0": 2, "d1": 1}


def test_nothing_measured_is_unknown_not_zero() -> None:
    summary = summarise([], SLO)
    assert (summary.attained_ratio, summary.ttft_s, summary.cached_ratio) == (None, None, None)
    assert (summary.asked, summary.duration_s, summary.goodput_per_s, summary.paths) == (0, 0.0, 0.0, {})


@given(met=st.integers(0, 30), missed=st.integers(0, 30), lost=st.integers(0, 30))
def test_attainment_is_the_mean_over_paths_weighted_by_requests(met: int, missed: int, lost: int) -> None:
    kinds = [record(0)] * met + [record(0, path="remote", tpot_s=1.0)] * missed + [failure()] * lost
    summary = summarise(kinds, SLO)
    weighted = sum(path.requests * (path.attained_ratio or 0.0) for path in summary.paths.values())
    assert (summary.attained_ratio or 0.0) * len(kinds) == pytest.approx(weighted)
    assert weighted == pytest.approx(met)
