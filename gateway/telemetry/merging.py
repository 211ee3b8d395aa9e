"""The metrics of several processes as those of one gateway.

The rule of this module: counters and histograms are added label by label and never fall. What a process had counted
when it died, or when it was asked last, stays in the sums: were it left out, Prometheus would take the lower sum for a
counter that has begun anew at 0, and add all that the others ever counted once more. What a process counts between the
last scrape and its death is lost. Gauges are of those that answer, each by the rule beside its declaration.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

import msgspec
from prometheus_client import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from gateway.telemetry.exposition import encoded
from gateway.telemetry.metrics import METRICS, Across, MetricType

OF_THE_LIBRARY: Mapping[str, Across] = MappingProxyType(
    {
        "process_virtual_memory_bytes": Across.SUM,
        "process_resident_memory_bytes": Across.SUM,
        "process_start_time_seconds": Across.MAX,
        "process_open_fds": Across.SUM,
        "process_max_fds": Across.MIN,
        "python_info": Across.MAX,
    }
)
"""The rules of the gauges that `prometheus_client` shows of each process."""

RULES: Mapping[str, Across] = MappingProxyType({**{spec.full_name: spec.across for spec in METRICS}, **OF_THE_LIBRARY})
"""By the exposed name."""

_COUNTS: Final = (MetricType.COUNTER.value, MetricType.HISTOGRAM.value)
_WORKER: Final = "worker"
_MERGE: Mapping[Across, Callable[[float, float], float]] = MappingProxyType(
    {Across.SUM: lambda one, other: one + other, Across.MAX: max, Across.MIN: min}
)


class Line(msgspec.Struct, frozen=True, array_like=True):
    """One exposed line."""

    name: str
    labels: dict[str, str]
    value: float

    @property
    def key(self) -> tuple[str, ...]:
        """The same for the same series of any process."""
        return (self.name, *(text for label in sorted(self.labels.items()) for text in label))


class Family(msgspec.Struct, frozen=True, array_like=True):
    """A metric with all its lines."""

    name: str
    """Without the `_total` of a counter."""
    help: str
    type: str
    lines: list[Line]

    @property
    def counts(self) -> bool:
        """Whether it only rises."""
        return self.type in _COUNTS


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(list[Family])


def packed(metrics: Iterable[Metric]) -> bytes:
    """An exposition as one process sends it to another."""
    return _encoder.encode([family_of(metric) for metric in metrics])


def unpacked(data: bytes) -> list[Family]:
    """The exposition; raises msgspec.MsgspecError where the bytes are none."""
    return _decoder.decode(data)


def family_of(metric: Metric) -> Family:
    """The library's metric as a family."""
    lines = [
        Line(sample.name, {name: str(value) for name, value in sample.labels.items()}, float(sample.value))
        for sample in metric.samples
    ]
    return Family(metric.name, metric.documentation, metric.type, lines)


class Together(Collector):
    """The newest exposition of every process, and the counts of those that are gone.

    A process is known by its number, which its successor takes over.
    """

    def __init__(self) -> None:
        self._newest: dict[int, list[Family]] = {}
        self._answering: frozenset[int] = frozenset()
        self._gone: list[Family] = []
        self._own: list[Family] = []

    def heard(self, answers: Mapping[int, list[Family]], own: Iterable[Metric]) -> None:
        """What came of asking all processes.

        Args:
            answers: by the number of those that answered in time.
            own: what the asking process knows itself.
        """
        self._newest.update(answers)
        self._answering = frozenset(answers)
        self._own = [family_of(metric) for metric in own]

    def ended(self, number: int) -> None:
        """A process is gone; what it had counted stays."""
        last = self._newest.pop(number, None)
        if last is not None:
            self._gone = merged([self._gone, _counts(last)])

    def collect(self) -> Iterator[Metric]:
        """The gateway's metrics, in the order of one process's."""
        present = [families for number, families in sorted(self._newest.items()) if number in self._answering]
        silent = [_counts(families) for number, families in self._newest.items() if number not in self._answering]
        known = {line.labels[_WORKER] for part in present for line in _lines(part) if _WORKER in line.labels}
        past = [_of_workers(part, known) for part in (*silent, self._gone)]
        for family in merged([*present, self._own, *past]):
            metric = Metric(family.name, family.help, family.type)
            metric.samples = [Sample(line.name, line.labels, line.value) for line in family.lines]
            yield metric

    def render(self, accept_header: str = "") -> tuple[bytes, str]:
        """The body and its content type; see `exposition.encoded`."""
        return encoded(self, accept_header)


def merged(parts: Iterable[Iterable[Family]]) -> list[Family]:
    """Families by name, and in each the lines by name and labels, in the order in which they first come."""
    heads: dict[str, Family] = {}
    lines: dict[str, dict[tuple[str, ...], Line]] = {}
    for part in parts:
        for family in part:
            heads.setdefault(family.name, family)
            merge = _MERGE[rule_of(family)]
            known = lines.setdefault(family.name, {})
            for line in family.lines:
                key = line.key
                before = known.get(key)
                value = line.value if before is None else merge(before.value, line.value)
                known[key] = Line(line.name, line.labels, value)
    return [Family(head.name, head.help, head.type, [*lines[name].values()]) for name, head in heads.items()]


def rule_of(family: Family) -> Across:
    """How the lines of several processes become one; raises KeyError for a gauge that is not known."""
    return Across.SUM if family.counts else RULES[family.name]


def _counts(families: Iterable[Family]) -> list[Family]:
    return [family for family in families if family.counts]


def _lines(families: Iterable[Family]) -> Iterator[Line]:
    for family in families:
        yield from family.lines


def _of_workers(families: Iterable[Family], known: set[str]) -> list[Family]:
    """Without the lines of workers that have left the fleet."""
    return [
        Family(
            family.name,
            family.help,
            family.type,
            [line for line in family.lines if _WORKER not in line.labels or line.labels[_WORKER] in known],
        )
        for family in families
    ]
