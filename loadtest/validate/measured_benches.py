"""The measured vLLM runs: which there are, and each one's limits and prices as the engine takes them.

Limits are the run's own where it recorded them. Prices come from the GPU's kernel profile, never from the run.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from loadtest.engine.fitting.rtx import Link, ProfiledModel
from loadtest.engine.fitting.shapes import BYTES, LLAMA_8B, QWEN3_32B, Model
from loadtest.engine.types import EngineSpec

BLOCK_TOKENS = 16
"""vLLM's default; the run that recorded its block size has the same."""
GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """One measured run."""

    name: str
    """As the file of runs has it."""
    model: Model
    profile: str
    is_bounded: bool = True
    """False where the run is shown beside: not everything that its prices need was profiled."""


BENCHES = (
    Bench(name="RTX4090/Llama-3.1-8B", model=LLAMA_8B, profile="RTX4090_llama-3.1-8b"),
    Bench(name="RTXPRO6000/Llama-3.1-8B", model=LLAMA_8B, profile="RTXPRO6000_llama-3.1-8b"),
    Bench(name="RTXPRO6000/Qwen3-32B", model=QWEN3_32B, profile="RTXPRO6000_qwen3-32b", is_bounded=False),
)


def profiled_model(bench: Bench, run: Mapping[str, Any]) -> ProfiledModel:
    """What the run's prices are fitted from; a group's link is the one in LLMServingSim's settings for this run."""
    gpus = _gpus(run)
    settings = run["config"]
    link = Link(bytes_per_s=settings["link_bw"] * 1e9, latency_s=settings["link_latency"] / 1e9)
    return ProfiledModel(
        profile=bench.profile,
        layers=bench.model.layers,
        hidden=bench.model.hidden,
        gpus=gpus,
        link=link if gpus > 1 else None,
    )


def engine_spec(bench: Bench, run: Mapping[str, Any]) -> EngineSpec:
    """The run's limits."""
    limits = run["meta"]["engine_kwargs"]
    return EngineSpec(
        name=bench.name,
        block_tokens=BLOCK_TOKENS,
        total_blocks=_total_blocks(bench.model, run),
        max_batched_tokens=limits["max_num_batched_tokens"],
        max_running=limits["max_num_seqs"],
        kv_bytes_per_token=_kv_bytes_per_token(bench.model),
        plans_ahead=True,
    )


def _total_blocks(model: Model, run: Mapping[str, Any]) -> int:
    """Blocks that requests can have: vLLM keeps one of those that it counts as a placeholder.

    A run that did not record them gets what its settings leave beside the weights. That is more than vLLM has, which
    sets activations aside, but those runs use less than 40 % of it.
    """
    if (recorded := run["meta"].get("kv_cache")) is not None:
        return int(recorded["num_gpu_blocks"]) - 1
    memory = run["config"]["nodes"][0]["instances"][0]["npu_mem"]
    usable = _gpus(run) * memory["mem_size"] * GIB * memory["mem_util"]
    weights = BYTES * (model.layer_weights + model.embedding_weights)
    return int((usable - weights) // (_kv_bytes_per_token(model) * BLOCK_TOKENS)) - 1


def _kv_bytes_per_token(model: Model) -> int:
    return 2 * model.layers * model.kv_heads * model.head_width * BYTES


def _gpus(run: Mapping[str, Any]) -> int:
    return int(run["meta"]["engine_kwargs"]["tensor_parallel_size"])
