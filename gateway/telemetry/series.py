"""The accumulators behind the counters, gauges and histograms.

The rule of this module: one update is a few bytecodes on plain numbers. All updates and the scrape happen on
the event loop's thread, so nothing is locked, and `prometheus_client` sees the numbers only when a scrape asks.
"""

from bisect import bisect_left
from collections.abc import Callable, Container, Iterator, Sequence
from itertools import accumulate
from typing import Final, Generic, Protocol, TypeVar

from prometheus_client.samples import Sample

Labels = dict[str, str]


class Series(Protocol):
    """The numbers of one label set."""

    def samples(self, name: str, labels: Labels) -> Iterator[Sample]:
        """The series as exposed lines, under the metric's exposed `name`."""
        ...


class CounterSeries:
    """A total that only grows."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1.0) -> None:
        """Add `amount`, which is not negative."""
        self.value += amount

    def samples(self, name: str, labels: Labels) -> Iterator[Sample]:
        """One line."""
        yield Sample(name, labels, self.value)


class GaugeSeries:
    """A value that goes up and down."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1.0) -> None:
        """Add `amount`."""
        self.value += amount

    def dec(self, amount: float = 1.0) -> None:
        """Take `amount` away."""
        self.value -= amount

    def samples(self, name: str, labels: Labels) -> Iterator[Sample]:
        """One line."""
        yield Sample(name, labels, self.value)


class HistogramSeries:
    """Counts per bucket and the sum; a value on a boundary belongs to the bucket that it closes."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds: Final = bounds
        self._counts: Final = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count one observation."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def samples(self, name: str, labels: Labels) -> Iterator[Sample]:
        """The cumulative buckets with `+Inf`, then count and sum."""
        yield from histogram_samples(name, labels, self._bounds, self._counts, self._sum)


def histogram_samples(
    name: str, labels: Labels, bounds: Sequence[float], counts: Sequence[int], total_value: float
) -> Iterator[Sample]:
    """A histogram as exposed lines; `counts` has one number for each boundary, not cumulative, and one beyond."""
    total = 0
    for le, total in zip((*map(repr, bounds), "+Inf"), accumulate(counts), strict=True):
        yield Sample(f"{name}_bucket", {**labels, "le": le}, total)
    yield Sample(f"{name}_count", labels, total)
    yield Sample(f"{name}_sum", labels, total_value)


S = TypeVar("S", bound=Series)


class Family(Generic[S]):
    """All series of one metric, by their label values."""

    __slots__ = ("_label_names", "_make", "_name", "_series")

    def __init__(self, name: str, label_names: tuple[str, ...], make: Callable[[], S]) -> None:
        self._name: Final = name
        self._label_names: Final = label_names
        self._make: Final = make
        self._series: Final[dict[tuple[str, ...], S]] = {}

    def labels(self, *values: str) -> S:
        """The series with these label values, in declared order; made at first use.

        The returned object may be kept and updated directly, unless its metric is pruned by worker.
        Raises ValueError where the number of values is not the number of labels.
        """
        try:
            return self._series[values]
        except KeyError:
            return self._add(values)

    def keep(self, label_name: str, values: Container[str]) -> None:
        """Drop every series whose `label_name` is not among `values`."""
        at = self._label_names.index(label_name)
        for key in [key for key in self._series if key[at] not in values]:
            del self._series[key]

    def samples(self) -> Iterator[Sample]:
        """Every series, as exposed lines."""
        for values, series in self._series.items():
            yield from series.samples(self._name, dict(zip(self._label_names, values, strict=True)))

    def _add(self, values: tuple[str, ...]) -> S:
        if len(values) != len(self._label_names):
            raise ValueError(f"{self._name} has labels {self._label_names}, got {values}")
        return self._series.setdefault(values, self._make())
