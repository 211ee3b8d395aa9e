"""One trace through a live emulated fleet and through the simulator.

The rule of this module: both get the same arrivals in open loop, the same request ids and sessions, the same policy
and as many scrapes per engine second; nothing is compared here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import uvloop

from loadtest.client.measure import measure
from loadtest.client.options import LoadOptions
from loadtest.client.records import Record
from loadtest.fleet.fleet import FleetSpec, running_fleet
from loadtest.fleet.pools import Pools
from loadtest.simulator.host import ScrapePlan
from loadtest.simulator.scenario import Scenario, run_workload
from loadtest.traces.loaders import load_trace
from loadtest.traces.types import TraceRequest
from loadtest.traces.workload import Workload

RUN_ID = "live"
SESSION_HEADER = "x-session-id"
SCRAPE_INTERVAL_S = 1.0
"""The gateway's, in real seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What is run twice."""

    trace: str
    pools: Pools
    engine: str
    policy: str
    """A path policy's name."""
    requests: int
    rate_scale: float
    speed: float
    """Engine seconds per second of the live run."""
    seed: int = 0

    def load(self) -> list[TraceRequest]:
        """The trace's requests, in open loop.

        Raises:
            TraceError: it cannot be read.
        """
        return load_trace(self.trace, limit=self.requests, seed=self.seed, rate_scale=self.rate_scale)

    def scenario(self) -> Scenario:
        """The live run as the simulator has it."""
        return Scenario(
            trace=self.trace,
            pools=self.pools,
            engine=self.engine,
            policy=self.policy,
            requests=self.requests,
            rate_scale=self.rate_scale,
            scrape=ScrapePlan(interval_s=SCRAPE_INTERVAL_S * self.speed),
            run_id=RUN_ID,
        )

    def gateway_settings(self) -> Mapping[str, Any]:
        """The live gateway's settings."""
        return {
            "routing": {"policy": self.policy, "conversation": {"headers": [SESSION_HEADER]}, "seed": self.seed},
            "fleet": {"scrape_interval_s": SCRAPE_INTERVAL_S},
        }


def run_live(setup: Setup, trace: list[TraceRequest]) -> list[Record]:
    """The trace over HTTP, on a fleet of its own; times are engine seconds.

    Nothing warms it up: the core would learn from what the simulator is not asked.

    Raises:
        FleetError: a part of the fleet did not start.
    """
    spec = FleetSpec(pools=setup.pools, engine=setup.engine, speed=setup.speed, settings=setup.gateway_settings())
    with running_fleet(spec) as fleet:
        options = LoadOptions(
            url=fleet.openai_url,
            model=spec.model,
            run_id=RUN_ID,
            seed=setup.seed,
            speed=setup.speed,
            session_header=SESSION_HEADER,
        )
        return uvloop.run(measure(options, trace, setup.scenario().slo)).records


def run_simulated(setup: Setup, trace: list[TraceRequest]) -> list[Record]:
    """The same trace in virtual time."""
    return run_workload(setup.scenario(), Workload(requests=tuple(trace)), seed=setup.seed).records
