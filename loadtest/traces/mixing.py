"""Puts workloads together.

The rule of this module: the parts of a mix share time and nothing else; sessions and block ids stay their own.
"""

from collections.abc import Mapping

from loadtest.traces.block_ids import end_id, moved_request, moved_session, mover, numbered
from loadtest.traces.retime import at_rate, start_rate_rps
from loadtest.traces.sessions import Session
from loadtest.traces.types import TraceRequest
from loadtest.traces.workload import Workload


def mixed(
    parts: Mapping[str, Workload], *, shares: Mapping[str, float] | None = None, rate_rps: float | None = None
) -> Workload:
    """All parts at once, each under its name: sessions are called `NAME/...` and block ids are the part's own.

    With `shares` each part is sped up or slowed down to its share of the first arrivals, at `rate_rps` in all, by
    default the sum of the parts' own rates. Parts end when they end: see `resampled` to draw them equally long.
    """
    if shares is not None:
        total_rps = rate_rps if rate_rps is not None else sum(map(start_rate_rps, parts.values()))
        whole = sum(shares[name] for name in parts)
        parts = {name: at_rate(part, total_rps * shares[name] / whole) for name, part in parts.items()}
    elif rate_rps is not None:
        factor = rate_rps / sum(map(start_rate_rps, parts.values()))
        parts = {name: at_rate(part, start_rate_rps(part) * factor) for name, part in parts.items()}
    requests: list[TraceRequest] = []
    sessions: list[Session] = []
    first_id = 0
    for name, part in parts.items():
        move = mover(first_id)
        requests += [moved_request(one, move, name) for one in part.requests]
        sessions += [moved_session(one, move, f"{name}/{one.id}") for one in part.sessions]
        first_id += end_id(part)
    requests.sort(key=lambda one: one.arrival_s)
    sessions.sort(key=lambda one: one.start_s)
    return Workload(requests=numbered(requests), sessions=tuple(sessions))
