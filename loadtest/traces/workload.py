"""What a fleet is asked to do, for a simulator and for a live client alike.

The rule of this module: a workload is data, a driver is one run of it. A driver has no clock and does no I/O: whoever
runs it says when a request was answered and is told what follows from that. Requests are made once, before the run;
an answer costs one look-up.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from loadtest.traces.sessions import DEFAULT_SERVICE, Service, Session, Step, steps
from loadtest.traces.types import TraceRequest

Arrival = tuple[float, TraceRequest]
"""(seconds since the run began, the request). The time counts, not the request's nominal `arrival_s`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Open-loop requests, sessions in closed loop, or both, each in order of arrival."""

    requests: tuple[TraceRequest, ...] = ()
    sessions: tuple[Session, ...] = ()

    def driver(self, service: Service = DEFAULT_SERVICE) -> "Driver":
        """A fresh run; `service` sets only the nominal arrivals of later turns."""
        return Driver(self, service)

    def flattened(self, service: Service = DEFAULT_SERVICE) -> list[TraceRequest]:
        """All requests in open loop: a turn comes when it would if answers took the recorded or assumed time."""
        return list(self.driver(service).requests)


class Driver:
    """One run of a workload.

    A request that fails may be reported as answered, and its session goes on; if it is not reported, its session ends.
    """

    __slots__ = ("_follows", "_joins", "_starts", "requests")

    requests: Sequence[TraceRequest]
    """Every request of the run by its index, in order of nominal arrival."""

    def __init__(self, workload: Workload, service: Service = DEFAULT_SERVICE) -> None:
        first = len(workload.requests)
        laid_out = _laid_out(workload.sessions, service)
        nominal_s = [request.arrival_s for request in workload.requests] + [step.at_s for step in laid_out]
        order = sorted(range(len(nominal_s)), key=nominal_s.__getitem__)
        self.requests = tuple(
            _renumbered(workload.requests[position], index)
            if position < first
            else _request(laid_out[position - first], index)
            for index, position in enumerate(order)
        )
        index_of = dict(zip(order, range(len(order)), strict=True))
        follows: dict[int, list[tuple[int, float]]] = {}
        self._joins: dict[int, tuple[int, float]] = {}
        waiting: set[int] = set()
        for position, step in enumerate(laid_out, start=first):
            index = index_of[position]
            for before, delay_s in step.after:
                follows.setdefault(index_of[first + before], []).append((index, delay_s))
            if step.after:
                waiting.add(index)
            if len(step.after) > 1:
                self._joins[index] = (len(step.after), 0.0)
        self._follows = {index: tuple(after) for index, after in follows.items()}
        self._starts = tuple(request for request in self.requests if request.index not in waiting)

    def first_arrivals(self) -> Iterator[Arrival]:
        """What arrives whatever becomes of it: open-loop requests and first turns, in order of time."""
        return ((request.arrival_s, request) for request in self._starts)

    def answered(self, request: TraceRequest, at_s: float) -> tuple[Arrival, ...]:
        """What follows from the end of an answer, each at or after `at_s`; mostly nothing or one request.

        An answer that calls sub-agents is followed by the first request of each of them.
        """
        follows = self._follows.get(request.index)
        if follows is None:
            return ()
        if not self._joins:
            return tuple([(at_s + delay_s, self.requests[index]) for index, delay_s in follows])
        return tuple(arrival for index, delay_s in follows if (arrival := self._joined(index, at_s + delay_s)))

    def _joined(self, index: int, ready_s: float) -> Arrival | None:
        """The request, once all that it waits for has been answered; it is due when the last of them lets it."""
        missing, due_s = self._joins.pop(index, (1, 0.0))
        due_s = max(due_s, ready_s)
        if missing == 1:
            return due_s, self.requests[index]
        self._joins[index] = (missing - 1, due_s)
        return None


class OpenLoop:
    """Requests as they are, of which none waits for an answer: a `Driver` would order and number them.

    Args:
        requests: in order of arrival; there need be no end to them.
    """

    def __init__(self, requests: Iterable[TraceRequest]) -> None:
        self._requests = requests

    def first_arrivals(self) -> Iterator[Arrival]:
        """All of them, in order of time."""
        return ((request.arrival_s, request) for request in self._requests)

    def answered(self, request: TraceRequest, at_s: float) -> tuple[Arrival, ...]:  # noqa: ARG002 (a driver's)
        """Nothing follows."""
        return ()


def _laid_out(sessions: Sequence[Session], service: Service) -> list[Step]:
    """The steps of all sessions, each naming what it waits for by position in the whole."""
    laid_out: list[Step] = []
    for session in sessions:
        steps(session, service, into=laid_out)
    return laid_out


def _renumbered(request: TraceRequest, index: int) -> TraceRequest:
    return request if request.index == index else replace(request, index=index)


def _request(step: Step, index: int) -> TraceRequest:
    turn, is_agent = step.turn, step.session is not step.root
    return TraceRequest(
        index=index,
        arrival_s=step.at_s,
        input_tokens=turn.input_tokens,
        output_tokens=turn.output_tokens,
        hash_ids=turn.hash_ids,
        block_tokens=step.session.block_tokens,
        session=step.session.id,
        root=step.root.id if is_agent else None,
        turn=step.number,
        is_visible=step.is_visible,
        is_last=step.is_last,
    )
