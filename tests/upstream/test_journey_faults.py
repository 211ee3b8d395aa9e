"""What a failure means, and how many retries are affordable."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.types import OutcomeKind
from gateway.telemetry.labels import UpstreamErrorKind
from gateway.upstream.budget import RetryBudget
from gateway.upstream.errors import ErrorKind
from gateway.upstream.faults import fault_of_error, fault_of_status
from gateway.upstream.origin import Origin
from tests.upstream.journey_lab import upstream_error

ORIGIN = Origin(host="d0", port=8000)


@pytest.mark.parametrize("kind", list(ErrorKind))
def test_every_failure_of_a_leg_has_a_meaning(kind: ErrorKind) -> None:
    fault = fault_of_error(upstream_error(ORIGIN, kind))
    assert fault.error.status in {502, 503, 504}
    assert (fault.outcome is OutcomeKind.TIMEOUT) is (fault.error.status == 504)


@pytest.mark.parametrize("kind", [ErrorKind.POOL_TIMEOUT, ErrorKind.POOL_CLOSED])
def test_what_is_the_gateways_own_lack_blames_no_worker(kind: ErrorKind) -> None:
    fault = fault_of_error(upstream_error(ORIGIN, kind))
    assert not fault.blames_worker
    assert fault.error.status == 503


@pytest.mark.parametrize(
    ("kind", "head_seen", "retryable"),
    [
        (ErrorKind.CONNECT_REFUSED, False, True),
        (ErrorKind.FIRST_BYTE_TIMEOUT, False, True),
        (ErrorKind.MALFORMED, False, True),
        (ErrorKind.MALFORMED, True, False),
        (ErrorKind.TRUNCATED, True, False),
        (ErrorKind.IDLE_TIMEOUT, True, False),
        (ErrorKind.POOL_CLOSED, False, False),
    ],
)
def test_only_what_the_worker_has_not_answered_may_go_elsewhere(
    kind: ErrorKind, head_seen: bool, retryable: bool
) -> None:
    fault = fault_of_error(upstream_error(ORIGIN, kind, head_seen=head_seen))
    assert fault.retryable is retryable


@pytest.mark.parametrize("status", [200, 204, 304, 400, 401, 404, 408, 413, 422, 499])
def test_a_status_below_500_is_no_fault_of_the_worker(status: int) -> None:
    assert fault_of_status(status) is None


@pytest.mark.parametrize(
    ("status", "blames", "retryable", "label"),
    [
        (429, False, True, UpstreamErrorKind.OVERLOADED),
        (503, False, True, UpstreamErrorKind.OVERLOADED),
        (500, True, True, UpstreamErrorKind.SERVER_ERROR),
        (502, True, True, UpstreamErrorKind.SERVER_ERROR),
        (504, True, True, UpstreamErrorKind.SERVER_ERROR),
        (501, True, False, UpstreamErrorKind.SERVER_ERROR),
        (599, True, False, UpstreamErrorKind.SERVER_ERROR),
    ],
)
def test_overload_is_no_fault_but_may_go_elsewhere(
    status: int, blames: bool, retryable: bool, label: UpstreamErrorKind
) -> None:
    fault = fault_of_status(status)
    assert fault is not None
    assert (fault.blames_worker, fault.retryable, fault.label) == (blames, retryable, label)
    assert fault.outcome is OutcomeKind.UPSTREAM_ERROR


def test_a_fresh_budget_holds_its_reserve() -> None:
    budget = RetryBudget(ratio=0.0, reserve=2)
    for _ in range(2):
        assert budget.allows
        budget.spend()
    assert not budget.allows


def test_a_spent_budget_is_refilled_by_requests() -> None:
    budget = RetryBudget(ratio=0.25, reserve=1)
    budget.spend()
    for _ in range(3):
        budget.saw_request()
    assert not budget.allows
    budget.saw_request()
    assert budget.allows


@given(st.integers(1, 20), st.sampled_from([0.0, 0.125, 0.25, 1.0]), st.lists(st.booleans(), max_size=200))
def test_retries_are_never_more_than_the_reserve_and_their_share(
    reserve: int, ratio: float, failures: list[bool]
) -> None:
    budget = RetryBudget(ratio=ratio, reserve=reserve)
    retries = 0
    for failed in failures:
        budget.saw_request()
        if failed and budget.allows:
            budget.spend()
            retries += 1
    assert retries <= reserve + ratio * len(failures)
