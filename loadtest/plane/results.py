"""What was measured, as it is written to a file.

The rule of this module: raw samples alone; ratios and verdicts follow from them elsewhere. Units are in the names.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

import msgspec

DIRECT = "direct"
"""The name of what goes to the worker without a proxy."""


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One load on one proxy."""

    fleet: str
    scenario: str
    proxy: str
    round: int
    done: int
    """Requests that ended well."""
    failed: int
    units: int
    """Requests or events, whichever the scenario counts."""
    cpu_us: float | None
    """Of the proxy, for each of them; None where there is no proxy, or nothing came."""
    per_s: float
    p50_us: float | None
    p99_us: float | None
    """From the scheduled or the actual sending to the last byte."""


class MemorySample(msgspec.Struct, frozen=True, kw_only=True):
    """What streams take."""

    fleet: str
    proxy: str
    round: int
    streams: int
    bytes_per_stream: float


class HandOver(msgspec.Struct, frozen=True, kw_only=True):
    """The gaps of the remote path, in microseconds."""

    proxy: str
    gaps_us: Sequence[float]
    """From the prefill answer being written to the decode request's first byte."""
    hops_us: Sequence[float]
    """The same through a bare echo on the proxy's core."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything."""

    rounds: int
    seconds: float
    proxies: Sequence[str]
    ours: Sequence[str]
    """Those of them that are this gateway; the first is judged."""
    skipped: Sequence[str]
    """What could not be had."""
    samples: Sequence[Sample] = ()
    memory: Sequence[MemorySample] = ()
    hand_overs: Sequence[HandOver] = ()


@dataclass(frozen=True, slots=True)
class Spread:
    """Values over rounds."""

    low: float
    middle: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread | None":
        """Of these; None of none."""
        found = sorted(values)
        return cls(found[0], median(found), found[-1]) if found else None


def cpu_spread(report: Report, fleet: str, scenario: str, proxy: str) -> Spread | None:
    """CPU microseconds per unit."""
    return Spread.of(_by_round(report, fleet, scenario, proxy).values())


def cpu_ratio(report: Report, fleet: str, scenario: str, proxy: str, beside: str) -> Spread | None:
    """How many times less CPU time a proxy takes than another, round by round; above 1 is less."""
    own = _by_round(report, fleet, scenario, proxy)
    other = _by_round(report, fleet, scenario, beside)
    return Spread.of(other[number] / own[number] for number in own.keys() & other.keys())


def added_p50_us(report: Report, fleet: str, scenario: str, proxy: str) -> Spread | None:
    """How much later than without a proxy the median answer comes, round by round."""
    own, direct = (
        {
            one.round: one.p50_us
            for one in report.samples
            if (one.fleet, one.scenario, one.proxy) == (fleet, scenario, name) and one.p50_us is not None
        }
        for name in (proxy, DIRECT)
    )
    return Spread.of(own[number] - direct[number] for number in own.keys() & direct.keys())


def stream_bytes(report: Report, fleet: str, proxy: str, streams: int) -> Spread | None:
    """Memory that one of so many streams takes."""
    return Spread.of(
        one.bytes_per_stream for one in report.memory if (one.fleet, one.proxy, one.streams) == (fleet, proxy, streams)
    )


def failed(report: Report, proxy: str) -> int:
    """Requests of all loads that did not end well."""
    return sum(one.failed for one in report.samples if one.proxy == proxy)


def _by_round(report: Report, fleet: str, scenario: str, proxy: str) -> dict[int, float]:
    return {
        one.round: one.cpu_us
        for one in report.samples
        if (one.fleet, one.scenario, one.proxy) == (fleet, scenario, proxy) and one.cpu_us
    }
