"""One arm on one workload, and arms beside each other over seeds.

The rule of this module: an arm's figures follow from its plan, the workload and a seed. All arms of a seed get the same
workload; differences are taken seed by seed, and their intervals are Student's over the seeds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import process_time

import numpy as np

from gateway.core.conversation.rules import ConversationRules, Pinning
from gateway.core.policy import Policy
from gateway.core.types import SloDefaults, SloTarget
from loadtest.engine.engine import Engine
from loadtest.engine.presets import load_engine
from loadtest.fleet.pools import Pools
from loadtest.learning.simulated import outcomes
from loadtest.scale.host import ALL_SEEING, CrowdedSimulation, SharedScrape
from loadtest.scale.loads import LoadPlan
from loadtest.scale.replicas import ReplicaPlan, Replicas
from loadtest.scale.workload import ScaleMix, history_blocks, scale_workload
from loadtest.simulator.fleet import Member
from loadtest.simulator.flight import NOWHERE
from loadtest.traces.types import MOONCAKE_BLOCK_TOKENS
from loadtest.traces.workload import Workload

SLO = SloTarget(name="default", ttft_s=4.0, tpot_s=0.04)
SAMPLE_MAX_AGE_S = 15.0
"""Longer than a replica takes for all workers."""
WARM_UP_SHARE, TAIL_SHARE = 0.25, 0.05
"""Of the time of a run, left out at its beginning, when caches are cold, and at its end, when load falls."""
STUDENT_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
"""97.5 % quantiles of Student's distribution by number of seeds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What is served, and by what."""

    pools: Pools
    engine: str = "h100-llama70b-tp4"
    mix: ScaleMix = field(default_factory=ScaleMix)
    rate_rps: float
    requests: int

    def workload(self, seed: int) -> Workload:
        """Its requests."""
        return scale_workload(self.mix, self.requests, self.rate_rps, seed=seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """Gateways under comparison."""

    name: str
    plan: ReplicaPlan
    scrape: SharedScrape = field(default_factory=SharedScrape)
    pinning: Pinning = Pinning.HASH


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What an arm came to on one seed; latencies in seconds."""

    attained_ratio: float
    ttft_p50_s: float
    ttft_p90_s: float
    tpot_p50_s: float
    tpot_p90_s: float
    hit_ratio: float
    """Of prompt tokens, those that were found in the cache of the worker that prefilled."""
    remote_ratio: float
    decision_p50_us: float
    failed: int
    requests: int
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Difference:
    """Of two arms' attainment, in points, with its 95 % interval; without one where there is one seed."""

    points: float
    half_width: float | None


def all_seeing() -> Arm:
    """One router that hears everything at once."""
    return Arm(name="one, all-seeing", plan=ReplicaPlan(), scrape=ALL_SEEING)


def loads_shared(count: int, plan: LoadPlan | None = None) -> Arm:
    """So many routers without parts, each of which is told what the others have in flight."""
    return Arm(name=f"{count}, loads shared", plan=ReplicaPlan(count=count, loads=plan or LoadPlan()))


def arms(replicas: Sequence[int]) -> list[Arm]:
    """One router that sees everything, then so many with a part each; the last count also in three other ways."""
    parts = [Arm(name=f"{count}, own parts", plan=ReplicaPlan(count=count, has_parts=True)) for count in replicas]
    last = replicas[-1]
    shared = ReplicaPlan(count=last, has_parts=True, pins_after_s=0.05)
    return [
        all_seeing(),
        *parts,
        Arm(name=f"{last}, own parts, shared pins", plan=shared, pinning=Pinning.LOAD),
        loads_shared(last),
        Arm(name=f"{last}, no parts", plan=ReplicaPlan(count=last)),
    ]


def chosen(compared: Sequence[Arm], only: str) -> list[Arm]:
    """The first arm and, of all others, those with one of some words in their names; all of them without words.

    Args:
        compared: the one that all others are held against comes first.
        only: words with commas between them.

    Raises:
        ValueError: no other arm has one.
    """
    words = [word.strip() for word in only.split(",") if word.strip()]
    found = [arm for arm in compared[1:] if not words or any(word in arm.name for word in words)]
    if not found:
        raise ValueError(f"no arm has {only!r} in its name; there are {', '.join(arm.name for arm in compared[1:])}")
    return [compared[0], *found]


def serve(place: Place, arm: Arm, workload: Workload, *, seed: int) -> Figures:
    """Serve a workload on a fresh fleet."""
    spec, costs = load_engine(place.engine)
    members = [Member(name, role, spec) for name, role in place.pools.roles()]
    policy = Policy(
        slo=SloDefaults(default=SLO),
        conversation=ConversationRules(pinning=arm.pinning),
        index_blocks_per_worker=spec.total_blocks * spec.block_tokens // MOONCAKE_BLOCK_TOKENS,
        sample_max_age_s=SAMPLE_MAX_AGE_S,
    )
    driver = workload.driver()
    replicas = Replicas(
        policy,
        [member.spec() for member in members],
        plan=arm.plan,
        history=history_blocks(driver.requests),
        seed=seed,
    )
    engines = [Engine(spec, costs, tells_every_token=False) for _ in members]
    simulation = CrowdedSimulation(engines, replicas, driver, scrape=arm.scrape, seed=seed)
    began_s = process_time()
    flights = simulation.run().flights
    cpu_s = process_time() - began_s
    last_s = driver.requests[-1].arrival_s
    judged = [one for one in flights if last_s * WARM_UP_SHARE <= one.arrived_s <= last_s * (1.0 - TAIL_SHARE)]
    ttft_s, tpot_s, met = outcomes(judged, SLO)
    tpot_s = tpot_s[~np.isnan(tpot_s)]
    return Figures(
        attained_ratio=float(met.mean()),
        ttft_p50_s=float(np.quantile(ttft_s, 0.5)),
        ttft_p90_s=float(np.quantile(ttft_s, 0.9)),
        tpot_p50_s=float(np.quantile(tpot_s, 0.5)),
        tpot_p90_s=float(np.quantile(tpot_s, 0.9)),
        hit_ratio=sum(one.cached_tokens for one in judged) / sum(one.request.input_tokens for one in judged),
        remote_ratio=sum(one.prefill_engine != NOWHERE for one in judged) / len(judged),
        decision_p50_us=float(np.percentile(replicas.decision_ns, 50)) / 1e3,
        failed=sum(one.error is not None for one in judged),
        requests=len(judged),
        cpu_s=cpu_s,
    )


def difference(own: Sequence[Figures], other: Sequence[Figures]) -> Difference:
    """How much more of the requests the first arm served well than the second, in points."""
    points = [100.0 * (a.attained_ratio - b.attained_ratio) for a, b in zip(own, other, strict=True)]
    mean = float(np.mean(points))
    if len(points) < min(STUDENT_95):
        return Difference(mean, None)
    quantile = STUDENT_95[min(len(points), max(STUDENT_95))]
    return Difference(mean, quantile * float(np.std(points, ddof=1)) / len(points) ** 0.5)
