from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from gateway.settings import SettingsError
from loadtest.engine.presets import UnknownEngine
from loadtest.fleet.pools import Pools
from loadtest.simulator.host import ScrapePlan
from loadtest.simulator.scenario import Scenario, Simulated, run_workload, simulate
from loadtest.traces.types import TraceError, TraceRequest
from loadtest.traces.workload import Workload
from policy_store.bundle import write_bundle
from tests.policy_store.bundle_factories import always

SCENARIO = Scenario(
    trace="synthetic:mooncake",
    pools=Pools(prefill=2, decode=2),
    engine="h100-llama8b",
    requests=60,
    scrape=ScrapePlan(interval_s=1.0),
)


def encoded(run: Simulated) -> bytes:
    return msgspec.json.encode(run.records)


def paths(run: Simulated) -> set[str | None]:
    return {record.path for record in run.records}


@pytest.mark.parametrize("trace", ["synthetic:mooncake", "synthetic:miniswe"], ids=["open loop", "sessions"])
@pytest.mark.parametrize("policy", ["dynamo", "local", "remote", "llmd"])
def test_the_same_seed_is_the_same_run_byte_for_byte(trace: str, policy: str) -> None:
    scenario = replace(SCENARIO, trace=trace, policy=policy)
    one, two = simulate(scenario, seed=3), simulate(scenario, seed=3)
    assert encoded(one) == encoded(two)
    assert (one.simulated_s, one.events) == (two.simulated_s, two.events)


def test_another_seed_is_another_run() -> None:
    one, two = simulate(SCENARIO, seed=3), simulate(SCENARIO, seed=4)
    assert (one.seed, two.seed) == (3, 4)
    assert encoded(one) != encoded(two)


def test_all_requests_end_well_and_are_in_order_of_arrival() -> None:
    run = simulate(SCENARIO)
    assert len(run.records) == 60
    assert all(record.ok for record in run.records)
    assert [record.index for record in run.records] == list(range(60))
    assert run.simulated_s >= max(record.scheduled_s + (record.e2e_s or 0.0) for record in run.records)


@pytest.mark.parametrize(("policy", "taken"), [("local", {"local"}), ("remote", {"remote"}), ("llmd", {"local"})])
def test_a_policy_is_named(policy: str, taken: set[str]) -> None:
    run = simulate(replace(SCENARIO, policy=policy))
    assert paths(run) == taken
    assert {record.policy for record in run.records} == {policy}


def test_settings_make_the_policy() -> None:
    run = simulate(replace(SCENARIO, policy="llmd", settings=("routing.llmd.non_cached_tokens=3000",)))
    assert paths(run) == {"local", "remote"}
    with pytest.raises(SettingsError, match=r"routing\.llmd\.tokens"):
        simulate(replace(SCENARIO, settings=("routing.llmd.tokens=1",)))


def test_a_policy_may_be_a_bundles_directory(tmp_path: Path) -> None:
    directory = write_bundle(always("remote"), tmp_path)
    run = simulate(replace(SCENARIO, policy=str(directory)))
    assert {record.policy for record in run.records} == {"table"}
    assert paths(run) == {"remote"}
    with pytest.raises(SettingsError, match="cannot read policy bundle"):
        simulate(replace(SCENARIO, policy=str(tmp_path / "none")))


def test_what_does_not_exist_is_said() -> None:
    with pytest.raises(UnknownEngine, match="no engine is called 'abacus'"):
        simulate(replace(SCENARIO, engine="abacus"))
    with pytest.raises(TraceError, match="unknown synthetic trace"):
        simulate(replace(SCENARIO, trace="synthetic:nothing"))


def test_a_fleet_of_workers_that_do_both_serves_all() -> None:
    run = simulate(replace(SCENARIO, pools=Pools(both=3), policy="remote"))
    assert all(record.ok for record in run.records)
    assert {record.worker for record in run.records} == {"worker-0", "worker-1", "worker-2"}
    assert paths(run) == {"remote"}


def test_until_ends_the_run() -> None:
    run = simulate(replace(SCENARIO, until_s=10.0))
    assert 0 < len(run.records) < 60
    assert run.simulated_s <= 10.0
    assert any(record.cancelled for record in run.records)


def test_the_rate_scale_moves_arrivals() -> None:
    slow, fast = (simulate(replace(SCENARIO, rate_scale=scale)) for scale in (1.0, 4.0))
    assert fast.records[-1].scheduled_s == pytest.approx(slow.records[-1].scheduled_s / 4.0)


def test_a_workload_may_be_given() -> None:
    requests = tuple(
        TraceRequest(index=index, arrival_s=index, input_tokens=100, output_tokens=3, hash_ids=(1, 2), block_tokens=64)
        for index in range(5)
    )
    run = run_workload(SCENARIO, Workload(requests=requests), seed=0)
    assert [record.input_tokens for record in run.records] == [100] * 5
    # One block of 64 is full.
    assert {record.cached_tokens for record in run.records[2:]} <= {0, 64}
    assert any(record.cached_tokens for record in run.records)
