from typing import Any

import pytest

from gateway.core.types import Candidate, Features, Outcome, OutcomeKind, Path, Reason, SloTarget, WorkerId
from gateway.wire.decision_record import DecisionRecord
from loadtest.learning.log_rows import LogRows
from tests.telemetry.telemetry_factories import a_decision, a_refusal, a_remote_decision, an_outcome

SLO = SloTarget(name="run", ttft_s=2.0, tpot_s=0.04)
PREFILL_CANDIDATES = (Candidate(worker_id=WorkerId("prefill-0"), scores=(), total=1.0),)


def record(
    at_s: float, *, remote: bool = False, outcome: Outcome | None = None, isl: int = 1000, **changes: Any
) -> DecisionRecord:
    make = a_remote_decision if remote else a_decision
    features = Features(isl_tokens=isl, prefill_isl_tokens=isl, decode_isl_tokens=isl, osl_tokens=10.0)
    fields = {"features": features, "prefill_candidates": PREFILL_CANDIDATES, **changes}
    return DecisionRecord(
        request_id="r",
        arrived_at_s=at_s,
        model="llama",
        decision=make(**fields),
        outcome=outcome or an_outcome(duration_s=4.0, ttft_s=0.5, tpot_s=0.01),
    )


def test_a_row_says_what_the_log_says() -> None:
    rows = LogRows(SLO, 1.0)
    rows.add(0, record(100.0, reason=Reason.EXPLORATION, cluster=3, propensity=0.05))
    (row,) = rows.take()
    assert (row.order, row.path, row.reason, row.cell, row.propensity) == (0, Path.LOCAL, Reason.EXPLORATION, 3, 0.05)
    assert (row.ttft_s, row.tpot_s, row.ok, row.attained) == (0.5, 0.01, True, True)
    assert row.is_learnable


def test_times_are_the_engines() -> None:
    rows = LogRows(SLO, 8.0)
    rows.add(0, record(100.0))
    (row,) = rows.take()
    assert (row.ttft_s, row.tpot_s) == (4.0, 0.08)
    assert row.attained is False


def test_rows_come_in_order_of_arrival_once_all_before_have_ended() -> None:
    rows = LogRows(SLO, 1.0)
    rows.add(1, record(101.0))
    rows.add(3, record(103.0))
    assert rows.take() == []
    rows.add(0, record(100.0))
    assert [row.order for row in rows.take()] == [0, 1]
    rows.skip(2)
    assert [row.order for row in rows.take()] == [3]
    assert rows.take() == []


def test_a_request_that_was_refused_has_no_row_and_holds_none_up() -> None:
    rows = LogRows(SLO, 1.0)
    refused = DecisionRecord(
        request_id="r",
        arrived_at_s=1.0,
        model="llama",
        refusal=a_refusal(),
        outcome=an_outcome(kind=OutcomeKind.REFUSED),
    )
    rows.add(0, refused)
    rows.add(1, record(2.0))
    assert [row.order for row in rows.take()] == [1]


def test_loads_are_those_of_requests_that_had_not_ended() -> None:
    rows = LogRows(SLO, 1.0)
    slow = an_outcome(duration_s=30.0, ttft_s=10.0)
    rows.add(0, record(100.0, remote=True, isl=7000, outcome=slow))
    rows.add(1, record(101.0, remote=True, isl=3000, outcome=an_outcome(duration_s=2.0, ttft_s=1.5)))
    rows.add(2, record(102.0))  # finds both prefills under way
    rows.add(3, record(105.0))  # the second request has ended, and so has the third's
    rows.add(4, record(111.0))  # the first one only decodes
    found = rows.take()
    assert [row.prefill_backlog_tokens for row in found] == [0, 7000, 10_000, 7000, 0]
    assert [row.decode_requests for row in found] == [0, 1, 2, 2, 1]


def test_a_request_without_a_prefill_pool_has_no_backlog() -> None:
    rows = LogRows(SLO, 1.0)
    rows.add(0, record(100.0, prefill_candidates=(), reason=Reason.RULE_NO_PREFILLER))
    (row,) = rows.take()
    assert row.prefill_backlog_tokens is None
    assert not row.is_learnable


@pytest.mark.parametrize(("after_s", "attained"), [(1.0, None), (3.0, False)])
def test_a_client_that_left_counts_only_once_the_slo_had_passed(after_s: float, attained: bool | None) -> None:
    rows = LogRows(SLO, 1.0)
    left = an_outcome(kind=OutcomeKind.CANCELLED, duration_s=after_s, ttft_s=None, tpot_s=None, output_tokens=None)
    rows.add(0, record(100.0, outcome=left, reason=Reason.CLUSTER, cluster=0))
    (row,) = rows.take()
    assert row.attained is attained
    assert row.is_learnable is (attained is not None)
