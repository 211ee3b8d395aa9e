"""The answer to a scrape.

The rule of this module: every declared metric appears once, with or without series, followed by the process's
own. A scrape runs on the event loop's thread, so the numbers are of one moment.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, GCCollector, Metric, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from gateway.telemetry.metrics import BUILD_INFO, METRICS, SHARED_CALL, MetricSpec
from gateway.telemetry.recorder import Metrics
from gateway.telemetry.state import Readers, Reading, read, read_calls

OPENMETRICS_MEDIA_TYPE: Final = "application/openmetrics-text"


class GatewayCollector(Collector):
    """Turns the gateway's numbers into what `prometheus_client` prints."""

    def __init__(self, metrics: Metrics, readers: Readers, *, version: str, commit: str) -> None:
        self._metrics: Final = metrics
        self._readers: Final = readers
        self._build: Final[Reading] = (BUILD_INFO, (version, commit), 1.0)

    def describe(self) -> Iterable[Metric]:
        """All declared metrics, without series."""
        return [_empty(spec) for spec in METRICS]

    def collect(self) -> Iterator[Metric]:
        """All declared metrics as of now; series of workers that left are dropped first."""
        workers = self._readers.state.workers()
        self._metrics.follow_workers(worker.worker_id for worker in workers)
        self._metrics.follow_slos(self._readers.state.slos())
        families = {spec: _empty(spec) for spec in METRICS}
        for spec, samples in self._metrics.samples().items():
            families[spec].samples.extend(samples)
        for reading in (self._build, *read(self._readers, workers)):
            families[reading[0]].samples.append(_sample(reading))
        families[SHARED_CALL].samples.extend(read_calls(self._readers))
        yield from families.values()


class Exposition:
    """`/metrics` without HTTP: a registry of our own with the gateway's and the process's collectors."""

    def __init__(self, metrics: Metrics, readers: Readers, *, version: str, commit: str) -> None:
        self._registry: Final = CollectorRegistry()
        self._registry.register(GatewayCollector(metrics, readers, version=version, commit=commit))
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def render(self, accept_header: str = "") -> tuple[bytes, str]:
        """The body and its content type; see `encoded`."""
        return encoded(self._registry, accept_header)

    def families(self) -> Iterable[Metric]:
        """The same, as they are before they are text."""
        return self._registry.collect()


def encoded(collector: Collector, accept_header: str) -> tuple[bytes, str]:
    """The body and its content type: OpenMetrics 1.0 where the client accepts it, else the text format.

    The library sees the bare media type only: it raises TypeError on a version such as `1.x`.
    """
    media_type = OPENMETRICS_MEDIA_TYPE if OPENMETRICS_MEDIA_TYPE in accept_header else ""
    encode, content_type = choose_encoder(media_type)
    return encode(collector), content_type


def families_of(readings: Iterable[Reading]) -> Iterator[Metric]:
    """Some metrics by themselves, one line each."""
    for reading in readings:
        metric = _empty(reading[0])
        metric.samples.append(_sample(reading))
        yield metric


def _empty(spec: MetricSpec) -> Metric:
    return Metric(spec.full_name.removesuffix("_total"), spec.help, spec.type.value)


def _sample(reading: Reading) -> Sample:
    spec, values, value = reading
    return Sample(spec.full_name, dict(zip(spec.labels, values, strict=True)), value)
