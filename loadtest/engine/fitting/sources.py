"""Reading the public measurements: names, columns and units of each file are known here only.

Every reader returns seconds.
"""

import csv
import gzip
import io
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

AIC_GEMM = "aic_h100_sxm_vllm_gemm_perf.csv.gz"
AIC_PREFILL = "aic_h100_sxm_vllm_context_attention_perf.csv.gz"
AIC_DECODE = "aic_h100_sxm_vllm_generation_attention_perf.csv.gz"
AIC_ALL_REDUCE = "aic_h100_sxm_vllm_custom_allreduce_perf.csv.gz"
AIC_SYSTEMS = "aic_system_specs_yaml.json.gz"
SIM_ATTENTION = "llmservingsim_H100_llama31-70b_tp4_attention.csv.gz"
SIM_RUNS = "llmservingsim_vllm_measured_runs.jsonl.gz"
SIM_RTX = "llmservingsim_RTXPRO6000_llama-3.1-8b_tp1_perf.json.gz"

AIC_ORIGIN = "ai-dynamo/aiconfigurator (Apache-2.0), vLLM 0.24.0 kernels on H100 80GB HBM3"
SIM_ORIGIN = "casys-kaist/LLMServingSim (MIT)"

Rows = Iterator[dict[str, str]]
Table = dict[str, dict[int, float]]
"""Seconds by kernel or layer, then by tokens or sequences."""


def sim_layers_file(profile: str) -> str:
    """The name of the file with LLMServingSim's layer times of a model."""
    return f"llmservingsim_H100_{profile}_layers.csv.gz"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """How AIConfigurator prices kernels that only move bytes."""

    effective_bytes_per_s: float
    kernel_latency_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeProfile:
    """Kernel times of one GPU and model, as LLMServingSim's newer profiles give them."""

    dense: Table
    per_sequence: Table
    decode_attention: dict[tuple[int, int], float]
    """By sequences and context tokens of each."""


def csv_rows(path: Path) -> Rows:
    """The rows of a gzipped CSV file, without the comment line that AIConfigurator's copies begin with."""
    with gzip.open(path, "rt", encoding="utf-8", newline="") as lines:
        yield from csv.DictReader(line for line in lines if not line.startswith("#"))


def read_gpu(data: Path, system: str = "h100_sxm") -> Gpu:
    """The memory model of one GPU."""
    gpu = yaml.safe_load(_read_json(data / AIC_SYSTEMS)[system])["gpu"]
    return Gpu(
        effective_bytes_per_s=gpu["mem_bw"] * gpu["mem_bw_empirical_scaling_factor"],
        kernel_latency_s=gpu["mem_empirical_constant_latency"],
    )


def read_gemm(data: Path) -> dict[tuple[int, int, int], float]:
    """Bfloat16 products by (m, n, k): `m x k` times `k x n`, so m is tokens."""
    return {
        (int(row["m"]), int(row["n"]), int(row["k"])): float(row["latency"]) / 1e3
        for row in csv_rows(data / AIC_GEMM)
        if row["gemm_dtype"] == "bfloat16"
    }


def read_attention(path: Path, length: str, heads: int, kv_heads: int) -> dict[tuple[int, int], float]:
    """One layer's attention on one GPU by (batch, `length` column): head width 128, bfloat16 cache, no window."""
    wanted = {
        "num_heads": str(heads),
        "num_key_value_heads": str(kv_heads),
        "head_dim": "128",
        "kv_cache_dtype": "bfloat16",
        "window_size": "0",
    }
    return {
        (int(row["batch_size"]), int(row[length])): float(row["latency"]) / 1e3
        for row in csv_rows(path)
        if wanted.items() <= row.items()
    }


def read_all_reduce(data: Path, gpus: int) -> dict[int, float]:
    """One all-reduce by message bytes, as replayed from a CUDA graph: kernel time without launch time."""
    return {
        int(row["message_size"]): float(row["latency"]) / 1e3
        for row in csv_rows(data / AIC_ALL_REDUCE)
        if row["num_gpus"] == str(gpus) and row["backend"] == "vllm_graph"
    }


def read_layers(data: Path, profile: str, gpus: int) -> Table:
    """One layer's kernels on one GPU by layer name and tokens (attention: one prompt of that length)."""
    table: Table = defaultdict(dict)
    for row in csv_rows(data / sim_layers_file(profile)):
        if row["tp"] == str(gpus):
            table[row["layer_name"]][int(row["input"])] = float(row["latency_ns"]) / 1e9
    return dict(table)


def read_chunk_attention(data: Path) -> dict[tuple[int, int], float]:
    """One prompt chunk's attention by (new tokens, tokens before).

    The file's `kv_cache_size` counts the chunk itself: times rise at multiples of the kernel's 64-token tile.
    """
    return {
        (int(row["prefill_chunk_size"]), int(row["kv_cache_size"]) - int(row["prefill_chunk_size"])): float(
            row["median_ms"]
        )
        / 1e3
        for row in csv_rows(data / SIM_ATTENTION)
        if row["is_prefill"] == "1"
    }


def read_decode_profile(data: Path) -> DecodeProfile:
    """Kernel times of the GPU that the measured vLLM run used."""
    texts = _read_json(data / SIM_RTX)
    return DecodeProfile(
        dense=_microsecond_table(texts["dense"], "tokens"),
        per_sequence=_microsecond_table(texts["per_sequence"], "sequences"),
        decode_attention={
            (int(row["n_decode"]), int(row["kv_decode"])): float(row["time_us"]) / 1e6
            for row in csv.DictReader(io.StringIO(texts["attention"]))
            if row["prefill_chunk"] == "0"
        },
    )


def read_measured_run(data: Path, bench: str) -> dict[str, Any]:
    """One measured vLLM run; `LookupError` where the file has none of that name."""
    with gzip.open(data / SIM_RUNS, "rt", encoding="utf-8") as lines:
        for run in map(json.loads, lines):
            if run["bench"] == bench:
                return dict(run)
    raise LookupError(f"no measured run is called {bench!r}")


def _microsecond_table(text: str, size: str) -> Table:
    table: Table = defaultdict(dict)
    for row in csv.DictReader(io.StringIO(text)):
        table[row["layer"]][int(row[size])] = float(row["time_us"]) / 1e6
    return dict(table)


def _read_json(path: Path) -> dict[str, str]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return dict(json.load(file))
