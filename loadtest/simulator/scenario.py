"""What is simulated: a workload, a fleet and a policy, and the run that follows from them and a seed.

The rule of this module: a scenario is data and holds everything that a run depends on; equal scenarios with equal seeds
give equal runs, byte for byte.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from gateway.core.policy import Policy
from gateway.core.types import SloTarget
from gateway.policies import build_policy
from gateway.settings import load_settings
from gateway.settings_routing import RoutingSettings
from loadtest.client.records import Record
from loadtest.engine.engine import Engine
from loadtest.engine.presets import load_engine
from loadtest.fleet.pools import Pools
from loadtest.simulator.dispatch import CoreDispatcher
from loadtest.simulator.fleet import Member, core_dispatcher
from loadtest.simulator.host import ScrapePlan, Simulation
from loadtest.simulator.lengths import Lengths
from loadtest.simulator.records import to_records
from loadtest.traces.loaders import load_workload
from loadtest.traces.workload import Workload

NAMED_POLICIES = tuple(RoutingSettings.model_fields["policy"].annotation.__args__)  # type: ignore[union-attr]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One simulation but for its seed."""

    trace: str
    """As `load_workload` takes it."""
    pools: Pools
    engine: str
    policy: str = "dynamo"
    """A path policy's name, or the directory of a policy bundle."""
    settings: Sequence[str] = ()
    """Further gateway settings that make the policy, as `section.field=value`."""
    slo: SloTarget = field(default_factory=lambda: SloTarget(name="run", ttft_s=2.0, tpot_s=0.04))
    requests: int | None = None
    rate_scale: float = 1.0
    scrape: ScrapePlan = field(default_factory=ScrapePlan)
    until_s: float = float("inf")
    run_id: str | None = None
    """Of the live run that is simulated: the core breaks ties by request id."""
    lengths: Lengths = Lengths.LIMIT
    """What the gateway is told of the answers' lengths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """One run."""

    seed: int
    records: list[Record]
    """In order of arrival."""
    simulated_s: float
    events: int
    wall_s: float
    """What the run took, without loading the trace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """The parts of one run; once it is over they can be asked what is left in them."""

    engines: Sequence[Engine]
    dispatcher: CoreDispatcher
    simulation: Simulation


def simulate(scenario: Scenario, *, seed: int = 0) -> Simulated:
    """Load the workload and run it on a fleet of its own.

    Raises:
        TraceError: the trace cannot be read.
        SettingsError: the policy cannot be built.
        UnknownEngine: no such engine.
    """
    workload = load_workload(scenario.trace, limit=scenario.requests, seed=seed, rate_scale=scenario.rate_scale)
    return run_workload(scenario, workload, seed=seed)


def run_workload(scenario: Scenario, workload: Workload, *, seed: int) -> Simulated:
    """Run a workload that was loaded before, whatever the scenario's trace says."""
    assembly = assemble(scenario, workload, seed=seed)
    began = time.perf_counter()
    run = assembly.simulation.run(scenario.until_s)
    wall_s = time.perf_counter() - began
    return Simulated(seed=seed, records=to_records(run), simulated_s=run.until_s, events=run.events, wall_s=wall_s)


def assemble(scenario: Scenario, workload: Workload, *, seed: int) -> Assembly:
    """What a run consists of, before it begins.

    Raises:
        SettingsError: the policy cannot be built.
        UnknownEngine: no such engine.
    """
    spec, costs = load_engine(scenario.engine)
    members = [Member(name, role, spec) for name, role in scenario.pools.roles()]
    dispatcher = core_dispatcher(
        _policy(scenario),
        members,
        workload,
        scenario.slo,
        seed=seed,
        run_id=scenario.run_id,
        lengths=scenario.lengths,
    )
    engines = [Engine(spec, costs, tells_every_token=False) for _ in members]
    simulation = Simulation(engines, dispatcher, workload.driver(), scrape=scenario.scrape)
    return Assembly(engines=engines, dispatcher=dispatcher, simulation=simulation)


def _policy(scenario: Scenario) -> Policy:
    overrides = [f"routing.policy={scenario.policy}"]
    if scenario.policy not in NAMED_POLICIES:
        overrides = ["routing.policy=learned", f"routing.bundle={scenario.policy}"]
    return build_policy(load_settings(overrides=[*overrides, *scenario.settings]))
