"""Draws longer workloads from short ones.

The rule of this module: whole conversations are drawn, never single requests, so that the sharing of prefixes and the
times within a conversation are those of the original. A conversation that is drawn twice gets blocks of its own each
time; blocks that belong to no single conversation, such as a system prompt's, stay shared.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np

from loadtest.traces.block_ids import end_id, moved_request, moved_session, mover, numbered
from loadtest.traces.retime import start_rate_rps
from loadtest.traces.sessions import Session
from loadtest.traces.types import TraceRequest
from loadtest.traces.workload import Workload

COMMON_RATIO = 0.01
COMMON_LEAST = 20
"""A block that more requests hold than this share of all, and than this number, belongs to no single conversation."""

One = TypeVar("One", TraceRequest, Session)


def resampled(workload: Workload, horizon_s: float, *, seed: int, window_s: float = 60.0) -> Workload:
    """A workload of `horizon_s` seconds drawn from this one, over and over again if it is shorter.

    Drawn are whole conversations: the requests that share a prefix, with the times between them, or a session. For each
    window of the workload as many are drawn, with replacement, as began in that window, and begin when those did. So
    the rate over time, the gaps within conversations and their sharing stay, and which of them meet is new. Requests
    end at the horizon; sessions begin before it and run on.
    """
    rng = np.random.default_rng(seed)
    period_s = _period_s(workload)
    stride = end_id(workload)
    common = _common_ids(workload)
    requests: list[TraceRequest] = []
    sessions: list[Session] = []
    drawn_groups = _drawn(_groups(workload.requests, common), rng, horizon_s, period_s, window_s)
    for number, (group, shift_s) in enumerate(drawn_groups):
        move = mover(number * stride, common)
        requests += [
            replace(moved_request(one, move, f"{number}"), arrival_s=one.arrival_s + shift_s) for one in group.members
        ]
    drawn_sessions = _drawn(_each(workload.sessions), rng, horizon_s, period_s, window_s)
    for number, (session, shift_s) in enumerate(drawn_sessions):
        (one,) = session.members
        moved = moved_session(one, mover(number * stride, common), f"{number}/{one.id}")
        sessions.append(replace(moved, start_s=one.start_s + shift_s))
    requests = sorted((one for one in requests if one.arrival_s < horizon_s), key=lambda one: one.arrival_s)
    sessions.sort(key=lambda one: one.start_s)
    return Workload(requests=numbered(requests), sessions=tuple(sessions))


@dataclass(frozen=True, slots=True)
class _Group(Generic[One]):
    """What is drawn together."""

    start_s: float
    members: tuple[One, ...]


def _groups(requests: Sequence[TraceRequest], common: frozenset[int]) -> list[_Group[TraceRequest]]:
    """The requests by conversation: by session where they have one, else by the first block that is not common."""
    by_key: dict[object, list[TraceRequest]] = {}
    for one in requests:
        own = next((block for block in one.hash_ids if block not in common), None)
        key = one.conversation or (own if own is not None else ("alone", one.index))
        by_key.setdefault(key, []).append(one)
    return [_Group(members[0].arrival_s, tuple(members)) for members in by_key.values()]


def _each(sessions: Sequence[Session]) -> list[_Group[Session]]:
    return [_Group(one.start_s, (one,)) for one in sessions]


def _drawn(
    groups: Sequence[_Group[One]],
    rng: np.random.Generator,
    horizon_s: float,
    period_s: float,
    window_s: float,
) -> Iterator[tuple[_Group[One], float]]:
    """(group, shift of its times) for every group that begins before the horizon."""
    began: dict[int, list[_Group[One]]] = {}
    for group in groups:
        began.setdefault(int(group.start_s // window_s), []).append(group)
    shift_s = 0.0
    while shift_s < horizon_s:
        for _, here in sorted(began.items()):
            for slot, pick in zip(here, rng.integers(0, len(here), len(here)).tolist(), strict=True):
                if slot.start_s + shift_s < horizon_s:
                    yield here[pick], slot.start_s - here[pick].start_s + shift_s
        shift_s += period_s


def _period_s(workload: Workload) -> float:
    """How long the workload is: to its last first arrival, and a mean gap."""
    rate_rps = start_rate_rps(workload)
    return (len(workload.requests) + len(workload.sessions) + 1) / rate_rps


def _common_ids(workload: Workload) -> frozenset[int]:
    """Blocks that belong to no single conversation; of sessions, those with which more than one begins."""
    held = Counter(block for one in workload.requests for block in one.hash_ids)
    least = max(COMMON_LEAST, COMMON_RATIO * len(workload.requests))
    begun = Counter(block for one in workload.sessions for block in _first_blocks(one))
    by_requests = {block for block, times in held.items() if times > least}
    return frozenset(by_requests | {block for block, times in begun.items() if times > 1})


def _first_blocks(session: Session) -> set[int]:
    """The blocks with which the session and its sub-agents begin."""
    agents = (agent for turn in session.turns for agent in turn.agents)
    return set(session.turns[0].hash_ids).union(*(agent.turns[0].hash_ids for agent in agents))
