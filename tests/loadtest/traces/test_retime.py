from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.traces.retime import Phase, at_rate, begun_at, parse_phases, phased, sped_up, start_rate_rps
from loadtest.traces.sessions import Session, Turn
from loadtest.traces.statistics import describe
from loadtest.traces.synthetic_rows import AZURE_CODE, row_trace
from loadtest.traces.types import TraceRequest
from loadtest.traces.workload import Workload


def at(*times_s: float) -> Workload:
    return Workload(
        requests=tuple(
            TraceRequest(index=n, arrival_s=at_s, input_tokens=1, output_tokens=1) for n, at_s in enumerate(times_s)
        )
    )


def times_s(workload: Workload) -> list[float]:
    return [request.arrival_s for request in workload.requests]


def test_speeding_up_keeps_the_burstiness() -> None:
    bursty = Workload(requests=tuple(row_trace(AZURE_CODE, 5_000, seed=1)))
    quick = at_rate(bursty, 20.0)
    assert describe(quick.requests).rate_rps == pytest.approx(20.0)
    assert describe(quick.requests).gap_cv == pytest.approx(describe(bursty.requests).gap_cv)


def test_only_the_beginnings_of_sessions_move() -> None:
    turns = (Turn(input_tokens=1, output_tokens=1, think_s=9.0), Turn(input_tokens=1, output_tokens=1))
    (session,) = sped_up(Workload(sessions=(Session(id="s", start_s=8.0, turns=turns),)), 4.0).sessions
    assert session.start_s == 2.0
    assert session.turns == turns


def begun(rate_rps: float, count: int = 2_000, **more: object) -> list[float]:
    turns = (Turn(input_tokens=1, output_tokens=1),)
    given = tuple(Session(id=f"{n}", start_s=5.0, turns=turns) for n in range(count))
    found = begun_at(Workload(requests=at(1.0).requests, sessions=given), rate_rps, **more)  # type: ignore[arg-type]
    assert found.requests == at(1.0).requests
    assert [one.id for one in found.sessions] == [one.id for one in given]
    return [one.start_s for one in found.sessions]


def test_sessions_begin_anew_as_a_poisson_process() -> None:
    gaps_s = np.diff(begun(4.0, seed=1))
    assert np.mean(gaps_s) == pytest.approx(0.25, rel=0.05)
    assert np.std(gaps_s) / np.mean(gaps_s) == pytest.approx(1.0, rel=0.05)
    assert begun(4.0, seed=1) == begun(4.0, seed=1) != begun(4.0, seed=2)


def test_twice_the_rate_is_the_same_draw_at_half_the_times() -> None:
    assert begun(8.0, seed=3) == pytest.approx([at_s / 2.0 for at_s in begun(4.0, seed=3)])


def test_sessions_may_begin_evenly() -> None:
    assert begun(4.0, count=3, is_even=True) == [0.25, 0.5, 0.75]


def test_a_rate_of_sessions_is_above_zero() -> None:
    with pytest.raises(ValueError, match="above 0"):
        begun_at(at(1.0), 0.0)


def test_a_trace_that_arrives_at_once_has_no_rate() -> None:
    with pytest.raises(ValueError, match="no rate"):
        start_rate_rps(at(0.0, 0.0))


def test_phases_run_one_after_another_and_the_last_goes_on() -> None:
    phases = [Phase(duration_s=10, scale=1), Phase(duration_s=5, scale=2), Phase(duration_s=1, scale=0.5)]
    assert times_s(phased(at(0, 10, 12, 20, 20.5, 21.5), phases)) == pytest.approx([0, 10, 11, 15, 16, 18])


def test_a_ramp_raises_the_rate_evenly() -> None:
    steady = at(*np.arange(0.0, 400.0, 0.01).tolist())
    found = np.array(
        times_s(phased(steady, [Phase(duration_s=100, scale=1, end_scale=3), Phase(duration_s=1, scale=3)]))
    )
    counts, _ = np.histogram(found, bins=np.arange(0, 101, 10))
    assert counts == pytest.approx([1_100 + 200 * n for n in range(10)], abs=2)


def test_a_phase_of_scale_zero_is_a_pause() -> None:
    phases = [Phase(duration_s=2, scale=1), Phase(duration_s=50, scale=0), Phase(duration_s=1, scale=1)]
    assert times_s(phased(at(1, 2.5, 4), phases)) == pytest.approx([1, 52.5, 54])


@given(
    scales=st.lists(st.tuples(st.floats(0.1, 50), st.floats(0.0, 8), st.floats(0.01, 8)), min_size=1, max_size=5),
    written=st.lists(st.floats(0, 1_000), min_size=2, max_size=20).map(sorted),
)
def test_phases_keep_the_order(scales: list[tuple[float, float, float]], written: list[float]) -> None:
    phases = [Phase(duration_s=duration, scale=scale, end_scale=end) for duration, scale, end in scales]
    found = times_s(phased(at(*written), phases))
    assert all(later >= earlier - 1e-9 for earlier, later in pairwise(found))


def test_phases_are_written_with_colons_and_a_dash() -> None:
    assert parse_phases("600:1,300:1-4") == [
        Phase(duration_s=600, scale=1), Phase(duration_s=300, scale=1, end_scale=4)
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["", "600", "600:", "0:1", "600:x", "600:1-x", "600:-1"])
def test_what_is_no_phase_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="phases must be"):
        parse_phases(text)


def test_phases_must_not_end_in_a_pause() -> None:
    with pytest.raises(ValueError, match="last phase"):
        phased(at(1.0), [Phase(duration_s=1, scale=0)])
