"""The simulator as a learning environment: one run that goes on while its policy changes.

The rule of this module: the learner sees what a gateway's decision log would show, and the loads that the decision saw;
nothing of the engines. Equal traffic, policies and seeds give equal rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from random import Random

import numpy as np
from numpy.typing import NDArray

from gateway.core.path.base import PathPolicy, PathQuestion
from gateway.core.path.priced import JointPolicy
from gateway.core.policy import Policy
from gateway.core.slo import attained
from gateway.core.step_cost import CostTable
from gateway.core.types import Decision, OutcomeKind, PathChoice, Role, SloTarget
from loadtest.engine.engine import Engine
from loadtest.engine.presets import load_engine, power_model
from loadtest.engine.types import EngineSnapshot, EngineSpec
from loadtest.fleet.pools import Pools
from loadtest.learning.traffic import laps
from loadtest.simulator.dispatch import CoreDispatcher
from loadtest.simulator.fleet import Member, core_dispatcher
from loadtest.simulator.flight import Flight
from loadtest.simulator.host import ScrapePlan, Simulation
from loadtest.simulator.lengths import Lengths
from loadtest.traces.types import TraceRequest
from loadtest.traces.workload import OpenLoop, Workload
from policy_store.learn.environment import ServedRow


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedFleet:
    """What serves."""

    pools: Pools
    engine: str
    slo: SloTarget
    scrape: ScrapePlan = field(default_factory=ScrapePlan)
    lengths: Lengths = Lengths.LIMIT
    """What the gateway is told of the answers' lengths."""
    decode_engine: str | None = None
    """That of the decode pool, which must keep its KV as the other does; None means the same as the prefill pool's."""
    prefill_caches: bool = True
    """Whether prefill workers keep what they have computed for later prompts."""
    kv_share: float = 1.0
    """Of the engines' KV caches: what is left beside other tenants of the memory."""
    has_power: bool = False
    """Whether energy is accounted for; only presets can."""

    def __post_init__(self) -> None:
        if self.decode_engine is None:
            return
        prefill, decode = load_engine(self.engine)[0], load_engine(self.decode_engine)[0]
        if (prefill.kv_bytes_per_token, prefill.block_tokens) != (decode.kv_bytes_per_token, decode.block_tokens):
            raise ValueError("the engines of a fleet must agree on the KV cache's layout, as KV moves between them")

    def engine_of(self, role: Role) -> str:
        """What workers of this role run."""
        return self.decode_engine if role is Role.DECODE and self.decode_engine is not None else self.engine

    def dispatcher(self, policy: Policy, requests: Sequence[TraceRequest], *, seed: int) -> CoreDispatcher:
        """A gateway for this fleet, whose prefix index is bounded for such requests."""
        members = [Member(name, role, self._loaded(role)[0]) for name, role in self.pools.roles()]
        workload = Workload(requests=tuple(requests))
        return core_dispatcher(policy, members, workload, self.slo, seed=seed, lengths=self.lengths)

    def engines(self) -> list[Engine]:
        """Fresh engines, in the order of the fleet."""
        roles = [role for _, role in self.pools.roles()]
        power = {role: power_model(self.engine_of(role)) if self.has_power else None for role in roles}
        return [Engine(*self._loaded(role), tells_every_token=False, power=power[role]) for role in roles]

    def _loaded(self, role: Role) -> tuple[EngineSpec, CostTable]:
        spec, costs = load_engine(self.engine_of(role))
        caches = self.prefill_caches or role is not Role.PREFILL
        return replace(spec, total_blocks=int(self.kv_share * spec.total_blocks), caches_prefixes=caches), costs


Floats = NDArray[np.float64]


def outcomes(flights: Sequence[Flight], slo: SloTarget) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """TTFT and TPOT in seconds and whether the SLO was met, flight by flight.

    Both latencies are infinite where there was no answer; TPOT is NaN for answers of one token.
    """
    ok = np.array([one.error is None and one.ttft_s is not None for one in flights])
    ttft_s = np.array([np.nan if one.ttft_s is None else one.ttft_s for one in flights])
    tpot_s = np.array([np.nan if one.tpot_s is None else one.tpot_s for one in flights])
    ttft_s[~ok] = tpot_s[~ok] = np.inf
    met = ok.copy()
    if slo.ttft_s is not None:
        met &= ttft_s <= slo.ttft_s
    if slo.tpot_s is not None:
        met &= ~(tpot_s > slo.tpot_s)
    return ttft_s, tpot_s, met


class SimulatedEnvironment:
    """Serves a trace over and over, in open loop; caches, queues and the gateway's books stay from call to call.

    Args:
        fleet: what serves.
        requests: the trace, in order of arrival; see `loadtest.learning.traffic.laps`.
        seed: of the router's generator.
        policy: everything of the gateway's policy but the path.
    """

    def __init__(
        self, fleet: SimulatedFleet, requests: Sequence[TraceRequest], *, seed: int, policy: Policy | None = None
    ) -> None:
        self._keeper = RowKeeper(fleet.dispatcher(policy or Policy(), requests, seed=seed))
        self._load = OpenLoop(laps(requests))
        self._times = (request.arrival_s for request in laps(requests))
        self._timed = 0
        self._simulation = Simulation(fleet.engines(), self._keeper, self._load, scrape=fleet.scrape)

    @property
    def served(self) -> int:
        """Requests routed so far."""
        return self._keeper.arrivals

    def serve(self, policy: PathPolicy, requests: int) -> list[ServedRow]:
        """See `Environment`; requests that arrive at the very time of the last one are served with it."""
        self._keeper.adopt(policy)
        missing = self.served + requests - self._timed
        if missing > 0:
            *_, last_s = islice(self._times, missing)
            self._timed += missing
            # The run would keep every request that it ever had.
            self._simulation.run(last_s).flights.clear()
        return self._keeper.take()


class RowKeeper:
    """A core's dispatcher that writes down what each request found and what came of it."""

    def __init__(self, core: CoreDispatcher) -> None:
        self._core = core
        self._witness = Witness(core.router.policy.path)
        self._found: dict[str, tuple[int, PathQuestion | None]] = {}
        """Of requests under way: their order, and what the path policy was asked."""
        self._rows: list[ServedRow] = []
        self.arrivals = 0

    def adopt(self, path: PathPolicy) -> None:
        """Route by another path policy from now on."""
        self._witness = Witness(path)
        # One that chooses the workers too is known by its type, and is asked something else: its rows have no loads.
        asked = path if isinstance(path, JointPolicy) else self._witness
        self._core.router.adopt(replace(self._core.router.policy, path=asked))

    def take(self) -> list[ServedRow]:
        """The rows of requests that ended since the last call, in order of arrival."""
        rows, self._rows = self._rows, []
        return sorted(rows, key=lambda row: row.order)

    def arrived(self, flight: Flight, now_s: float) -> None:
        """Let the core decide, and keep what it decided on."""
        self._witness.question = None
        self._core.arrived(flight, now_s)
        if flight.decision is not None:
            self._found[flight.engine_id] = (self.arrivals, self._witness.question)
        self.arrivals += 1

    def released(self, now_s: float) -> Sequence[Flight]:
        """Learning is of requests, not of conversations: the core keeps none of them waiting."""
        assert not self._core.router.waiting, now_s
        return ()

    def prefilled(self, flight: Flight, now_s: float) -> None:
        """Tell the core."""
        self._core.prefilled(flight, now_s)

    def first_token(self, flight: Flight, now_s: float) -> None:
        """Tell the core."""
        self._core.first_token(flight, now_s)

    def ended(self, flight: Flight, now_s: float) -> None:
        """Tell the core, and make the row."""
        self._core.ended(flight, now_s)
        if flight.decision is not None:
            order, question = self._found.pop(flight.engine_id)
            self._rows.append(_row(flight, flight.decision, order, question, now_s))

    def sampled(self, engine: int, snapshot: EngineSnapshot, now_s: float) -> None:
        """Tell the core."""
        self._core.sampled(engine, snapshot, now_s)


class Witness:
    """A path policy that remembers what it was last asked; it answers as the one that it stands for."""

    def __init__(self, path: PathPolicy) -> None:
        self._path = path
        self.question: PathQuestion | None = None
        """None where an eligibility rule decided, and the policy was not asked."""

    @property
    def name(self) -> str:
        """That of the policy."""
        return self._path.name

    def choose(self, question: PathQuestion, rng: Random) -> PathChoice:
        """What the policy chooses."""
        self.question = question
        return self._path.choose(question, rng)


def _row(flight: Flight, decision: Decision, order: int, question: PathQuestion | None, now_s: float) -> ServedRow:
    kind = OutcomeKind.OK if flight.error is None else OutcomeKind.UPSTREAM_ERROR
    return ServedRow(
        order=order,
        features=decision.features,
        prefill_backlog_tokens=None if question is None else question.prefill.prefill_tokens,
        decode_requests=None if question is None else question.decode.inflight_requests,
        path=decision.path,
        reason=decision.reason,
        cell=decision.cluster,
        propensity=decision.propensity,
        ttft_s=flight.ttft_s,
        tpot_s=flight.tpot_s,
        ok=kind is OutcomeKind.OK,
        attained=attained(
            decision.slo,
            kind=kind,
            duration_s=now_s - flight.arrived_s,
            ttft_s=flight.ttft_s,
            tpot_s=flight.tpot_s,
            output_tokens=flight.request.output_tokens,
        ),
    )
