"""A router whose calls are written down answers as a plain one does."""

from pathlib import Path

import pytest

from gateway.core.events import Dispatched, WorkerUp
from gateway.core.ledger import LedgerError
from gateway.core.policy import Policy
from gateway.core.types import DecisionId, WorkerId
from gateway.telemetry.journal import JournalWriter
from gateway.telemetry.recorded_core import RecordedCore
from gateway.wire.journal import CallName, JournalCall, canonical, read_pairs
from tests.core.factories import facts, finished, routed, router, worker

UP = WorkerUp(at_s=0.0, spec=worker("d0"))
OTHER = Policy(description="other")


def recorded(path: Path) -> list[tuple[JournalCall, bytes]]:
    with path.open("rb") as lines:
        return list(read_pairs(lines))


def test_every_call_is_passed_on_and_written_down_with_its_answer(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    beneath, plain = (router(policy=Policy(description="one")) for _ in range(2))
    with JournalWriter(path) as journal:
        core = RecordedCore(beneath, journal, seed=7, instance="gw")
        for host in (core, plain):
            host.observe(UP)
            first = routed(host.submit(facts("a"), 1.0))
            host.abort(first.decision_id, 2.0, blame=WorkerId("d0"))
            second = routed(host.submit(facts("b"), 3.0, exclude=frozenset(), attempt=2))
            host.observe(Dispatched(at_s=4.0, decision_id=second.decision_id))
            host.observe(finished(second, at_s=5.0))
            host.tick(6.0)
            host.adopt(OTHER)
        refused = core.submit(facts("c"), 7.0, exclude=frozenset({WorkerId("z"), WorkerId("d0")}), attempt=3)
    (opened, _), *calls = recorded(path)
    assert (opened.name, opened.details) == (CallName.OPEN, {"seed": 7, "instance": "gw", "policy": "one"})
    assert [(call.name, call.now_s) for call, _ in calls] == [
        (CallName.OBSERVE, 0.0),
        (CallName.SUBMIT, 1.0),
        (CallName.ABORT, 2.0),
        (CallName.SUBMIT, 3.0),
        (CallName.OBSERVE, 4.0),
        (CallName.OBSERVE, 5.0),
        (CallName.TICK, 6.0),
        (CallName.ADOPT, 0.0),
        (CallName.SUBMIT, 7.0),
    ]
    assert calls[0][0].payload == UP
    assert calls[1][1] == canonical(first)
    assert calls[2][0].details == {"decision_id": first.decision_id, "blame": "d0"}
    assert calls[3][0].details == {"exclude": [], "attempt": 2}
    assert calls[7][0].details == {"policy": "other"}
    assert calls[8][0].details == {"exclude": ["d0", "z"], "attempt": 3}
    assert calls[8][1] == canonical(refused)
    assert beneath.policy is plain.policy is OTHER
    assert beneath.health.get(WorkerId("d0")) == plain.health.get(WorkerId("d0"))
    assert plain.health.get(WorkerId("d0")).failures > 0


def test_a_call_that_the_router_refuses_is_not_written_down(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with JournalWriter(path) as journal:
        core = RecordedCore(router(), journal, seed=7, instance="gw")
        with pytest.raises(LedgerError):
            core.abort(DecisionId("nobody's"), 1.0)
    assert [call.name for call, _ in recorded(path)] == [CallName.OPEN]
