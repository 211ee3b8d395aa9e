"""What a worker tells a scrape, under vLLM's names.

Token counts are the engine's own; latencies and endings are counted here. Latencies are in seconds as a client
feels them: engine seconds divided by the worker's speed.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from loadtest.engine.types import EngineSnapshot, EngineSpec

CONTENT_TYPE = CONTENT_TYPE_LATEST.encode()

# The buckets of vLLM 0.32.
_FIRST_TOKEN_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0),
    *(80.0, 160.0, 640.0, 2560.0),
)
_INTER_TOKEN_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_REQUEST_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0),
    *(960.0, 1920.0, 7680.0),
)
FINISHED_REASONS = ("stop", "length", "abort", "error", "repetition")


PROMPT_SOURCES = ("local_compute", "local_cache_hit", "external_kv_transfer")


class Histogram:
    """Counts of observations per bucket, and their sum."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count one observation; a bucket holds what is at most its bound."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def buckets(self) -> list[tuple[str, float]]:
        """Prometheus' cumulative buckets, `+Inf` last."""
        bounds = [*map(str, self._bounds), "+Inf"]
        return list(zip(bounds, map(float, accumulate(self._counts)), strict=True))

    @property
    def sum(self) -> float:
        """Of all observations."""
        return self._sum


@dataclass(slots=True)
class WorkerStats:
    """What the HTTP side counts, beside the engine's own counters."""

    first_token_s: Histogram = field(default_factory=lambda: Histogram(_FIRST_TOKEN_S))
    inter_token_s: Histogram = field(default_factory=lambda: Histogram(_INTER_TOKEN_S))
    request_s: Histogram = field(default_factory=lambda: Histogram(_REQUEST_S))
    finished: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FINISHED_REASONS, 0))
    """Sequences by how they ended."""
    prompt_sources: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PROMPT_SOURCES, 0))
    """Prompt tokens of finished sequences by where their KV came from."""
    failed_transfers: int = 0
    """KV that a decode leg was promised and did not get."""

    def count_prompt(self, *, tokens: int, cached_tokens: int, remote_tokens: int) -> None:
        """A sequence finished; of its remote KV only that was loaded which its own cache did not have."""
        loaded = max(0, remote_tokens - cached_tokens)
        self.prompt_sources["local_cache_hit"] += cached_tokens
        self.prompt_sources["external_kv_transfer"] += loaded
        self.prompt_sources["local_compute"] += tokens - cached_tokens - loaded


def exposition(
    *, model: str, spec: EngineSpec, snapshot: EngineSnapshot, stats: WorkerStats, expired_holds: int
) -> bytes:
    """The text that /metrics answers with; `expired_holds` counts prefill legs whose KV nobody read in time."""
    families = _Families(model)
    _add_engine(families, snapshot)
    _add_prompt(families, snapshot, stats)
    _add_requests(families, stats)
    families.counter("nixl_num_kv_expired_reqs", "Number of requests whose KV expired.", expired_holds)
    _add_cache_config(families, spec)
    return generate_latest(families)


class _Families(Collector):
    """Builds metric families that carry vLLM's two labels, and hands them over."""

    def __init__(self, model: str) -> None:
        self._labels = {"engine": "0", "model_name": model}
        self._families: list[Metric] = []

    def collect(self) -> Iterable[Metric]:
        return self._families

    def gauge(self, name: str, words: str, value: float, **extra: str) -> None:
        self._add(GaugeMetricFamily, name, words, [(extra, value)])

    def counter(self, name: str, words: str, value: float) -> None:
        self._add(CounterMetricFamily, name, words, [({}, value)])

    def counters(self, name: str, words: str, label: str, values: dict[str, int]) -> None:
        self._add(CounterMetricFamily, name, words, [({label: key}, value) for key, value in values.items()])

    def histogram(self, name: str, words: str, histogram: Histogram) -> None:
        family = HistogramMetricFamily(f"vllm:{name}", words, labels=[*self._labels])
        family.add_metric([*self._labels.values()], buckets=histogram.buckets(), sum_value=histogram.sum)
        self._families.append(family)

    def _add(
        self,
        kind: Callable[..., GaugeMetricFamily | CounterMetricFamily],
        name: str,
        words: str,
        samples: Sequence[tuple[dict[str, str], float]],
    ) -> None:
        family = kind(f"vllm:{name}", words, labels=[*self._labels, *samples[0][0]])
        for extra, value in samples:
            family.add_metric([*self._labels.values(), *extra.values()], value)
        self._families.append(family)


def _add_engine(families: _Families, snapshot: EngineSnapshot) -> None:
    queried, hit = snapshot.prefix_queried_tokens, snapshot.prefix_hit_tokens
    families.gauge("num_requests_running", "Number of requests in model execution batches.", snapshot.running)
    families.gauge("num_requests_waiting", "Number of requests waiting to be processed.", snapshot.waiting)
    families.gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", snapshot.kv_used_ratio)
    families.counter("prefix_cache_queries", "Prefix cache queries, in queried tokens.", queried)
    families.counter("prefix_cache_hits", "Prefix cache hits, in cached tokens.", hit)
    families.counter("external_prefix_cache_queries", "Queries for KV of other instances, in tokens.", queried - hit)
    families.counter(
        "external_prefix_cache_hits", "KV taken over from other instances, in tokens.", snapshot.remote_kv_tokens
    )
    families.counter("num_preemptions", "Cumulative number of preemptions.", snapshot.preemptions)
    families.counter("generation_tokens", "Number of generation tokens processed.", snapshot.generated_tokens)


def _add_prompt(families: _Families, snapshot: EngineSnapshot, stats: WorkerStats) -> None:
    sources = stats.prompt_sources
    cached = sum(sources.values()) - sources["local_compute"]
    families.counter("prompt_tokens", "Number of prefill tokens processed.", snapshot.prompt_tokens)
    families.counters("prompt_tokens_by_source", "Number of prompt tokens by source.", "source", sources)
    families.counter("prompt_tokens_cached", "Number of cached prompt tokens (local + external).", cached)


def _add_requests(families: _Families, stats: WorkerStats) -> None:
    families.counters("request_success", "Count of processed requests by ending.", "finished_reason", stats.finished)
    families.counter("nixl_num_failed_transfers", "Number of failed KV transfers.", stats.failed_transfers)
    families.histogram("time_to_first_token_seconds", "Time to first token.", stats.first_token_s)
    families.histogram("inter_token_latency_seconds", "Time between tokens.", stats.inter_token_s)
    families.histogram("e2e_request_latency_seconds", "Time of a whole request.", stats.request_s)


def _add_cache_config(families: _Families, spec: EngineSpec) -> None:
    families.gauge(
        "cache_config_info",
        "Information of the LLMEngine CacheConfig",
        1,
        block_size=str(spec.block_tokens),
        enable_prefix_caching="True",
        kv_cache_size_tokens=str(spec.block_tokens * spec.total_blocks),
        num_gpu_blocks=str(spec.total_blocks),
    )
