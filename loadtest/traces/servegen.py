"""Arrivals drawn from a ServeGen client pool.

The rule of this module: every client is a renewal process whose clock runs at the client's recorded rate, so that a
window's rate and its burstiness hold whatever the window's length; clients without recorded lengths are left out.
Format: one client a line, with rows [t (s), rate (requests/s), CV of gaps, pattern, shape, scale] and, by window,
evenly spaced quantiles of prompt and output lengths (https://github.com/alibaba/ServeGen).
"""

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from loadtest.traces.files import json_lines, opened
from loadtest.traces.quantiles import Floats, Knots, evenly_spaced, lengths
from loadtest.traces.types import TraceError, TraceRequest

ROW_S = 600.0
"""A row holds for this long, or until the next one if that is sooner."""
PATTERNS = ("Gamma", "Weibull")


class _TraceRow(msgspec.Struct, frozen=True, array_like=True):
    at_s: float
    rate_rps: float
    gap_cv: float
    pattern: str
    shape: float
    scale: float


class _Lengths(msgspec.Struct, frozen=True):
    input_tokens: list[float]
    output_tokens: list[float]


class _ClientLine(msgspec.Struct, frozen=True):
    client: int
    trace: list[_TraceRow]
    len: dict[str, _Lengths] | None = None


class _Window(NamedTuple):
    """One client while one row holds."""

    start_s: float
    end_s: float
    rate_rps: float
    pattern: str
    shape: float
    input_tokens: Knots
    output_tokens: Knots


@dataclass(slots=True)
class _Client:
    windows: list[_Window]
    rng: np.random.Generator
    credit: float = 0.0
    """How much of the way to its next arrival remains, in mean gaps."""


def servegen_requests(
    name: str, *, from_s: float, to_s: float, rate_rps: float | None, seed: int
) -> Iterator[TraceRequest]:
    """Requests from `from_s` to `to_s` of the recorded day, at times counted from `from_s`.

    `rate_rps` scales all clients alike so that they bring so many on average; None keeps the recorded rates.
    """
    with opened(Path(name)) as file:
        clients = [
            client
            for line, row in json_lines(name, file, _ClientLine)
            if (client := _client(f"{name}:{line}", row, from_s, to_s, seed))
        ]
    recorded_rps = sum(w.rate_rps * (w.end_s - w.start_s) for c in clients for w in c.windows) / (to_s - from_s)
    if not recorded_rps:
        raise TraceError(f"{name}: no client with lengths sends anything from {from_s:g} s to {to_s:g} s")
    scale = 1.0 if rate_rps is None else rate_rps / recorded_rps
    edges_s = sorted({edge_s for client in clients for w in client.windows for edge_s in (w.start_s, w.end_s)})
    index = 0
    for start_s, end_s in pairwise(edges_s):
        for at_s, prompt, output in _arrivals(clients, start_s, end_s, scale):
            yield TraceRequest(index=index, arrival_s=at_s - from_s, input_tokens=prompt, output_tokens=output)
            index += 1


def _client(where: str, row: _ClientLine, from_s: float, to_s: float, seed: int) -> _Client | None:
    if not row.len or not row.trace:
        return None
    try:
        tables = sorted((float(at), table) for at, table in row.len.items())
    except ValueError as error:
        raise TraceError(f"{where}: {error}") from error
    knots = [(at_s, _knots(where, t.input_tokens), _knots(where, t.output_tokens)) for at_s, t in tables]
    starts = [at_s for at_s, _, _ in knots]
    windows = []
    for entry, after in zip(row.trace, [*row.trace[1:], None], strict=True):
        if entry.pattern not in PATTERNS or entry.rate_rps < 0 or entry.gap_cv <= 0 or entry.shape <= 0:
            raise TraceError(f"{where}: the row at {entry.at_s:g} s is no Gamma or Weibull process")
        end_s = min(entry.at_s + ROW_S, to_s, after.at_s if after else math.inf)
        start_s = max(entry.at_s, from_s)
        if start_s >= end_s or not entry.rate_rps:
            continue
        _, prompt, output = knots[max(0, bisect_right(starts, entry.at_s) - 1)]
        shape = entry.gap_cv**-2 if entry.pattern == "Gamma" else entry.shape
        windows.append(_Window(start_s, end_s, entry.rate_rps, entry.pattern, shape, prompt, output))
    if not windows:
        return None
    client = _Client(windows, np.random.default_rng((seed, row.client)))
    client.credit = _residual(client.rng, windows[0])
    return client


def _knots(where: str, quantiles: list[float]) -> Knots:
    if len(quantiles) < 2 or sorted(quantiles) != quantiles:
        raise TraceError(f"{where}: lengths must be ascending quantiles")
    return evenly_spaced(quantiles)


def _arrivals(clients: Sequence[_Client], start_s: float, end_s: float, scale: float) -> list[tuple[float, int, int]]:
    """(time, prompt, output) of all clients' arrivals between two edges, in order of time."""
    found: list[tuple[float, int, int]] = []
    for client in clients:
        while client.windows and client.windows[0].end_s <= start_s:
            client.windows.pop(0)
        if not client.windows or client.windows[0].start_s > start_s:
            continue
        window = client.windows[0]
        rate_rps = window.rate_rps * scale
        at_s = start_s + _renewals(client, window, (end_s - start_s) * rate_rps) / rate_rps
        prompts = lengths(window.input_tokens, client.rng.random(len(at_s)))
        outputs = lengths(window.output_tokens, client.rng.random(len(at_s)))
        found.extend(zip(at_s.tolist(), prompts, outputs, strict=True))
    found.sort(key=itemgetter(0))
    return found


def _renewals(client: _Client, window: _Window, span: float) -> Floats:
    """Arrivals in a span of `span` mean gaps; the client's credit goes on where the span ends."""
    parts: list[Floats] = []
    at = client.credit
    while at < span:
        gaps = _gaps(client.rng, window, max(16, int(1.2 * (span - at)) + 1))
        arrivals = at + np.concatenate(([0.0], np.cumsum(gaps)))
        parts.append(arrivals[:-1])
        at = float(arrivals[-1])
    found = np.concatenate(parts) if parts else np.zeros(0)
    inside = found[found < span]
    client.credit = (float(found[len(inside)]) if len(inside) < len(found) else at) - span
    return inside


def _gaps(rng: np.random.Generator, window: _Window, count: int) -> Floats:
    """Gaps of mean 1 with the window's shape."""
    if window.pattern == "Gamma":
        return rng.gamma(window.shape, 1.0 / window.shape, count)
    return rng.weibull(window.shape, count) / math.gamma(1.0 + 1.0 / window.shape)


def _residual(rng: np.random.Generator, window: _Window) -> float:
    """From a moment to the next arrival, in mean gaps: a uniform share of the gap that the moment fell into.

    Such a gap is one drawn with its length as weight; without that a bursty client would bring too many at first.
    """
    k = window.shape
    if window.pattern == "Gamma":
        gap = rng.gamma(k + 1.0) / k
    else:
        gap = rng.gamma(1.0 + 1.0 / k) ** (1.0 / k) / math.gamma(1.0 + 1.0 / k)
    return float(gap * rng.random())
