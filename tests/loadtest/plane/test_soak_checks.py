"""The checks of a soak, each of which can fail."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from loadtest.plane.soak_checks import Ending, Resources, soak_checks
from loadtest.plane.soaking import Told
from loadtest.plane.state import GatewayState

MIB = 2**20
REQUESTS = 100
STATE = GatewayState(held={"inflight_requests": 0.0}, busy=0.0, connections=0.0, outcomes={})
ENDING = Ending(
    state=STATE,
    before=Resources(files=20, threads=8),
    after=Resources(files=22, threads=8),
    stop_s=1.0,
    exit_status=0,
    log="all is well",
    workers=2,
)


def told(**changes: Any) -> Told:
    given = {
        "outcomes": Counter({"ok": 80, "left": 12, "401": 8}),
        "faults": 3,
        "memory_bytes": [100 * MIB] * 9 + [102 * MIB],
    }
    return Told(**(given | changes))


def missed(found: Told | None = None, **ending: Any) -> list[str]:
    checks = soak_checks(found or told(), replace(ENDING, **ending), requests=REQUESTS)
    return [check.what.split(";")[0] for check in checks if not check.holds]


def test_all_hold() -> None:
    assert missed() == []


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"outcomes": Counter({"ok": 80, "left": 12})}, "requests, answered well, left by their clients"),
        ({"outcomes": Counter({"ok": 49, "left": 12, "503": 39})}, "requests, answered well, left by their clients"),
        ({"outcomes": Counter({"ok": 100})}, "requests, answered well, left by their clients"),
        ({"faults": 0}, "requests, answered well, left by their clients"),
        ({"outcomes": Counter({"ok": 80, "left": 19, "stuck": 1})}, "requests without an end"),
        (
            {"wrong": Counter({"bad JSON: ok": 1})},
            "clients' mistakes that were answered otherwise than by their status",
        ),
        ({"memory_bytes": [100 * MIB] * 9 + [103 * MIB]}, "memory after each tenth, MB"),
        ({"memory_bytes": [100 * MIB] * 9}, "memory after each tenth, MB"),
        ({"memory_bytes": []}, "memory after each tenth, MB"),
    ],
)
def test_what_clients_saw_can_miss(change: dict[str, Any], what: str) -> None:
    assert missed(told(**change)) == [what]


def test_memory_may_fall() -> None:
    assert missed(told(memory_bytes=[100 * MIB] * 9 + [50 * MIB])) == []


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"state": replace(STATE, busy=1.0)}, "left in ledger and pool"),
        ({"state": replace(STATE, connections=1.0)}, "left in ledger and pool"),
        ({"after": Resources(files=23, threads=8)}, "open files before, after"),
        ({"after": Resources(files=20, threads=9)}, "open files before, after"),
        ({"stop_s": 5.1}, "seconds to stop"),
        ({"exit_status": 1}, "seconds to stop"),
        ({"exit_status": None}, "seconds to stop"),
        ({"log": "Task was destroyed but it is pending!"}, "signs of forgotten tasks in its log"),
        ({"log": "Traceback (most recent call last)"}, "signs of forgotten tasks in its log"),
    ],
)
def test_what_is_left_can_miss(change: dict[str, Any], what: str) -> None:
    assert missed(**change) == [what]
