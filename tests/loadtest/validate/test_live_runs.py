from dataclasses import replace

import pytest

from loadtest.fleet.pools import Pools
from loadtest.simulator.scenario import run_workload
from loadtest.traces.workload import Workload
from loadtest.validate.live_runs import RUN_ID, SCRAPE_INTERVAL_S, Setup, run_live, run_simulated

SETUP = Setup(
    trace="synthetic:azure-conv",
    pools=Pools(prefill=1, decode=2),
    engine="h100-llama8b",
    policy="dynamo",
    requests=12,
    rate_scale=4.0,
    speed=4.0,
    seed=5,
)


def test_both_scrape_as_often_by_the_engines_clock() -> None:
    assert SETUP.scenario().scrape.interval_s == 4.0 * SCRAPE_INTERVAL_S
    assert SETUP.gateway_settings()["fleet"] == {"scrape_interval_s": SCRAPE_INTERVAL_S}


def test_both_have_one_policy_and_one_seed() -> None:
    assert SETUP.scenario().policy == SETUP.gateway_settings()["routing"]["policy"] == "dynamo"
    assert SETUP.gateway_settings()["routing"]["seed"] == 5


def test_sessions_are_in_open_loop() -> None:
    trace = replace(SETUP, trace="synthetic:miniswe", requests=30).load()
    records = run_simulated(SETUP, trace)
    assert [record.scheduled_s for record in records] == [request.arrival_s for request in trace]


def test_ties_are_broken_by_the_request_ids_of_the_live_run() -> None:
    alike = replace(SETUP, pools=Pools(both=4), policy="local", rate_scale=0.1)
    trace = alike.load()
    named = [record.worker for record in run_simulated(alike, trace)]
    bare = run_workload(replace(alike.scenario(), run_id=None), Workload(requests=tuple(trace)), seed=alike.seed)
    assert alike.scenario().run_id == RUN_ID
    assert named != [record.worker for record in bare.records]


@pytest.mark.e2e
def test_a_live_run_routes_as_the_simulated_one() -> None:
    trace = SETUP.load()
    live, simulated = run_live(SETUP, trace), run_simulated(SETUP, trace)
    assert all(record.ok for record in live)
    assert [record.index for record in live] == [record.index for record in simulated]
    assert [record.path for record in live] == [record.path for record in simulated]
    assert [record.output_tokens for record in live] == [record.output_tokens for record in simulated]
    assert all((record.ttft_s or 0.0) > 0.0 for record in live)
