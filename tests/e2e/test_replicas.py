"""Gateways that share a Redis over an emulated fleet, all of it killed in turn: the acceptance in small."""

import pytest

from loadtest.replicas.checks import checks
from loadtest.replicas.fleet import ReplicaFleet
from loadtest.replicas.plan import Plan
from loadtest.replicas.run import play
from tests.fleet.shared.redis_lab import needs_server

pytestmark = [pytest.mark.e2e, needs_server]

PLAN = Plan(
    sessions=20,
    think_s=(0.3, 0.6),
    ramp_s=0.3,
    settle_s=0.2,
    steady_s=0.5,
    replica_gone_s=0.3,
    replica_back_s=0.5,
    redis_gone_s=1.5,
    redis_back_s=1.5,
    agree_s=1.0,
    decoder_gone_s=0.5,
)


async def test_whatever_is_killed_every_session_goes_on() -> None:
    said: list[str] = []
    with ReplicaFleet.started() as fleet:
        run = await play(fleet, PLAN, said.append)
    assert run.peak_sessions >= PLAN.sessions
    assert len(said) == 8
    # How many turns stay at home depends on how soon a busy machine answers; that nothing is lost does not.
    found = {
        check.what: check for check in checks(run, PLAN) if check.required == "0" and "new homes" not in check.what
    }
    assert len(found) == 5
    assert {what: check.measured for what, check in found.items() if not check.holds} == {}
