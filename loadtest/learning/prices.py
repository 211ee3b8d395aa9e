"""Trying price weights on a simulated fleet, several at a time.

The rule of this module: every try serves the same requests on a fresh fleet from the same seed, so that nothing but the
weights tells two tries apart.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import joblib

from gateway.core.engine_costs import EngineCosts, EnginePower
from gateway.core.forecast import FleetCosts
from gateway.core.path.base import PathPolicy
from gateway.core.path.price import PriceWeights
from gateway.core.path.priced import JointPolicy, PricedPolicy
from gateway.core.path.rules import DynamoMode, DynamoRule
from gateway.core.placement import Placement
from gateway.core.policy import DEFAULT_DECODE_PLACEMENT, DEFAULT_PREFILL_PLACEMENT, Policy
from loadtest.engine.presets import load_engine, power_model
from loadtest.learning.simulated import SimulatedFleet, outcomes
from loadtest.simulator.flight import Flight
from loadtest.simulator.host import Simulation
from loadtest.traces.loaders import load_workload
from loadtest.traces.types import TraceRequest
from loadtest.traces.workload import Workload
from policy_store.costs.engine import engine_costs
from policy_store.learn.prices import Score, scored

BASELINE = DynamoRule(mode=DynamoMode.ISL_OR_LOAD, prefill_busy_threshold=1.0)
"""What a priced policy asks where prices are missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """A part of a trace."""

    trace: str
    """As `load_workload` takes it."""
    rate_scale: float = 1.0
    first: int = 0
    requests: int | None = None
    """From the `first` on; None takes all that follow."""
    seed: int = 0

    def load(self) -> tuple[TraceRequest, ...]:
        """Its requests in open loop, the first at 0 s."""
        return _load(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placements:
    """How workers are chosen where a policy does not."""

    prefill: Placement = DEFAULT_PREFILL_PLACEMENT
    decode: Placement = DEFAULT_DECODE_PLACEMENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Traffic for a fleet."""

    fleet: SimulatedFleet
    traffic: Traffic
    placements: Placements = field(default_factory=Placements)

    def costs(self) -> FleetCosts:
        """What the fleet's engines take."""
        return fleet_costs(self.fleet.engine)

    def serve(self, path: PathPolicy) -> list[Flight]:
        """All requests by one policy, from an empty fleet to an empty fleet."""
        requests = self.traffic.load()
        policy = Policy(
            path=path,
            costs=self.costs(),
            prefill_placement=self.placements.prefill,
            decode_placement=self.placements.decode,
        )
        dispatcher = self.fleet.dispatcher(policy, requests, seed=self.traffic.seed)
        load = Workload(requests=requests).driver()
        return Simulation(self.fleet.engines(), dispatcher, load, scrape=self.fleet.scrape).run().flights

    def score(self, path: PathPolicy) -> Score:
        """How the policy did."""
        return scored(*outcomes(self.serve(path), self.fleet.slo))


def try_weights(
    trial: Trial, weights: Sequence[PriceWeights], *, jointly: bool = True, jobs: int = 1
) -> Sequence[Score]:
    """Each weight's score, over `jobs` processes."""
    kind = JointPolicy if jointly else PricedPolicy
    tasks = (joblib.delayed(trial.score)(kind(weights=each, baseline=BASELINE)) for each in weights)
    scores: Sequence[Score] = joblib.Parallel(n_jobs=jobs)(tasks)
    return scores


def fleet_costs(engine: str, decode_engine: str | None = None, *, has_power: bool = False) -> FleetCosts:
    """The prices of presets or engine files, by pool.

    Args:
        engine: of both pools, or of the prefill pool.
        decode_engine: of the decode pool, where that is another.
        has_power: whether the price of energy can be told too; only presets say what they draw.
    """
    prefill = _costs(engine, has_power=has_power)
    return FleetCosts(prefill=prefill, decode=_costs(decode_engine, has_power=has_power) if decode_engine else prefill)


def _costs(engine: str, *, has_power: bool) -> EngineCosts:
    costs = engine_costs(*load_engine(engine))
    if not has_power:
        return costs
    power = power_model(engine)
    drawn = EnginePower(idle_w=power.idle_w, decode_w=power.decode_w, prefill_w=power.prefill_w)
    return replace(costs, power=drawn)


@lru_cache(maxsize=4)
def _load(traffic: Traffic) -> tuple[TraceRequest, ...]:
    workload = load_workload(traffic.trace, seed=traffic.seed, rate_scale=traffic.rate_scale)
    flat = workload.flattened()
    end = None if traffic.requests is None else traffic.first + traffic.requests
    part = flat[traffic.first : end]
    begin_s = part[0].arrival_s
    return tuple(_moved(request, index, begin_s) for index, request in enumerate(part))


def _moved(request: TraceRequest, index: int, by_s: float) -> TraceRequest:
    return replace(request, index=index, arrival_s=request.arrival_s - by_s)
