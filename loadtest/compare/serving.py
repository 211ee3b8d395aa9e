"""One run of one arm, and its figures by request.

The rule of this module: a run serves all of its requests from an empty fleet to an empty fleet, and follows from its
task alone. A request that failed was late without end.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gateway.core.policy import Policy
from gateway.core.types import Path
from loadtest.compare.arms import Arm
from loadtest.compare.cells import Place
from loadtest.compare.traffic import Traffic
from loadtest.compare.uncorrected import stop_correcting
from loadtest.fleet.pools import parse_pools
from loadtest.learning.simulated import SimulatedFleet, outcomes
from loadtest.simulator.dispatch import CoreDispatcher
from loadtest.simulator.flight import Flight
from loadtest.simulator.host import ScrapePlan, Simulation
from loadtest.simulator.lengths import Lengths
from loadtest.traces.types import TraceRequest
from loadtest.traces.workload import Workload
from policy_store.learn.prices import Score, scored

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What the gateway knows."""

    lengths: Lengths = Lengths.ROLLING
    scrape: ScrapePlan = field(default_factory=ScrapePlan)
    corrects: bool = True
    """Whether forecasts are corrected by what was seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedFleet(SimulatedFleet):
    """A fleet whose gateway may be kept from correcting its forecasts."""

    corrects: bool = True

    def dispatcher(self, policy: Policy, requests: Sequence[TraceRequest], *, seed: int) -> CoreDispatcher:
        """A gateway for this fleet."""
        # By name: a class with slots is made twice, and `super` without arguments finds the first.
        core = SimulatedFleet.dispatcher(self, policy, requests, seed=seed)
        if not self.corrects:
            stop_correcting(core.router)
        return core


def fleet_of(place: Place, conditions: Conditions) -> ComparedFleet:
    """The place's fleet."""
    return ComparedFleet(
        pools=parse_pools(place.pools),
        engine=place.engine,
        slo=place.slo,
        scrape=conditions.scrape,
        lengths=conditions.lengths,
        corrects=conditions.corrects,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A run by request, in order of arrival."""

    ttft_s: Floats
    """Infinite where there was no answer."""
    tpot_s: Floats
    """NaN for answers of one token; infinite where there was no answer."""
    met: NDArray[np.bool_]
    local: NDArray[np.bool_]
    """Whether its prefill ran on its decode worker."""

    @property
    def attained_ratio(self) -> float:
        """The share of requests that met the SLO."""
        return float(self.met.mean())

    def quantile(self, name: str, share: float) -> float:
        """Of `ttft_s` or `tpot_s`: the smallest value that so many requests do not exceed; in seconds."""
        values = getattr(self, name)
        known = values[~np.isnan(values)]
        return float(np.quantile(known, share, method="inverted_cdf")) if known.size else 0.0

    def score(self) -> Score:
        """As learners take it."""
        return scored(self.ttft_s, self.tpot_s, self.met)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One run."""

    place: Place
    traffic: Traffic
    arm: Arm
    conditions: Conditions = field(default_factory=Conditions)
    first: int | None = None
    """Serve only so many requests; None serves all."""

    @property
    def key(self) -> str:
        """All that the run depends on but code and files."""
        traffic = self.traffic
        return repr(
            (
                (self.place.pools, self.place.engine, self.place.slo),
                (traffic.sources(), traffic.half, traffic.requests, traffic.scale, traffic.seed),
                self.arm.key,
                self.conditions,
                self.first,
            )
        )

    def run(self) -> Served:
        """Serve."""
        return serve(
            fleet_of(self.place, self.conditions), self.arm, self.traffic.load()[: self.first], seed=self.traffic.seed
        )


def serve(fleet: SimulatedFleet, arm: Arm, requests: tuple[TraceRequest, ...], *, seed: int) -> Served:
    """Serve these requests on a fresh fleet."""
    dispatcher = fleet.dispatcher(arm.policy(), requests, seed=seed)
    driver = Workload(requests=requests).driver()
    flights = Simulation(fleet.engines(), dispatcher, driver, scrape=fleet.scrape).run().flights
    return _served(flights, fleet)


def _served(flights: list[Flight], fleet: SimulatedFleet) -> Served:
    ttft_s, tpot_s, met = outcomes(flights, fleet.slo)
    local = np.array([one.decision is not None and one.decision.path is Path.LOCAL for one in flights])
    return Served(ttft_s=ttft_s, tpot_s=tpot_s, met=met, local=local)
