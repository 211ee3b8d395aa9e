"""A fleet in virtual time: engines, arrivals and scrapes in the order of their times.

The rule of this module: it moves events and decides nothing. At one instant arrivals come first, then engines in the
order of the fleet, then scrapes; so a run is the same whenever it is repeated.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Protocol

from loadtest.engine.engine import Engine
from loadtest.engine.stepping import NEVER_S
from loadtest.engine.types import EngineEvent, EngineSnapshot, FinishReason, RequestFinished, TokenMade
from loadtest.simulator.collector import uncollected
from loadtest.simulator.dispatch import Dispatcher
from loadtest.simulator.flight import NOWHERE, Flight, PromptShape, leg
from loadtest.traces.types import TraceRequest

Arrival = tuple[float, TraceRequest]
Item = tuple[float, int, int, TraceRequest | None]
"""When, a rank, a serial number, and what arrives, if anything does."""

ARRIVAL = -2
FOLLOWING = -1
SCRAPE = 0
HEAR = 1
"""Ranks at one instant; engines, by their place, come after the arrivals and before the scrapes."""
NOTHING: Item = (NEVER_S, SCRAPE, 0, None)
"""What an empty agenda has first."""


class Load(Protocol):
    """What comes when; see `loadtest.traces.workload.Driver`."""

    def first_arrivals(self) -> Iterable[Arrival]:
        """What arrives by itself, in order of time."""

    def answered(self, request: TraceRequest, at_s: float) -> Iterable[Arrival]:
        """What follows from an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrapePlan:
    """How the gateway learns of its workers' metrics."""

    interval_s: float = 1.0
    age_s: float = 0.0
    """How old a scrape is when the gateway gets it."""


@dataclass(frozen=True, slots=True)
class Run:
    """What a simulation gave."""

    flights: list[Flight]
    """In order of arrival; those without `ended_s` were under way at the end."""
    until_s: float
    """The time of the last event; where the run was stopped with work left, the time that it was to stop at."""
    events: int
    """How often virtual time stood still for something."""
    energy_j: tuple[float, ...] = ()
    """What each engine's GPUs drew from 0 to `until_s`, as modelled; empty unless all engines have a power model."""


class Simulation:
    """One run of a load on a fleet."""

    def __init__(
        self, engines: Sequence[Engine], dispatcher: Dispatcher, load: Load, *, scrape: ScrapePlan | None = None
    ) -> None:
        self._engines = engines
        self._dispatcher = dispatcher
        self._load = load
        self._scrape = scrape
        self._shapes = [
            PromptShape(engine.spec.block_tokens, is_kept=engine.spec.caches_prefixes) for engine in engines
        ]
        self._due_s = [NEVER_S] * len(engines)
        self._agenda: list[Item] = []
        self._serial = 0
        self._flights: list[Flight] = []
        self._by_id: dict[str, Flight] = {}
        self._arrivals = iter(load.first_arrivals())
        self._scraped: deque[tuple[float, list[EngineSnapshot]]] = deque()
        self._pending = 0
        self._events = 0
        self._reached_s = 0.0
        """The end of the last run: one in which nothing is left to happen ends no earlier."""
        self._pull_arrival()
        if scrape is not None:
            self._note(scrape.interval_s, SCRAPE)

    def run(self, until_s: float = float("inf")) -> Run:
        """Let everything happen up to `until_s`, or until nothing is left to happen; called again, it goes on."""
        with uncollected():
            return self._run(until_s)

    def _run(self, until_s: float) -> Run:
        agenda, due_s, now_s = self._agenda, self._due_s, 0.0
        while True:
            # The first of some dozens of numbers is found sooner than a heap of them is kept.
            engine_s = min(due_s)
            head_s, rank, _, _ = agenda[0] if agenda else NOTHING
            is_engine = engine_s < head_s or (engine_s == head_s and rank >= SCRAPE)
            at_s = engine_s if is_engine else head_s
            if at_s > until_s or at_s == NEVER_S:
                break
            if is_engine:
                self._advance(due_s.index(engine_s), at_s)
            elif not self._do(heappop(agenda)):
                continue
            now_s = at_s
            self._events += 1
        stopped = at_s != NEVER_S and (self._pending or self._by_id)
        ended_s = until_s if stopped else now_s
        self._reached_s = max(self._reached_s, ended_s)
        return Run(self._flights, ended_s, self._events, self._energy_j())

    def _energy_j(self) -> tuple[float, ...]:
        if any(engine.power is None for engine in self._engines):
            return ()
        spent_j = (engine.energy_j(self._reached_s) for engine in self._engines)
        return tuple(energy_j for energy_j in spent_j if energy_j is not None)

    def _do(self, item: Item) -> bool:
        """What the agenda says; False where there is nothing to scrape for any more."""
        at_s, rank, _, request = item
        if request is not None:
            self._arrive(request, at_s, first=rank == ARRIVAL)
        elif rank == HEAR:
            self._hear_scrape(at_s)
        elif self._pending or self._by_id:
            self._take_scrape(at_s)
        else:
            return False
        return True

    def _note(self, at_s: float, rank: int, request: TraceRequest | None = None) -> None:
        self._serial += 1
        heappush(self._agenda, (at_s, rank, self._serial, request))

    def _pull_arrival(self) -> None:
        """Only the next arrival of an open loop is on the agenda."""
        arrival = next(self._arrivals, None)
        if arrival is not None:
            self._pending += 1
            self._note(arrival[0], ARRIVAL, arrival[1])

    def _follow(self, request: TraceRequest, now_s: float) -> None:
        for at_s, following in self._load.answered(request, now_s):
            self._pending += 1
            self._note(at_s, FOLLOWING, following)

    def _arrive(self, request: TraceRequest, now_s: float, *, first: bool) -> None:
        self._pending -= 1
        if first:
            self._pull_arrival()
        flight = Flight(request, now_s)
        self._flights.append(flight)
        self._dispatcher.arrived(flight, now_s)
        if flight.error is not None:
            flight.ended_s = now_s
            self._follow(request, now_s)
            return
        self._by_id[flight.engine_id] = flight
        if flight.decode_engine != NOWHERE or flight.prefill_engine != NOWHERE:
            self._set_off(flight, now_s)

    def _set_off(self, flight: Flight, now_s: float) -> None:
        if flight.prefill_engine != NOWHERE:
            self._add_leg(flight, flight.prefill_engine, now_s, prefill=True)
        else:
            self._add_leg(flight, flight.decode_engine, now_s, prefill=False)

    def _add_leg(self, flight: Flight, place: int, now_s: float, *, prefill: bool) -> None:
        remote = not prefill and flight.prefill_engine != NOWHERE
        source = self._engines[flight.prefill_engine].link if remote else None
        self._engines[place].add(leg(flight, self._shapes[place], prefill=prefill), now_s, source=source)
        self._look_at(place)

    def _look_at(self, place: int) -> None:
        self._due_s[place] = self._engines[place].due_s()

    def _advance(self, place: int, now_s: float) -> None:
        engine = self._engines[place]
        for event in engine.advance(now_s):
            self._handle(event)
        self._due_s[place] = engine.due_s()

    def _handle(self, event: EngineEvent) -> None:
        flight = self._by_id[event.request_id]
        if type(event) is TokenMade:
            if not flight.awaits_prefill:
                flight.first_token_s = event.at_s
                self._dispatcher.first_token(flight, event.at_s)
        elif type(event) is RequestFinished:
            self._end_leg(flight, event)
        else:
            source = flight.prefill_engine
            if self._engines[source].release_held(flight.engine_id, event.at_s):
                self._look_at(source)

    def _end_leg(self, flight: Flight, event: RequestFinished) -> None:
        if event.reason is FinishReason.REJECTED:
            flight.error = "http_400: the prompt does not fit the KV cache"
            self._end(flight, event.at_s)
        elif flight.awaits_prefill:
            flight.prefilled_s = event.at_s
            flight.cached_tokens = event.cached_tokens
            self._dispatcher.prefilled(flight, event.at_s)
            self._add_leg(flight, flight.decode_engine, event.at_s, prefill=False)
        else:
            if flight.prefill_engine == NOWHERE:
                flight.cached_tokens = event.cached_tokens
            self._end(flight, event.at_s)

    def _end(self, flight: Flight, now_s: float) -> None:
        flight.ended_s = now_s
        del self._by_id[flight.engine_id]
        self._dispatcher.ended(flight, now_s)
        self._follow(flight.request, now_s)
        self._release(now_s)

    def _release(self, now_s: float) -> None:
        """Those that waited for room go where they were sent."""
        for flight in self._dispatcher.released(now_s):
            if flight.error is None:
                self._set_off(flight, now_s)
            else:
                flight.ended_s = now_s
                del self._by_id[flight.engine_id]
                self._follow(flight.request, now_s)

    def _hear_scrape(self, now_s: float) -> None:
        at_s, snapshots = self._scraped.popleft()
        for place, snapshot in enumerate(snapshots):
            self._dispatcher.sampled(place, snapshot, at_s)
        self._release(now_s)

    def _take_scrape(self, now_s: float) -> None:
        assert self._scrape is not None
        self._scraped.append((now_s, [engine.snapshot(now_s) for engine in self._engines]))
        self._note(now_s + self._scrape.age_s, HEAR)
        self._note(now_s + self._scrape.interval_s, SCRAPE)
