"""What the admin application shows of several processes, put together.

The rule of this module: bodies of the admin application in, one such body out.
"""

import heapq
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import parse_qs

import msgspec

from gateway.api.admin import SHOWN_DECISIONS

ADDED: Final = ("inflight_requests", "inflight_tokens")
"""Of a worker: each process has some of it in flight."""


class _Ended(msgspec.Struct):
    duration_s: float


class _Times(msgspec.Struct):
    arrived_at_s: float
    outcome: _Ended


class _Decisions(msgspec.Struct):
    data: list[msgspec.Raw]


def workers_of(bodies: Sequence[bytes]) -> bytes:
    """The workers as the first process sees them, with what all have in flight there."""
    first, *others = [msgspec.json.decode(body, type=list[dict[str, Any]]) for body in bodies]
    for others_workers in others:
        seen = {worker["id"]: worker for worker in others_workers}
        for worker in first:
            for name in ADDED:
                worker[name] += seen.get(worker["id"], {}).get(name, 0)
    return msgspec.json.encode(first)


def decisions_of(bodies: Sequence[bytes], target: bytes) -> bytes:
    """The newest decisions of all processes, newest first.

    Args:
        bodies: of each process, in the same order and as many as asked for.
        target: what was asked for, with its query.
    """
    query = parse_qs(target.partition(b"?")[2].decode("latin-1"))
    limit = int(query.get("limit", [str(SHOWN_DECISIONS)])[0])
    lists = [msgspec.json.decode(body, type=_Decisions).data for body in bodies]
    newest = heapq.merge(*lists, key=_ended_at_s, reverse=True)
    return b'{"data":[' + b",".join(bytes(line) for line, _ in zip(newest, range(limit), strict=False)) + b"]}"


def _ended_at_s(record: msgspec.Raw) -> float:
    times = msgspec.json.decode(record, type=_Times)
    return times.arrived_at_s + times.outcome.duration_s
