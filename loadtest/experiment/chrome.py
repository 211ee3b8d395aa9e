"""A run as a trace for chrome://tracing and Perfetto.

The rule of this module: a process is a worker, a thread is one lane of it, on which requests do not overlap; an arrow
is a KV transfer, from the end of the remote prefill to its destination. Times are microseconds, as the format says
(Trace Event Format: docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU).
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

import msgspec

from loadtest.experiment.timeline import Span, SpanKind, Timeline

US_PER_S = 1e6
INSIDE_US = 1.0
"""An arrow starts so long before its span's end, because it belongs to the span that holds its time."""
FIRST_LANE = 1

Event = dict[str, Any]


def write_trace(path: Path, timeline: Timeline) -> None:
    """Write the trace as JSON."""
    events = list(trace_events(timeline))
    path.write_bytes(msgspec.json.encode({"displayTimeUnit": "ms", "traceEvents": events}))


def trace_events(timeline: Timeline) -> Iterator[Event]:
    """Names, then counters of queue, batch and cache, then spans and arrows."""
    for worker, name in enumerate(timeline.workers):
        yield {"ph": "M", "pid": worker, "name": "process_name", "args": {"name": name}}
        yield {"ph": "M", "pid": worker, "name": "process_sort_index", "args": {"sort_index": worker}}
    for worker, series in enumerate(timeline.series):
        for at_s, running, waiting, used in zip(
            series.at_s, series.running, series.waiting, series.kv_used_ratio, strict=True
        ):
            at = {"ph": "C", "pid": worker, "ts": at_s * US_PER_S}
            yield {**at, "name": "requests", "args": {"batch": running, "queue": waiting}}
            yield {**at, "name": "KV cache in use, %", "args": {"used": 100.0 * used}}
    lanes = lanes_of(timeline.spans)
    for span, lane in zip(timeline.spans, lanes, strict=True):
        yield _span_event(span, lane)
    yield from _arrows(timeline.spans, lanes)


def lanes_of(spans: Sequence[Span]) -> list[int]:
    """A lane for every span, the lowest of its worker that is free then."""
    lanes = [0] * len(spans)
    free: dict[int, list[int]] = {}
    busy: dict[int, list[tuple[float, int]]] = {}
    used: dict[int, int] = {}
    for place in sorted(range(len(spans)), key=lambda place: spans[place].began_s):
        span = spans[place]
        own_free, own_busy = free.setdefault(span.worker, []), busy.setdefault(span.worker, [])
        while own_busy and own_busy[0][0] <= span.began_s:
            heappush(own_free, heappop(own_busy)[1])
        if own_free:
            lanes[place] = heappop(own_free)
        else:
            lanes[place] = used.get(span.worker, FIRST_LANE)
            used[span.worker] = lanes[place] + 1
        heappush(own_busy, (span.ended_s, lanes[place]))
    return lanes


def _span_event(span: Span, lane: int) -> Event:
    details = asdict(span)
    return {
        "ph": "X",
        "pid": span.worker,
        "tid": lane,
        "ts": span.began_s * US_PER_S,
        "dur": (span.ended_s - span.began_s) * US_PER_S,
        "name": f"{span.kind} {span.request_id}",
        "cat": span.kind,
        "args": {name: details[name] for name in ("request_id", "input_tokens", "cached_tokens", "output_tokens")},
    }


def _arrows(spans: Sequence[Span], lanes: Sequence[int]) -> Iterator[Event]:
    """For each transfer, from the prefill before it."""
    prefills: dict[str, tuple[Span, int]] = {}
    for span, lane in zip(spans, lanes, strict=True):
        if span.kind is SpanKind.PREFILL:
            prefills[span.request_id] = (span, lane)
        elif span.kind is SpanKind.TRANSFER:
            source, source_lane = prefills[span.request_id]
            arrow = {"name": "KV transfer", "cat": "transfer", "id": span.request_id}
            inside_us = min(INSIDE_US, (source.ended_s - source.began_s) * US_PER_S / 2)
            start_us = source.ended_s * US_PER_S - inside_us
            yield {**arrow, "ph": "s", "pid": source.worker, "tid": source_lane, "ts": start_us}
            yield {
                **arrow, "ph": "f", "bp": "e", "pid": span.worker, "tid": lane, "ts": span.began_s * US_PER_S
            }  # fmt: skip
