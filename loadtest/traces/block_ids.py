"""Block ids of whole workloads.

The rule of this module: what shares a prefix goes on sharing it, and what does not never begins to.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from loadtest.traces.sessions import Session, Turn, all_turns
from loadtest.traces.types import TraceRequest
from loadtest.traces.workload import Workload

Ids = tuple[int, ...]
Move = Callable[[Ids], Ids]


def end_id(workload: Workload) -> int:
    """One more than the workload's highest block id."""
    of_requests = (max(one.hash_ids, default=-1) for one in workload.requests)
    of_sessions = (max(turn.hash_ids, default=-1) for one in workload.sessions for turn in all_turns(one))
    return 1 + max(max(of_requests, default=-1), max(of_sessions, default=-1))


def mover(offset: int, common: frozenset[int] = frozenset()) -> Move:
    """Moves ids by `offset`, but for those in `common`."""
    if not offset:
        return lambda ids: ids
    return lambda ids: tuple([block if block in common else block + offset for block in ids])


def moved_request(one: TraceRequest, move: Move, session: str) -> TraceRequest:
    """The request with its ids moved; its session, if it has one, is called `session`."""
    return replace(one, hash_ids=move(one.hash_ids), session=session if one.session is not None else None)


def moved_session(one: Session, move: Move, name: str) -> Session:
    """The session under a new name, it and its sub-agents with their ids moved."""
    return replace(one, id=name, turns=tuple(_moved_turn(turn, move, name) for turn in one.turns))


def _moved_turn(turn: Turn, move: Move, name: str) -> Turn:
    agents = tuple(moved_session(agent, move, f"{name}/{n}") for n, agent in enumerate(turn.agents, start=1))
    return replace(turn, hash_ids=move(turn.hash_ids), agents=agents)


def numbered(requests: Sequence[TraceRequest]) -> tuple[TraceRequest, ...]:
    """The requests with their positions as indices."""
    return tuple(replace(one, index=index) for index, one in enumerate(requests))
