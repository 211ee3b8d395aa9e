"""Whose fault a failed hand-over is."""

import pytest

from gateway.core.types import WorkerId
from gateway.upstream import hand_overs
from gateway.upstream.hand_overs import HandOvers

P0, P1, D0, D1 = map(WorkerId, ("p0", "p1", "d0", "d1"))


def test_one_failure_proves_nothing() -> None:
    assert HandOvers().failed(P0, D0) is None


def test_a_burst_of_failures_of_one_pair_proves_nothing_either() -> None:
    of = HandOvers()
    assert {of.failed(P0, D0) for _ in range(20)} == {None}


def test_a_prefill_worker_that_fails_with_several_is_to_blame() -> None:
    of = HandOvers()
    assert [of.failed(P0, D0), of.failed(P0, D1), of.failed(P0, D0)] == [None, P0, P0]


def test_a_decode_worker_that_fails_with_several_is_to_blame() -> None:
    of = HandOvers()
    assert [of.failed(P0, D0), of.failed(P1, D0), of.failed(P0, D0)] == [None, D0, D0]


@pytest.mark.parametrize(("well", "to_blame"), [((P1, D0), P0), ((P0, D1), D0)])
def test_the_one_that_did_well_with_another_in_between_is_not(
    well: tuple[WorkerId, WorkerId], to_blame: WorkerId
) -> None:
    of = HandOvers()
    of.failed(P0, D0)
    of.succeeded(*well)
    assert of.failed(P0, D0) == to_blame


def test_a_pair_that_did_well_begins_anew() -> None:
    of = HandOvers()
    of.failed(P0, D0)
    of.failed(P0, D1)
    of.succeeded(P0, D0)
    of.succeeded(P0, D1)
    assert of.failed(P0, D0) is None


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hand_overs, "MAX_WORKERS", 3)
    of = HandOvers()
    for number in range(10):
        of.failed(WorkerId(f"p{number}"), D0)
    assert len(of._in_a_row) == 3
    assert of.failed(P1, D0) == D0
