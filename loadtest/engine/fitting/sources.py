"""Reading the public measurements: names, columns and units of each file are known here only.

Every reader returns seconds. Readers of large files keep what they read.
"""

import csv
import gzip
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from loadtest.engine.fitting.shapes import Precision
from loadtest.engine.fitting.systems import System

AIC_SYSTEMS = "aic_system_specs_yaml.json.gz"
SIM_ATTENTION = "llmservingsim_H100_llama31-70b_tp4_attention.csv.gz"
SIM_RUNS = "llmservingsim_vllm_measured_runs.jsonl.gz"
SIM_RTX = "llmservingsim_RTXPRO6000_llama-3.1-8b_tp1_perf.json.gz"
SIM_ORIGIN = "casys-kaist/LLMServingSim (MIT)"

HEAD_WIDTH = "128"
NO_WINDOW = "0"

Table = dict[str, dict[int, float]]
"""Seconds by kernel or layer, then by tokens or sequences."""
Grid = dict[tuple[int, int, int], float]
"""Seconds of a product by (m, n, k): `m x k` times `k x n`, so m is tokens."""
Points = dict[tuple[int, int], float]
"""Seconds by batch and length."""


def sim_layers_file(profile: str) -> str:
    """The name of the file with LLMServingSim's layer times of a model."""
    return f"llmservingsim_H100_{profile}_layers.csv.gz"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """How AIConfigurator prices kernels that only move bytes."""

    effective_bytes_per_s: float
    kernel_latency_s: float


def csv_rows(path: Path) -> Iterator[dict[str, str]]:
    """The rows of a gzipped CSV file.

    AIConfigurator's copies begin with a comment line; columns that have one value in the whole file are named there.
    """
    with gzip.open(path, "rt", encoding="utf-8", newline="") as lines:
        first = next(lines)
        constant: dict[str, str] = {}
        if first.startswith("#"):
            constant = {name: str(value) for name, value in json.loads(first[1:])["const"].items()}
            first = next(lines)
        (names,) = csv.reader([first])
        for values in csv.reader(lines):
            yield constant | dict(zip(names, values, strict=True))


def read_gpu(data: Path, system: System) -> Gpu:
    """The memory model of one GPU."""
    gpu = yaml.safe_load(_read_json(data / AIC_SYSTEMS)[system.aic])["gpu"]
    return Gpu(
        effective_bytes_per_s=gpu["mem_bw"] * gpu["mem_bw_empirical_scaling_factor"],
        kernel_latency_s=gpu["mem_empirical_constant_latency"],
    )


def read_gemm(data: Path, system: System, precision: Precision) -> Grid:
    """Products by size; `LookupError` where the precision was not measured."""
    grids = _read_gemm(data, system)
    if precision not in grids:
        raise LookupError(f"{system.file('gemm')} has no {precision} products")
    return grids[precision]


@cache
def _read_gemm(data: Path, system: System) -> dict[str, Grid]:
    grids: dict[str, Grid] = defaultdict(dict)
    for row in csv_rows(data / system.file("gemm")):
        size = int(row["m"]), int(row["n"]), int(row["k"])
        grids[row["gemm_dtype"]][size] = float(row["latency"]) / 1e3
    return dict(grids)


def read_prefill_attention(data: Path, system: System, heads: int, kv_heads: int, kv: Precision) -> Points:
    """One layer's attention on one GPU over whole prompts, by batch and prompt length."""
    return _read_attention(data / system.file("context_attention"), "isl")[heads, kv_heads, kv]


def read_decode_attention(data: Path, system: System, heads: int, kv_heads: int, kv: Precision) -> Points:
    """One layer's attention on one GPU in decoding, by batch and cached tokens of each sequence."""
    return _read_attention(data / system.file("generation_attention"), "step")[heads, kv_heads, kv]


@cache
def _read_attention(path: Path, length: str) -> dict[tuple[int, int, str], Points]:
    points: dict[tuple[int, int, str], Points] = defaultdict(dict)
    for row in csv_rows(path):
        if row["head_dim"] == HEAD_WIDTH and row.get("window_size", NO_WINDOW) == NO_WINDOW:
            key = int(row["num_heads"]), int(row["num_key_value_heads"]), row["kv_cache_dtype"]
            points[key][int(row["batch_size"]), int(row[length])] = float(row["latency"]) / 1e3
    return dict(points)


@cache
def read_all_reduce(data: Path, system: System, gpus: int) -> dict[int, float]:
    """One all-reduce by message bytes, as replayed from a CUDA graph: kernel time without launch time.

    vLLM chooses between its own kernel and NCCL by size, and the file has whichever it chose.
    """
    return {
        int(row["message_size"]): float(row["latency"]) / 1e3
        for row in csv_rows(data / system.file("custom_allreduce"))
        if row["num_gpus"] == str(gpus) and row["backend"] == "vllm_graph"
    }


@cache
def read_layers(data: Path, profile: str, gpus: int) -> Table:
    """One layer's kernels on one H100 by layer name and tokens; empty where the group's size was not measured."""
    table: Table = defaultdict(dict)
    for row in csv_rows(data / sim_layers_file(profile)):
        if row["tp"] == str(gpus):
            table[row["layer_name"]][int(row["input"])] = float(row["latency_ns"]) / 1e9
    return dict(table)


def read_chunk_attention(data: Path) -> Points:
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


def read_measured_run(data: Path, bench: str) -> dict[str, Any]:
    """One measured vLLM run; `LookupError` where the file has none of that name."""
    with gzip.open(data / SIM_RUNS, "rt", encoding="utf-8") as lines:
        for run in map(json.loads, lines):
            if run["bench"] == bench:
                return dict(run)
    raise LookupError(f"no measured run is called {bench!r}")


def _read_json(path: Path) -> dict[str, str]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return dict(json.load(file))
