"""A large fleet in virtual time, heard by many gateway replicas.

The rule of this module: as in `loadtest.simulator.host`, events come in the order of their times and nothing is decided
here; but the next engine is found on a heap, and each replica scrapes a share of the fleet and hears it late. Replicas
that share their loads ask for them at times of their own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from random import Random

from gateway.core.types import WorkerSample
from loadtest.engine.engine import Engine
from loadtest.engine.stepping import NEVER_S
from loadtest.scale.replicas import Replicas
from loadtest.simulator.host import HEAR, NOTHING, SCRAPE, Load, Run, Simulation


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedScrape:
    """How replicas learn of their workers' metrics."""

    interval_s: float = 1.0
    """Between two rounds."""
    rounds: int = 10
    """In how many rounds a replica has scraped every worker once: 1 is all of them every time."""
    max_age_s: float = 2.0
    """A round is heard between 0 and so many seconds after it was taken, evenly spread."""


ALL_SEEING = SharedScrape(interval_s=0.25, rounds=1, max_age_s=0.0)
"""Fresh metrics of every worker, four times a second."""


class CrowdedSimulation(Simulation):
    """One run of a load on a large fleet behind replicas."""

    def __init__(
        self, engines: Sequence[Engine], replicas: Replicas, load: Load, *, scrape: SharedScrape, seed: int
    ) -> None:
        self._heap: list[tuple[float, int]] = []
        self._replicas = replicas
        self._shared = scrape
        self._rng = Random(seed)  # noqa: S311 (not a secret)
        self._round = 0
        self._due: list[tuple[float, int, Callable[[float], None]]] = []
        self._made = 0
        super().__init__(engines, replicas, load)
        self._note(scrape.interval_s, SCRAPE)
        if replicas.loads is not None:
            for replica in range(len(replicas.cores)):
                first_s = Random(f"{seed} {replica}").random() * replicas.loads.plan.interval_s  # noqa: S311 (no secret)
                self._later(first_s, partial(self._exchange, replica))

    def _run(self, until_s: float) -> Run:
        agenda, heap, due_s, now_s = self._agenda, self._heap, self._due_s, 0.0
        while True:
            while heap and due_s[heap[0][1]] != heap[0][0]:
                heappop(heap)
            engine_s, place = heap[0] if heap else (NEVER_S, -1)
            head_s, rank, _, _ = agenda[0] if agenda else NOTHING
            is_engine = engine_s < head_s or (engine_s == head_s and rank >= SCRAPE)
            at_s = engine_s if is_engine else head_s
            if at_s > until_s or at_s == NEVER_S:
                break
            if is_engine:
                heappop(heap)
                self._advance(place, at_s)
            elif not self._do(heappop(agenda)):
                continue
            now_s = at_s
            self._events += 1
        self._reached_s = max(self._reached_s, now_s)
        return Run(self._flights, now_s, self._events)

    def _look_at(self, place: int) -> None:
        due_s = self._due_s[place] = self._engines[place].due_s()
        if due_s != NEVER_S:
            heappush(self._heap, (due_s, place))

    def _advance(self, place: int, now_s: float) -> None:
        for event in self._engines[place].advance(now_s):
            self._handle(event)
        self._look_at(place)

    def _take_scrape(self, now_s: float) -> None:
        """Every worker is looked at once, and each replica is told of its share when its round has come."""
        scrape, replicas = self._shared, self._replicas
        samples = [_sample(engine, now_s) for engine in self._engines]
        for replica in range(len(replicas.cores)):
            heard_s = now_s + self._rng.random() * scrape.max_age_s
            self._later(heard_s, partial(self._hear_samples, replica, self._round + replica, samples))
        self._round += 1
        self._note(now_s + scrape.interval_s, SCRAPE)

    def _later(self, at_s: float, what: Callable[[float], None]) -> None:
        self._made += 1
        heappush(self._due, (at_s, self._made, what))
        self._note(at_s, HEAR)

    def _hear_scrape(self, now_s: float) -> None:
        due_s, _, what = heappop(self._due)
        assert due_s == now_s
        what(now_s)

    def _exchange(self, replica: int, now_s: float) -> None:
        """A replica tells of its loads and asks for the others'; it hears of them, and asks again, later."""
        replicas = self._replicas
        assert replicas.loads is not None
        if not (self._pending or self._by_id):
            return
        told = replicas.exchange_loads(replica, now_s)
        self._later(told.at_s, lambda _: replicas.hear_loads(replica, told))
        self._later(now_s + replicas.loads.plan.interval_s, partial(self._exchange, replica))

    def _hear_samples(self, replica: int, turn: int, samples: list[WorkerSample], now_s: float) -> None:
        rounds = self._shared.rounds
        places = dict.fromkeys(self._replicas.own_places(replica))
        places.update(dict.fromkeys(range(turn % rounds, len(samples), rounds)))
        for place in places:
            self._replicas.hear(replica, place, samples[place], now_s)
        self._replicas.tick(replica, now_s)
        self._release(now_s)


def _sample(engine: Engine, now_s: float) -> WorkerSample:
    snapshot = engine.snapshot(now_s)
    return WorkerSample(
        at_s=now_s, running=snapshot.running, waiting=snapshot.waiting, kv_used_ratio=snapshot.kv_used_ratio
    )
