from itertools import islice

import pytest

from loadtest.learning.traffic import laps
from loadtest.traces.types import TraceError, TraceRequest


def request(index: int, at_s: float, hashes: tuple[int, ...] = (), session: str | None = None) -> TraceRequest:
    return TraceRequest(
        index=index, arrival_s=at_s, input_tokens=100, output_tokens=5, hash_ids=hashes, session=session
    )


TRACE = (request(0, 10.0, (0, 1), "a"), request(1, 12.0, (0, 7)), request(2, 16.0))


def test_time_and_indices_go_on_from_lap_to_lap() -> None:
    two = list(islice(laps(TRACE), 7))
    assert [each.index for each in two] == list(range(7))
    assert [each.arrival_s for each in two] == [0.0, 2.0, 6.0, 9.0, 11.0, 15.0, 18.0]  # the mean gap is 3 s


def test_a_lap_shares_prefixes_with_itself_alone() -> None:
    found = list(islice(laps(TRACE), 9))
    by_lap = [[set(each.hash_ids) for each in found[start : start + 3]] for start in (0, 3, 6)]
    assert all(first[0] & first[1] for first in by_lap)
    everything = [set().union(*each) for each in by_lap]
    assert not everything[0] & everything[1]
    assert not everything[1] & everything[2]


def test_sessions_of_a_lap_are_its_own() -> None:
    found = list(islice(laps(TRACE), 7))
    assert [found[place].session for place in (0, 3, 6)] == ["a", "a/1", "a/2"]
    assert found[4].session is None


@pytest.mark.parametrize("trace", [(), TRACE[:1], (request(0, 1.0), request(1, 1.0))])
def test_a_trace_without_a_rate_has_no_laps(trace: tuple[TraceRequest, ...]) -> None:
    with pytest.raises(TraceError):
        next(laps(trace))
