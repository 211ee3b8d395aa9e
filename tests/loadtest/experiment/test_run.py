from dataclasses import replace

import pytest

from gateway.core.types import Role
from loadtest.experiment.cells import cell_runs
from loadtest.experiment.run import members_of, run_cell, watch_cell
from loadtest.fleet.pools import parse_pools
from loadtest.simulator.scenario import Scenario, simulate
from tests.loadtest.experiment.experiment_lab import first_run, plan


@pytest.mark.parametrize("policy", ["remote", "local", "dynamo"])
def test_a_cell_of_one_engine_is_the_simulators_scenario(policy: str) -> None:
    run = replace(first_run(policies={"p": policy}, loads=[2.0]), seed=3)
    scenario = Scenario(
        trace="synthetic:mooncake",
        pools=parse_pools("1P1D"),
        engine="h100-llama8b",
        policy=policy,
        requests=30,
        rate_scale=2.0,
    )
    assert run_cell(run).records == simulate(scenario, seed=3).records


def test_all_policies_of_a_seed_get_the_same_requests_and_another_seed_gets_others() -> None:
    rows = [run_cell(run).row for run in cell_runs(plan(loads=[1.0]))]
    hashes = {(row.policy, row.seed): row.trace_hash for row in rows}
    assert hashes["remote", 0] == hashes["local", 0] != hashes["remote", 1] == hashes["local", 1]


def test_watching_changes_nothing() -> None:
    outcome, timeline = watch_cell(first_run())
    assert outcome == run_cell(first_run())
    assert timeline.workers == ("prefill-0", "decode-0")


def test_a_run_that_is_stopped_asks_for_all_and_completes_less() -> None:
    row = run_cell(first_run(until_s=4.0)).row
    assert row.asked == 30
    assert 0 < row.completed < 30
    assert row.cancelled > 0
    assert row.duration_s <= 4.0


def test_engines_may_differ_within_a_fleet() -> None:
    groups = [{"role": "prefill", "engine": "h100-llama8b"}, {"role": "decode", "engine": "a100-llama8b", "count": 2}]
    mixed = first_run(fleets={"pair": {"groups": groups}}, policies={"p": "remote"})
    same = first_run(fleets={"pair": {"pools": "1P2D", "engine": "h100-llama8b"}}, policies={"p": "remote"})
    names = [(member.name, member.role) for member in members_of(mixed.cell)]
    assert names == [("prefill-0", Role.PREFILL), ("decode-0", Role.DECODE), ("decode-1", Role.DECODE)]
    slow, fast = run_cell(mixed).row, run_cell(same).row
    assert slow.tpot_p50_s is not None
    assert fast.tpot_p50_s is not None
    assert slow.tpot_p50_s > fast.tpot_p50_s


def test_the_offered_rate_grows_with_the_load() -> None:
    once, twice = (run_cell(first_run(loads=[load])).row.offered_per_s for load in (1.0, 2.0))
    assert once is not None
    assert twice == pytest.approx(2 * once)
