"""What became of a departure's calls, and the checks of it, each of which can fail."""

from dataclasses import replace
from math import inf
from typing import Any

import pytest

from gateway.core.types import Role
from loadtest.plane.departures import Departure, Fate, cancel_checks, distribution, fates
from loadtest.plane.scripted import Call
from loadtest.plane.state import GatewayState

LEFT = Departure(mark="c1", left_s=10.0)
EMPTY = GatewayState(held={"inflight_requests": 0.0}, busy=0.0, connections=4.0, outcomes={"ok": 5, "cancelled": 3})
FATES = [Fate(mark=f"c{number}", legs="decode", abort_s=0.01 * number) for number in range(3)]


def call(*, came_s: float = 9.0, role: Role = Role.DECODE, **ends: float) -> Call:
    return Call(role=role, came_s=came_s, **ends)


def fate(*calls: Call) -> Fate:
    (found,) = fates([LEFT], {"c1": calls, "c2": [call(lost_s=99.0)]})
    return found


def test_a_call_that_was_lost_went_on_until_then() -> None:
    assert fate(call(lost_s=10.25)) == Fate(mark="c1", legs="decode", abort_s=0.25)


def test_one_that_was_answered_before_was_not_under_way() -> None:
    assert fate(call(answered_s=9.5)).abort_s is None


def test_one_that_was_answered_after_went_on_until_then() -> None:
    assert fate(call(answered_s=10.5)).abort_s == 0.5


def test_one_that_never_ended_goes_on() -> None:
    assert fate(call()).abort_s == inf


def test_a_leg_that_begins_after_the_client_left_counts() -> None:
    found = fate(call(role=Role.PREFILL, answered_s=9.9), call(came_s=10.01, lost_s=10.75))
    assert found == Fate(mark="c1", legs="prefill+decode", abort_s=0.75)


def test_one_that_reached_no_worker_has_nothing_under_way() -> None:
    assert fate() == Fate(mark="c1", legs="none", abort_s=None)


def missed(found: Any = FATES, **changes: Any) -> list[str]:
    given = {"leaving": 3, "state": EMPTY, "answered_right": 5, "asked": 5} | changes
    return [check.what for check in cancel_checks(found, **given) if not check.holds]


def test_all_hold() -> None:
    assert missed() == []


@pytest.mark.parametrize("abort_s", [0.101, inf])
def test_a_call_that_went_on_misses(abort_s: float) -> None:
    late = [*FATES[:2], replace(FATES[2], abort_s=abort_s)]
    assert missed(late) == ["calls that went on for more than 100 ms"]


def test_clients_that_did_not_leave_miss() -> None:
    assert missed(FATES[:2]) == ["clients that left"]


def test_clients_that_left_nothing_behind_prove_nothing() -> None:
    assert missed([replace(one, abort_s=None) for one in FATES]) == ["clients that left"]


@pytest.mark.parametrize(
    ("state", "what"),
    [
        (replace(EMPTY, busy=1.0), "left in ledger and pool"),
        (replace(EMPTY, held={"inflight_requests": 1.0}), "left in ledger and pool"),
        (replace(EMPTY, outcomes={"timeout": 1}), "outcomes that the gateway counted beside ok and cancelled"),
        (replace(EMPTY, outcomes={"cancelled": 4}), "outcomes that the gateway counted beside ok and cancelled"),
    ],
)
def test_what_the_gateway_says_can_miss(state: GatewayState, what: str) -> None:
    assert missed(state=state) == [what]


def test_a_wrong_answer_afterwards_misses() -> None:
    assert missed(answered_right=4) == ["requests answered right afterwards"]


def test_the_distribution_is_told() -> None:
    lines = distribution([*FATES, Fate(mark="x", legs="none", abort_s=None)])
    assert lines[0] == "reached: decode 3, none 1"
    assert lines[1].startswith("aborted after, ms: P50 10.00")
    assert len(distribution([Fate(mark="x", legs="none", abort_s=None)])) == 1
