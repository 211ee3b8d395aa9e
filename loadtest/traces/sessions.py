"""Sessions: agents whose next request waits for the last answer.

The rule of this module: data only, and times are relative. A session says what it sends and how long its tools or its
user take; when a turn is sent depends on when the one before was answered. Sub-agents are sessions of their own: they
start together when the turn that called them is answered, and the caller's next turn waits for all of them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from loadtest.traces.types import MOONCAKE_BLOCK_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One request of a session."""

    input_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...] = ()
    """Prefix-chained ids of the prompt's blocks, as in `TraceRequest`."""
    think_s: float = 0.0
    """From the answer, or from the end of the last sub-agent, to the next turn: what tools and users take. After the
    last turn of a sub-agent, the time until it reports to its caller."""
    service_s: float | None = None
    """How long the answer took when the session was recorded; None where that is unknown."""
    agents: tuple["Session", ...] = ()
    """Sub-agents that the answer calls; their `start_s` counts from the answer."""
    is_visible: bool = True
    """Whether the answer holds text for the user, and not only a call of tools. Counts for nothing in a sub-agent,
    and in a session's last turn, which is what the user has waited for: see `shows`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A conversation in closed loop, of at least one turn."""

    id: str
    start_s: float
    """Arrival of the first turn, in seconds since the trace began."""
    turns: tuple[Turn, ...]
    block_tokens: int = MOONCAKE_BLOCK_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """How long an answer is assumed to take where closed-loop sessions are laid out in time without a server."""

    ttft_s: float = 0.5
    tpot_s: float = 0.02

    def of(self, turn: Turn) -> float:
        """Seconds from the turn's arrival to the end of its answer: as recorded, else as assumed."""
        return self.ttft_s + self.tpot_s * turn.output_tokens if turn.service_s is None else turn.service_s


DEFAULT_SERVICE = Service()


class Step(NamedTuple):
    """One turn of a session or of its sub-agents, laid out in time."""

    at_s: float
    """Nominal arrival, on the trace's clock."""
    root: Session
    """The session itself; of a sub-agent, at any depth, the one that its user sees."""
    session: Session
    number: int
    """The turn's place in its session, from 0."""
    turn: Turn
    after: tuple[tuple[int, float], ...]
    """The steps whose answers it waits for, by position in the list, each with the delay that follows the answer."""

    @property
    def is_visible(self) -> bool:
        """Whether the user sees text when it is answered; never so of a sub-agent's turn."""
        return self.session is self.root and shows(self.session, self.number)

    @property
    def is_last(self) -> bool:
        """Its session ends with it."""
        return self.number == len(self.session.turns) - 1


def shows(session: Session, number: int) -> bool:
    """Whether a turn of a session that is nobody's sub-agent shows its user text; the last one always does."""
    return number == len(session.turns) - 1 or session.turns[number].is_visible


def steps(session: Session, service: Service = DEFAULT_SERVICE, *, into: list[Step] | None = None) -> list[Step]:
    """All turns with their nominal times and with what each waits for; a step comes after those it waits for.

    With `into` they are appended to that list, and positions count from its beginning.
    """
    laid_out = [] if into is None else into
    _lay_out(session, session, session.start_s, (), service, laid_out)
    return laid_out


def _lay_out(
    root: Session,
    session: Session,
    at_s: float,
    after: tuple[tuple[int, float], ...],
    service: Service,
    into: list[Step],
) -> tuple[int, float]:
    """Appends the session's steps; its last step's position, and when the session ends (its last pause included)."""
    last = len(into)
    for number, turn in enumerate(session.turns):
        last = len(into)
        into.append(Step(at_s, root, session, number, turn, after))
        answered_s = at_s + service.of(turn)
        over_s, after = answered_s, ((last, turn.think_s),)
        if turn.agents:
            joins = []
            for agent in turn.agents:
                called = ((last, agent.start_s),)
                end, end_s = _lay_out(root, agent, answered_s + agent.start_s, called, service, into)
                over_s = max(over_s, end_s)
                joins.append((end, agent.turns[-1].think_s + turn.think_s))
            after = tuple(joins)
        at_s = over_s + turn.think_s
    return last, at_s


def all_turns(session: Session) -> Iterator[Turn]:
    """The turns of a session and of its sub-agents, each turn before the agents that it calls."""
    for turn in session.turns:
        yield turn
        for agent in turn.agents:
            yield from all_turns(agent)
