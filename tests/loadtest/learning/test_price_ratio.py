"""A gateway sees how far its workers are from their prices."""

from dataclasses import replace

import pytest

from gateway.core.forecast import FleetCosts
from gateway.core.path.rules import AlwaysLocal, AlwaysRemote
from gateway.core.policy import Policy
from gateway.core.types import SloTarget, WorkerId
from loadtest.calibrate.refine import scaled
from loadtest.fleet.pools import parse_pools
from loadtest.learning.prices import Traffic, fleet_costs
from loadtest.learning.simulated import SimulatedFleet
from loadtest.simulator.host import Simulation
from loadtest.traces.workload import Workload
from policy_store.costs.file import read_shipped, to_table

NAME = "h100-llama8b"
FLEET = SimulatedFleet(pools=parse_pools("1P1D"), engine=NAME, slo=SloTarget(name="run", ttft_s=1.0, tpot_s=0.02))


@pytest.mark.parametrize("off", [0.7, 1.0, 1.4])
def test_engines_slower_than_priced_show_as_a_ratio_by_worker_and_phase(off: float) -> None:
    requests = Traffic(trace="synthetic:mooncake?rate=1", requests=400).load()
    true = fleet_costs(NAME)
    priced = replace(true.decode, table=to_table(scaled(read_shipped(NAME), decode=1 / off, prefill=1 / off)))
    policy = Policy(path=AlwaysRemote(), costs=FleetCosts(prefill=priced, decode=priced))
    dispatcher = FLEET.dispatcher(policy, requests, seed=0)
    Simulation(FLEET.engines(), dispatcher, Workload(requests=requests).driver()).run()
    forecast = dispatcher.router.forecast
    assert forecast is not None
    assert forecast.of(WorkerId("prefill-0")).backlog.correction == pytest.approx(off, rel=0.15)
    assert forecast.of(WorkerId("decode-0")).decode_correction == pytest.approx(off, rel=0.15)


def test_without_prices_nothing_is_expected() -> None:
    requests = Traffic(trace="synthetic:mooncake?rate=1", requests=5).load()
    dispatcher = FLEET.dispatcher(Policy(path=AlwaysLocal()), requests, seed=0)
    assert dispatcher.router.forecast is None
