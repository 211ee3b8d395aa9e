"""Clients that leave, and what became of their requests at the workers.

The rule of this module: pure. A departure is put beside the calls of its mark; whatever of them had not ended when the
client left must end within a bound, by being answered or by losing its connection.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from loadtest.plane.scripted import Call
from loadtest.plane.state import GatewayState
from loadtest.replicas.checks import Check

ABORT_WITHIN_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Departure:
    """A client that left; times by `perf_counter`."""

    mark: str
    left_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """What became of one departure's request."""

    mark: str
    legs: str
    """The roles that it had reached, `none` where it had reached no worker."""
    abort_s: float | None
    """How long after the client the last of its calls ended; None where none was under way any more."""


def fates(departures: Sequence[Departure], calls: Mapping[str, Sequence[Call]]) -> list[Fate]:
    """One of each departure."""
    return [_fate(one, calls.get(one.mark, ())) for one in departures]


def _fate(departure: Departure, calls: Sequence[Call]) -> Fate:
    ends = [math.inf if call.ended_s is None else call.ended_s for call in calls]
    late = [end_s - departure.left_s for end_s in ends if end_s > departure.left_s]
    legs = "+".join(call.role for call in calls) or "none"
    return Fate(mark=departure.mark, legs=legs, abort_s=max(late, default=None))


def cancel_checks(
    found: Sequence[Fate], *, leaving: int, state: GatewayState, answered_right: int, asked: int
) -> list[Check]:
    """All that must hold once they have left.

    Args:
        found: of all who left.
        leaving: how many were to leave.
        state: the gateway's, at rest.
        answered_right: of the requests afterwards.
        asked: how many those were.
    """
    under_way = [one.abort_s for one in found if one.abort_s is not None]
    late = [abort_s for abort_s in under_way if abort_s > ABORT_WITHIN_S]
    others = {name: count for name, count in state.outcomes.items() if name not in ("ok", "cancelled") and count}
    return [
        Check(
            what="clients that left",
            measured=f"{len(found)}, {len(under_way)} of them with a call under way",
            required=f"{leaving}, most under way",
            holds=len(found) == leaving and 2 * len(under_way) > leaving,
        ),
        Check(
            what=f"calls that went on for more than {ABORT_WITHIN_S * 1e3:.0f} ms",
            measured=f"{len(late)}",
            required="0",
            holds=not late,
        ),
        Check(
            what="outcomes that the gateway counted beside ok and cancelled",
            measured=f"{others or 'none'}, {state.outcomes.get('cancelled', 0)} cancelled",
            required="none",
            holds=not others and state.outcomes.get("cancelled", 0) <= leaving,
        ),
        Check(what="left in ledger and pool", measured=state.words, required="0 each", holds=state.is_empty),
        Check(
            what="requests answered right afterwards",
            measured=f"{answered_right} of {asked}",
            required="all",
            holds=answered_right == asked,
        ),
    ]


def distribution(found: Sequence[Fate]) -> list[str]:
    """How long calls went on, and where departures found them."""
    under_way_ms = [1e3 * one.abort_s for one in found if one.abort_s is not None]
    where = Counter(one.legs for one in found)
    lines = ["reached: " + ", ".join(f"{legs} {count}" for legs, count in where.most_common())]
    if under_way_ms:
        p50, p90, p99, most = (float(value) for value in np.percentile(under_way_ms, (50, 90, 99, 100)))
        lines.append(f"aborted after, ms: P50 {p50:.2f}, P90 {p90:.2f}, P99 {p99:.2f}, most {most:.2f}")
    return lines
