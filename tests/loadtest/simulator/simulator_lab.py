"""A small fleet whose steps last a second each, so that times in tests are small whole numbers.

Blocks are four tokens for engines and traces alike. A transfer takes half a second and a quarter more per token.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from loadtest.engine.engine import Engine
from loadtest.engine.types import EngineSnapshot
from loadtest.simulator.flight import Flight
from loadtest.simulator.host import Arrival, Run, ScrapePlan, Simulation
from loadtest.traces.types import TraceRequest
from tests.loadtest.engine.engine_lab import SPEC, SteadyCosts

Route = tuple[int | None, int]
"""The places of a request's prefill engine, if any, and of its decode engine."""


def request(index: int, at_s: float = 0.0, prompt: int = 8, output: int = 1, **more: Any) -> TraceRequest:
    return TraceRequest(
        index=index, arrival_s=at_s, input_tokens=prompt, output_tokens=output, **({"block_tokens": 4} | more)
    )


def lab_engines(count: int, **limits: Any) -> list[Engine]:
    return [Engine(replace(SPEC, **limits), SteadyCosts(), tells_every_token=False) for _ in range(count)]


class ListLoad:
    """Requests at their own times; answers are followed by what is said, after a delay."""

    def __init__(self, requests: Sequence[TraceRequest], follows: Mapping[int, Arrival] | None = None) -> None:
        self._requests = requests
        self._follows = follows or {}
        self.answers: list[tuple[int, float]] = []

    def first_arrivals(self) -> Iterable[Arrival]:
        return [(each.arrival_s, each) for each in self._requests]

    def answered(self, request: TraceRequest, at_s: float) -> Iterable[Arrival]:
        self.answers.append((request.index, at_s))
        if request.index not in self._follows:
            return []
        delay_s, following = self._follows[request.index]
        return [(at_s + delay_s, following)]


class RouteByIndex:
    """Sends each request where the test says, and writes down all that it is told."""

    def __init__(self, routes: Mapping[int, Route], refused: Iterable[int] = ()) -> None:
        self._routes = routes
        self._refused = set(refused)
        self.told: list[tuple[float, str, int]] = []
        """(time, what, request or engine)."""
        self.samples: list[tuple[float, int, EngineSnapshot]] = []

    def arrived(self, flight: Flight, now_s: float) -> None:
        self.told.append((now_s, "arrived", flight.request.index))
        if flight.request.index in self._refused:
            flight.error = "refused: by the test"
            return
        prefill, flight.decode_engine = self._routes[flight.request.index]
        if prefill is not None:
            flight.prefill_engine = prefill

    def prefilled(self, flight: Flight, now_s: float) -> None:
        self.told.append((now_s, "prefilled", flight.request.index))

    def first_token(self, flight: Flight, now_s: float) -> None:
        self.told.append((now_s, "first token", flight.request.index))

    def ended(self, flight: Flight, now_s: float) -> None:
        self.told.append((now_s, "ended", flight.request.index))

    def released(self, now_s: float) -> Sequence[Flight]:
        """Nobody waits."""
        return ()

    def sampled(self, engine: int, snapshot: EngineSnapshot, now_s: float) -> None:
        self.told.append((now_s, "sampled", engine))
        self.samples.append((now_s, engine, snapshot))


def run_routes(
    requests: Sequence[TraceRequest],
    routes: Mapping[int, Route],
    *,
    engines: Sequence[Engine] | None = None,
    scrape: ScrapePlan | None = None,
    until_s: float = float("inf"),
) -> tuple[Run, RouteByIndex]:
    """Open loop on two engines, unless others are given."""
    dispatcher = RouteByIndex(routes)
    simulation = Simulation(engines or lab_engines(2), dispatcher, ListLoad(requests), scrape=scrape)
    return simulation.run(until_s), dispatcher
