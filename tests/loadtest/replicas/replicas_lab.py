"""A run that kept every promise, to be spoiled in one place."""

from dataclasses import replace
from typing import Any

from loadtest.replicas.plan import Plan
from loadtest.replicas.records import Course, Fault, Played, Run, Tried

PLAN = Plan(sessions=2)
COURSE = Course(
    steady_from_s=10.0,
    replica=Fault(name="gateway-1", began_s=100.0, gone_s=100.1, back_s=120.0),
    redis=Fault(name="Redis", began_s=200.0, gone_s=200.0, back_s=220.0),
    decoder=Fault(name="decode-3", began_s=300.0, gone_s=300.1, back_s=float("inf")),
)


def tried(session: str, sent_s: float, **changes: Any) -> Tried:
    """A later turn that went well, on decode-0."""
    one = Tried(
        session=session,
        turn=2,
        replica="gateway-0",
        sent_s=sent_s,
        ended_s=sent_s + 0.2,
        worker="decode-0",
        pinned_to="decode-0",
        error=None,
    )
    return replace(one, **changes)


def good_run(*more: Tried, **changes: Any) -> Run:
    """Session a lives on decode-0 all the while, session b on decode-3 until that is killed."""
    turns = [tried("a", at_s) for at_s in (20.0, 110.0, 210.0, 230.0, 310.0)]
    turns.append(tried("b", 290.0, worker="decode-3", pinned_to="decode-3"))
    turns.append(tried("b", 320.0, worker="decode-1", pinned_to="decode-3"))
    turns.append(tried("b", 340.0, worker="decode-1", pinned_to="decode-1"))
    run = Run(
        course=COURSE,
        tried=tuple(sorted((*turns, *more), key=lambda one: one.sent_s)),
        played=tuple(Played(session=name, ended_s=350.0, turns=5, is_whole=True) for name in "ab"),
        peak_sessions=2,
    )
    return replace(run, **changes)
