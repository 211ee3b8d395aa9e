"""Gateway replicas behind a balancer, as one dispatcher.

The rule of this module: a replica is told what happens to its own requests and what it scrapes, and nothing of the
others' requests; of the others' loads and conversations only where they are shared, and then late. The balancer deals
requests out in turn, so the turns of a conversation reach any replica.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from time import thread_time_ns

from gateway.core.events import LoadsElsewhere, WorkerSampled
from gateway.core.policy import Policy
from gateway.core.pools import Pools
from gateway.core.types import RequestFacts, Role, WorkerSample, WorkerSpec
from loadtest.engine.types import EngineSnapshot
from loadtest.scale.loads import LoadPlan, SharedLoads
from loadtest.scale.pins import SharedPins
from loadtest.simulator.dispatch import CoreDispatcher
from loadtest.simulator.fleet import MODEL
from loadtest.simulator.flight import Flight
from loadtest.simulator.lengths import Lengths
from loadtest.traces.types import TraceRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPlan:
    """How many gateways there are, and what they know of each other."""

    count: int = 1
    has_parts: bool = False
    """Each prefers its own part of the fleet."""
    pins_after_s: float | None = None
    """So long after a replica has placed a turn, all others find where its conversation lives; None: they never do."""
    loads: LoadPlan | None = None
    """How they tell each other what they have in flight; None: they do not."""


class Replicas:
    """Several cores, each of which decides for its share of the requests.

    Args:
        policy: of all of them.
        workers: the fleet.
        plan: how many, and what they share.
        history: by request the leading blocks that stand before the last answer, as a gateway reads it from messages.
        seed: of the routers' generators.
    """

    def __init__(
        self,
        policy: Policy,
        workers: Sequence[WorkerSpec],
        *,
        plan: ReplicaPlan,
        history: Mapping[int, int],
        seed: int,
    ) -> None:
        count = plan.count
        self.cores = [
            _ReplicaCore(
                replace(policy, replicas=count, replica=number if plan.has_parts else None),
                workers,
                history,
                seed=seed,
                name=f"replica-{number}",
            )
            for number in range(count)
        ]
        self._worker_ids = [worker.worker_id for worker in workers]
        self._own_places = [self._part(number, plan) for number in range(count)]
        self._next = 0
        self._core_of: dict[str, _ReplicaCore] = {}
        self._pins = None if plan.pins_after_s is None else SharedPins(plan.pins_after_s)
        self.loads = None if plan.loads is None else SharedLoads(plan.loads, count)
        self.decision_ns: list[int] = []
        """What each arrival took its replica, of CPU time."""

    def arrived(self, flight: Flight, now_s: float) -> None:
        """The balancer's next replica decides."""
        core = self._core_of[flight.engine_id] = self.cores[self._next]
        self._next = (self._next + 1) % len(self.cores)
        if self._pins is not None:
            self._pins.tell(core.router, flight, now_s)
        began_ns = thread_time_ns()
        core.arrived(flight, now_s)
        self.decision_ns.append(thread_time_ns() - began_ns)
        self._note(core, flight, now_s)

    def prefilled(self, flight: Flight, now_s: float) -> None:
        """Its replica hears."""
        self._core_of[flight.engine_id].prefilled(flight, now_s)

    def first_token(self, flight: Flight, now_s: float) -> None:
        """Its replica hears."""
        self._core_of[flight.engine_id].first_token(flight, now_s)

    def ended(self, flight: Flight, now_s: float) -> None:
        """Its replica hears."""
        core = self._core_of.pop(flight.engine_id)
        core.ended(flight, now_s)
        self._note(core, flight, now_s)

    def released(self, now_s: float) -> Sequence[Flight]:
        """Those that waited at any replica."""
        return [flight for core in self.cores for flight in core.released(now_s)]

    def sampled(self, engine: int, snapshot: EngineSnapshot, now_s: float) -> None:
        """Nobody hears of all workers at once; see `hear`."""
        raise AssertionError(f"engine {engine} was sampled for all at once at {now_s:g} s: {snapshot}")

    def hear(self, replica: int, place: int, sample: WorkerSample, now_s: float) -> None:
        """One replica has scraped one worker."""
        event = WorkerSampled(at_s=now_s, worker_id=self._worker_ids[place], sample=sample)
        self.cores[replica].router.observe(event)

    def own_places(self, replica: int) -> Sequence[int]:
        """The workers of a replica's own part, by their place in the fleet."""
        return self._own_places[replica]

    def exchange_loads(self, replica: int, now_s: float) -> LoadsElsewhere:
        """One replica tells the others what it has in flight; the answer is on its way."""
        assert self.loads is not None
        return self.loads.exchange(replica, self.cores[replica].router.ledger, now_s)

    def hear_loads(self, replica: int, told: LoadsElsewhere) -> None:
        """The answer has arrived."""
        self.cores[replica].router.observe(told)

    def tick(self, replica: int, now_s: float) -> None:
        """Time passes at a replica."""
        self.cores[replica].router.tick(now_s)

    def _part(self, replica: int, plan: ReplicaPlan) -> list[int]:
        if not plan.has_parts:
            return []
        pools = Pools(self.cores[replica].router.fleet, self.cores[replica].router.health)
        own = {
            worker_id
            for role in (Role.PREFILL, Role.DECODE)
            for worker_id in pools.all_routable(MODEL, role).own(replica, plan.count)
        }
        return [place for place, worker_id in enumerate(self._worker_ids) if worker_id in own]

    def _note(self, core: CoreDispatcher, flight: Flight, now_s: float) -> None:
        if self._pins is not None:
            self._pins.note(core.router, flight, now_s)


class _ReplicaCore(CoreDispatcher):
    """A gateway that is told how much of a request stands before its last answer."""

    def __init__(
        self, policy: Policy, workers: Sequence[WorkerSpec], history: Mapping[int, int], *, seed: int, name: str
    ) -> None:
        super().__init__(policy, list(workers), model=MODEL, seed=seed, lengths=Lengths.ROLLING, instance=name)
        self._history = history

    def _facts(self, request: TraceRequest) -> RequestFacts:
        facts = super()._facts(request)
        blocks = self._history.get(request.index)
        if not blocks or facts.conversation is None:
            return facts
        return replace(facts, conversation=replace(facts.conversation, history_blocks=blocks))
