"""What a run looks like over time: samples of its workers, and where each request was when.

The rule of this module: it only watches. A dispatcher and engines that are watched do what they would do unwatched.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from loadtest.engine.engine import Engine
from loadtest.engine.stretch import CostModel
from loadtest.engine.types import EngineEvent, EngineSnapshot, EngineSpec, TransferFinished
from loadtest.simulator.dispatch import Dispatcher
from loadtest.simulator.flight import NOWHERE, Flight


class SpanKind(StrEnum):
    """What a request did at a worker; each with the wait before it."""

    PREFILL = "prefill"
    """From its arrival to the end of its prefill."""
    TRANSFER = "transfer"
    """From the end of its remote prefill to the end of its KV transfer."""
    DECODE = "decode"


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of a request's time at one worker."""

    worker: int
    """Its place in the fleet."""
    kind: SpanKind
    request_id: str
    began_s: float
    ended_s: float
    """Where the run was stopped before, that time."""
    input_tokens: int
    cached_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSeries:
    """One worker's gauges at the gateway's scrapes."""

    at_s: list[float] = field(default_factory=list)
    running: list[int] = field(default_factory=list)
    """Sequences in the batch."""
    waiting: list[int] = field(default_factory=list)
    kv_used_ratio: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One run; workers are named in the order of the fleet."""

    workers: tuple[str, ...]
    series: tuple[WorkerSeries, ...]
    spans: tuple[Span, ...]
    """In order of the requests' arrival."""


class WatchedEngine(Engine):
    """An engine that remembers when transfers into it ended."""

    def __init__(self, spec: EngineSpec, costs: CostModel) -> None:
        super().__init__(spec, costs, tells_every_token=False)
        self.transfers_s: dict[str, float] = {}
        """By request id."""

    def advance(self, now_s: float) -> list[EngineEvent]:
        """As its base; what it tells is remembered."""
        events = super().advance(now_s)
        for event in events:
            if type(event) is TransferFinished:
                self.transfers_s[event.request_id] = event.at_s
        return events


class Watcher:
    """A dispatcher that passes everything on to another one and remembers it."""

    def __init__(self, inner: Dispatcher, workers: Sequence[str]) -> None:
        self._inner = inner
        self._workers = tuple(workers)
        self._flights: list[Flight] = []
        self._series = tuple(WorkerSeries() for _ in workers)

    def arrived(self, flight: Flight, now_s: float) -> None:
        """Passed on; the flight is remembered."""
        self._flights.append(flight)
        self._inner.arrived(flight, now_s)

    def prefilled(self, flight: Flight, now_s: float) -> None:
        """Passed on: the flight itself says when."""
        self._inner.prefilled(flight, now_s)

    def first_token(self, flight: Flight, now_s: float) -> None:
        """Passed on: the flight itself says when."""
        self._inner.first_token(flight, now_s)

    def ended(self, flight: Flight, now_s: float) -> None:
        """Passed on: the flight itself says when."""
        self._inner.ended(flight, now_s)

    def released(self, now_s: float) -> Sequence[Flight]:
        """Passed on: the flights themselves say where they went."""
        return self._inner.released(now_s)

    def sampled(self, engine: int, snapshot: EngineSnapshot, now_s: float) -> None:
        """Passed on; the sample is remembered."""
        series = self._series[engine]
        series.at_s.append(now_s)
        series.running.append(snapshot.running)
        series.waiting.append(snapshot.waiting)
        series.kv_used_ratio.append(snapshot.kv_used_ratio)
        self._inner.sampled(engine, snapshot, now_s)

    def timeline(self, engines: Sequence[WatchedEngine], until_s: float) -> Timeline:
        """What was seen of a run that ended at `until_s`."""
        spans = [span for flight in self._flights for span in _spans(flight, engines, until_s)]
        return Timeline(workers=self._workers, series=self._series, spans=tuple(spans))


def _spans(flight: Flight, engines: Sequence[WatchedEngine], until_s: float) -> list[Span]:
    if flight.decision is None:
        return []
    ended_s = until_s if flight.ended_s is None else flight.ended_s
    request = flight.request

    def span(worker: int, kind: SpanKind, began_s: float, stop_s: float | None) -> Span:
        return Span(
            worker=worker,
            kind=kind,
            request_id=flight.engine_id,
            began_s=began_s,
            ended_s=ended_s if stop_s is None else stop_s,
            input_tokens=request.input_tokens,
            cached_tokens=flight.cached_tokens,
            output_tokens=request.output_tokens,
        )

    place = flight.decode_engine
    if flight.prefill_engine == NOWHERE:
        first_s = flight.first_token_s
        spans = [span(place, SpanKind.PREFILL, flight.arrived_s, first_s)]
        return spans if first_s is None else [*spans, span(place, SpanKind.DECODE, first_s, None)]
    spans = [span(flight.prefill_engine, SpanKind.PREFILL, flight.arrived_s, flight.prefilled_s)]
    if flight.prefilled_s is None:
        return spans
    # Without a transfer of its own it decodes on what it has: its first token is the next thing that is known.
    there_s = engines[place].transfers_s.get(flight.engine_id, flight.first_token_s)
    spans.append(span(place, SpanKind.TRANSFER, flight.prefilled_s, there_s))
    return spans if there_s is None else [*spans, span(place, SpanKind.DECODE, there_s, None)]
