"""Traffic without an end, from a trace with one.

The rule of this module: every lap has the trace's times and lengths, and prompts that no cache has seen: what a lap
shares, it shares with itself. Otherwise the second lap would be answered from the first one's prefixes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from loadtest.traces.types import TraceError, TraceRequest


def laps(requests: Sequence[TraceRequest]) -> Iterator[TraceRequest]:
    """The requests over and over, in open loop; indices and times go on, ids of prompts and sessions are new each lap.

    From the last arrival of a lap to the first of the next it takes the trace's mean gap.

    Raises:
        TraceError: there are fewer than two requests, or all arrive at once.
    """
    if len(requests) < 2 or requests[-1].arrival_s <= requests[0].arrival_s:
        raise TraceError("traffic without an end needs a trace whose requests arrive one after the other")
    first_s, last_s = requests[0].arrival_s, requests[-1].arrival_s
    period_s = (last_s - first_s) * len(requests) / (len(requests) - 1)
    ids = 1 + max((max(request.hash_ids, default=0) for request in requests), default=0)
    lap = 0
    while True:
        for place, request in enumerate(requests):
            yield _in_lap(request, lap, index=lap * len(requests) + place, ids=ids, shift_s=lap * period_s - first_s)
        lap += 1


def _in_lap(request: TraceRequest, lap: int, *, index: int, ids: int, shift_s: float) -> TraceRequest:
    return replace(
        request,
        index=index,
        arrival_s=request.arrival_s + shift_s,
        hash_ids=tuple(each + lap * ids for each in request.hash_ids) if lap else request.hash_ids,
        session=f"{request.session}/{lap}" if lap and request.session else request.session,
        root=f"{request.root}/{lap}" if lap and request.root else request.root,
    )
