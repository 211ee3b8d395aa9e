"""What a worker says of itself: its model, its longest request and its KV cache.

The rule of this module: pages in, numbers out. What no page tells (a step's token budget, the largest batch) is the
caller's to say.
"""

import re
from dataclasses import dataclass

import msgspec
from prometheus_client.parser import text_string_to_metric_families

CACHE_CONFIG = "vllm:cache_config_info"
RUNNING = "vllm:num_requests_running"
MOVED_BYTES = "vllm:nixl_bytes_transferred_sum"
_V1 = re.compile(r"/v1/?$")


class CalibrationError(Exception):
    """The worker cannot be calibrated, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """A worker's KV cache."""

    block_tokens: int
    total_blocks: int
    kv_bytes_per_token: int | None
    """None where the page does not tell the memory that the blocks take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What bounds the requests that a worker takes."""

    model: str
    block_tokens: int
    total_blocks: int
    max_model_len: int | None
    max_batched_tokens: int
    max_running: int
    plans_ahead: bool
    """It schedules asynchronously."""

    @property
    def kv_tokens(self) -> int:
        """The KV cache's size."""
        return self.block_tokens * self.total_blocks

    @property
    def longest_tokens(self) -> int:
        """Prompt plus output of one request."""
        return min(self.kv_tokens, self.max_model_len or self.kv_tokens)


class _Model(msgspec.Struct, frozen=True):
    id: str
    max_model_len: int | None = None


class _ModelList(msgspec.Struct, frozen=True):
    data: tuple[_Model, ...]


def server_url(url: str) -> str:
    """The server's URL, of an OpenAI base URL or of the server itself."""
    return _V1.sub("", url).rstrip("/")


def read_model(body: bytes, wanted: str | None) -> tuple[str, int | None]:
    """The wanted model of a `/v1/models` page, else its first, and the longest request if the page tells it.

    Raises:
        CalibrationError: the page lists no such model.
    """
    try:
        listed = msgspec.json.decode(body, type=_ModelList).data
    except msgspec.MsgspecError as error:
        raise CalibrationError(f"/v1/models is no list of models: {error}") from error
    for model in listed:
        if wanted in (None, model.id):
            return model.id, model.max_model_len
    raise CalibrationError(f"/v1/models does not list {wanted or 'any model'}: {[model.id for model in listed]}")


def read_cache_config(metrics: str) -> CacheConfig:
    """The KV cache of a vLLM `/metrics` page.

    Raises:
        CalibrationError: the page does not tell it.
    """
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            if sample.name == CACHE_CONFIG:
                return _cache_config(sample.labels)
    raise CalibrationError(f"/metrics has no {CACHE_CONFIG}: block size and KV blocks are unknown")


def _cache_config(labels: dict[str, str]) -> CacheConfig:
    block_tokens, blocks = _whole(labels.get("block_size")), _whole(labels.get("num_gpu_blocks"))
    if not block_tokens or not blocks:
        raise CalibrationError(f"{CACHE_CONFIG} tells no block_size and num_gpu_blocks: {labels}")
    memory = _whole(labels.get("kv_cache_memory_bytes"))
    # Where the number of blocks was set by hand, they do not fill the memory.
    filled = memory and _whole(labels.get("num_gpu_blocks_override")) is None
    return CacheConfig(
        block_tokens=block_tokens,
        total_blocks=blocks,
        kv_bytes_per_token=round(memory / (blocks * block_tokens)) if filled and memory else None,
    )


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def metric_sum(metrics: str, name: str) -> float | None:
    """The sum over a metric's series; None where the page has none."""
    values = [
        sample.value
        for family in text_string_to_metric_families(metrics)
        for sample in family.samples
        if sample.name == name
    ]
    return sum(values) if values else None
