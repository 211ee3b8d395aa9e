from dataclasses import replace
from random import Random
from typing import Any

import pytest

from gateway.core.path.base import PathQuestion
from gateway.core.path.rules import AlwaysLocal, AlwaysRemote, DynamoMode, DynamoRule
from gateway.core.types import Path, PathChoice, Reason, SloTarget
from loadtest.fleet.pools import Pools
from loadtest.learning.simulated import SimulatedEnvironment, SimulatedFleet
from loadtest.simulator.scenario import Scenario, run_workload
from loadtest.traces.loaders import load_trace
from loadtest.traces.types import TraceRequest
from loadtest.traces.workload import Workload
from policy_store.learn.clusters import ClusterPlan
from policy_store.learn.course import Phase
from policy_store.learn.dolphin import Dolphin, DolphinPlan
from policy_store.learn.environment import ServedRow
from policy_store.learn.regimes import RegimePlan
from policy_store.learn.scan import ScanPlan

SLO = SloTarget(name="run", ttft_s=2.0, tpot_s=0.04)
FLEET = SimulatedFleet(pools=Pools(prefill=1, decode=1), engine="h100-llama8b", slo=SLO)


def trace(requests: int = 200, rate_scale: float = 2.0) -> list[TraceRequest]:
    return load_trace("synthetic:azure-conv", limit=requests, seed=1, rate_scale=rate_scale)


def environment(**changes: Any) -> SimulatedEnvironment:
    return SimulatedEnvironment(FLEET, trace(), **({"seed": 0} | changes))


def all_rows(env: SimulatedEnvironment, *calls: tuple[Any, int]) -> list[ServedRow]:
    return [row for policy, requests in calls for row in env.serve(policy, requests)]


def test_serving_goes_on_where_it_stopped() -> None:
    """In pieces it is the same run as at once: the same queues, caches and books."""
    whole = environment().serve(AlwaysRemote(), 150)
    pieces = all_rows(environment(), *[(AlwaysRemote(), 30)] * 5)
    assert sorted(pieces, key=lambda row: row.order) == whole


def test_a_run_is_the_plain_simulation_of_the_trace() -> None:
    requests = trace(100)
    env = SimulatedEnvironment(FLEET, requests, seed=0)
    rows = env.serve(DynamoRule(), 100)
    scenario = Scenario(trace="", pools=FLEET.pools, engine=FLEET.engine, policy="dynamo", slo=SLO)
    records = run_workload(scenario, Workload(requests=tuple(requests)), seed=0).records
    assert len(rows) > 50
    for row in rows:
        record = records[row.order]
        assert row.path == record.path
        assert (row.ttft_s, row.tpot_s) == (pytest.approx(record.ttft_s), pytest.approx(record.tpot_s))


def test_a_request_belongs_to_the_policy_that_routed_it() -> None:
    env = environment()
    rows = all_rows(env, (AlwaysLocal(), 40), (AlwaysRemote(), 40), (AlwaysLocal(), 60))
    assert env.served == 140
    long = [row for row in rows if row.reason in (Reason.ALWAYS_LOCAL, Reason.ALWAYS_REMOTE)]
    assert {row.path for row in long if 40 <= row.order < 80} == {Path.REMOTE}
    assert {row.path for row in long if not 40 <= row.order < 80} == {Path.LOCAL}


def test_every_request_has_one_row_whenever_it_ends() -> None:
    rows = all_rows(environment(), *[(AlwaysLocal(), 20)] * 20)
    orders = [row.order for row in rows]
    assert len(set(orders)) == len(orders)
    assert set(range(300)) <= set(orders)


class Spy:
    """Goes local and writes down what it was asked."""

    name = "spy"

    def __init__(self) -> None:
        self.asked: list[PathQuestion] = []

    def choose(self, question: PathQuestion, rng: Random) -> PathChoice:
        del rng
        self.asked.append(question)
        return PathChoice(path=Path.LOCAL, reason=Reason.CLUSTER, words="spy", cluster=3, propensity=0.7)


def test_a_row_holds_what_the_decision_saw() -> None:
    env, spy = environment(), Spy()
    env.serve(AlwaysRemote(), 50)
    rows = [row for row in all_rows(env, (spy, 50), (AlwaysLocal(), 100)) if row.cell == 3]
    assert len(rows) == len(spy.asked) > 40
    for row, question in zip(sorted(rows, key=lambda row: row.order), spy.asked, strict=True):
        assert row.features == question.features
        assert row.prefill_backlog_tokens == question.prefill.prefill_tokens
        assert row.decode_requests == question.decode.inflight_requests
        assert row.propensity == 0.7


def test_attainment_is_judged_by_the_fleets_slo() -> None:
    strict = replace(FLEET, slo=replace(SLO, ttft_s=1e-6))
    rows = SimulatedEnvironment(strict, trace(), seed=0).serve(AlwaysLocal(), 100)
    assert {row.attained for row in rows} == {False}


def test_the_trace_begins_anew_when_it_ends() -> None:
    env = environment()
    rows = all_rows(env, *[(AlwaysLocal(), 100)] * 5)
    by_order = {row.order: row for row in rows}
    assert env.served == 500
    assert by_order[230].features.isl_tokens == by_order[30].features.isl_tokens


@pytest.mark.parametrize("regimes", [None, RegimePlan(backlog_levels=2, batch_levels=2)])
def test_the_learner_runs_in_the_simulator(regimes: RegimePlan | None) -> None:
    plan = DolphinPlan(
        n_fit=200,
        clusters=ClusterPlan(k=2, n_init=1),
        regimes=regimes,
        scan=ScanPlan(n_scan=20, block_len=10, passes=1, effect=None, min_turn=20, min_own=5),
    )
    baseline = DynamoRule(mode=DynamoMode.ISL_OR_LOAD, prefill_busy_threshold=1.0)
    learners = [Dolphin(environment(), baseline, plan) for _ in range(2)]
    first, second = (each.learn(600) for each in learners)
    assert first == second
    assert learners[0].phase is Phase.RUN
    assert learners[0].verdicts
    assert first.policy().name == ("table" if regimes is None else "table-regime")
