from collections.abc import Sequence
from random import Random

import pytest

from gateway.core.policy import Policy
from gateway.core.types import Role, SloTarget
from loadtest.engine.engine import Engine
from loadtest.engine.power import PowerModel
from loadtest.engine.presets import ENGINES, load_engine, power_model
from loadtest.fleet.pools import parse_pools
from loadtest.learning.simulated import SimulatedFleet
from loadtest.simulator.host import Run, ScrapePlan, Simulation
from tests.loadtest.engine.engine_lab import SPEC, SteadyCosts
from tests.loadtest.simulator.simulator_lab import ListLoad, RouteByIndex, request, run_routes

POWER = PowerModel(idle_w=10.0, decode_w=100.0, prefill_w=200.0, tdp_w=200.0)
SLO = SloTarget(name="slo", ttft_s=1.0, tpot_s=0.1)
TIERS = ("h100-llama8b", "h100-llama8b@cap60")


def lab_engine(power: PowerModel | None) -> Engine:
    return Engine(SPEC, SteadyCosts(), tells_every_token=False, power=power)


def tiered(*, metered: bool) -> list[Engine]:
    """Two prefill workers, and two for decoding under a cap."""
    return [
        Engine(*load_engine(name), tells_every_token=False, power=power_model(name) if metered else None)
        for name in (TIERS[0], TIERS[0], TIERS[1], TIERS[1])
    ]


REQUESTS = [
    request(
        index,
        at_s=index / 16,
        prompt=Random(index).randrange(50, 6000),
        output=Random(index).randrange(1, 60),
        block_tokens=64,
    )
    for index in range(60)
]
ROUTES = {index: (None if index % 5 == 0 else index % 2, 2 + index % 3 % 2) for index in range(60)}


def tiered_run(engines: Sequence[Engine], *, stops: Sequence[float] = ()) -> Run:
    """Those requests, in as many runs as it is stopped and one more."""
    simulation = Simulation(engines, RouteByIndex(ROUTES), ListLoad(REQUESTS), scrape=ScrapePlan(interval_s=0.25))
    for stop_s in stops:
        simulation.run(stop_s)
    return simulation.run()


def times(run: Run) -> list[tuple[float | None, float | None, float | None]]:
    return [(flight.prefilled_s, flight.first_token_s, flight.ended_s) for flight in run.flights]


def test_a_run_tells_what_each_engine_drew_to_its_end() -> None:
    # Steps of a second on the second engine from 2 to 5 s; steady costs make prompts free beside a token.
    run, _ = run_routes(
        [request(0, at_s=2.0, output=3)], {0: (None, 1)}, engines=[lab_engine(POWER), lab_engine(POWER)]
    )
    assert run.until_s == 5.0
    assert run.energy_j == (50.0, 2 * 10 + 3 * 100.0)


def test_a_stopped_run_counts_to_where_it_was_stopped() -> None:
    run, _ = run_routes([request(0, output=9)], {0: (None, 0)}, engines=[lab_engine(POWER)], until_s=4.5)
    assert (run.until_s, run.energy_j) == (4.5, (450.0,))


def test_a_run_in_which_nothing_is_left_to_happen_draws_nothing_more() -> None:
    simulation = Simulation([lab_engine(POWER)], RouteByIndex({0: (None, 0)}), ListLoad([request(0, output=3)]))
    first, second = simulation.run(), simulation.run()
    assert first.energy_j == second.energy_j == (300.0,)


@pytest.mark.parametrize("powers", [(None, None), (POWER, None)])
def test_a_fleet_without_power_models_tells_nothing(powers: tuple[PowerModel | None, ...]) -> None:
    run, _ = run_routes([request(0)], {0: (None, 0)}, engines=[lab_engine(power) for power in powers])
    assert run.energy_j == ()


def test_each_engine_s_busy_and_idle_time_is_the_run_s() -> None:
    engines = tiered(metered=True)
    run = tiered_run(engines)
    usages = [engine.usage(run.until_s) for engine in engines]
    for engine, usage, energy_j in zip(engines, usages, run.energy_j, strict=True):
        assert usage is not None
        assert engine.power is not None
        assert 0 < usage.busy_s == pytest.approx(engine.snapshot().busy_s)
        assert usage.idle_s + usage.busy_s == pytest.approx(run.until_s)
        assert energy_j == engine.power.energy_j(usage)
    assert sum(usage.idle_s + usage.busy_s for usage in usages if usage is not None) == pytest.approx(4 * run.until_s)


def test_a_power_model_changes_no_time_of_a_run() -> None:
    plain = tiered_run(tiered(metered=False))
    metered = tiered_run(tiered(metered=True))
    assert times(metered) == times(plain)
    assert (metered.until_s, metered.events) == (plain.until_s, plain.events)
    stopped = tiered_run(tiered(metered=True), stops=(0.3, 1.7, 1.7, 2.0))
    assert times(stopped) == times(plain)
    assert stopped.energy_j == pytest.approx(metered.energy_j)


def test_the_pools_of_a_simulated_fleet_may_differ() -> None:
    fleet = SimulatedFleet(pools=parse_pools("1P2D"), engine=TIERS[0], decode_engine=TIERS[1], slo=SLO)
    assert [engine.spec.name for engine in fleet.engines()] == [TIERS[0], TIERS[1], TIERS[1]]
    assert [fleet.engine_of(role) for role in (Role.PREFILL, Role.DECODE, Role.BOTH)] == [TIERS[0], TIERS[1], TIERS[0]]


def test_the_gateway_is_told_each_pool_s_own_limits() -> None:
    fleet = SimulatedFleet(pools=parse_pools("1P1D"), engine=TIERS[0], decode_engine="h200-llama8b", slo=SLO)
    told = fleet.dispatcher(Policy(), REQUESTS, seed=1).router.fleet
    assert [state.spec.kv_total_blocks for state in told] == [
        ENGINES[name].total_blocks for name in (TIERS[0], "h200-llama8b")
    ]


def test_a_simulated_fleet_runs_one_engine_unless_told_otherwise() -> None:
    fleet = SimulatedFleet(pools=parse_pools("1P1D"), engine=TIERS[0], slo=SLO)
    assert [engine.spec.name for engine in fleet.engines()] == [TIERS[0], TIERS[0]]


def test_pools_that_keep_their_kv_differently_are_refused() -> None:
    with pytest.raises(ValueError, match="must agree on the KV cache's layout"):
        SimulatedFleet(
            pools=parse_pools("1P1D"),
            engine="h100-llama70b-tp4",
            decode_engine="h100-llama70b-tp4-fp8",
            slo=SLO,
        )
