"""Block ids of whole workloads.

The rule of this module: what shares a prefix goes on sharing it, and what does not never begins to.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count

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


def moved_request(one: TraceRequest, move: Move, name: str) -> TraceRequest:
    """The request with its ids moved; its sessions, if it has any, are called `name`/... ."""
    session, root = (None if old is None else f"{name}/{old}" for old in (one.session, one.root))
    return replace(one, hash_ids=move(one.hash_ids), session=session, root=root)


def moved_session(one: Session, move: Move, name: str) -> Session:
    """The session under a new name, it and its sub-agents with their ids moved."""
    numbers = count(1)  # of all its sub-agents, so that no two have one name
    return replace(one, id=name, turns=tuple(_moved_turn(turn, move, name, numbers) for turn in one.turns))


def _moved_turn(turn: Turn, move: Move, name: str, numbers: Iterator[int]) -> Turn:
    agents = tuple(moved_session(agent, move, f"{name}/{next(numbers)}") for agent in turn.agents)
    return replace(turn, hash_ids=move(turn.hash_ids), agents=agents)


def numbered(requests: Sequence[TraceRequest]) -> tuple[TraceRequest, ...]:
    """The requests with their positions as indices."""
    return tuple(replace(one, index=index) for index, one in enumerate(requests))
