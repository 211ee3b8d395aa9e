"""The step overhead: what a measured vLLM decode step takes beyond its kernels.

It is host work and sampling, which no kernel profile shows, so it comes from a run whose GPU was profiled too. In the
seconds after the run's last first token every step is a pure decode: step time is mean running sequences over token
rate. There is no overhead per sequence: vLLM schedules the next step while the GPU computes, and the rest does not
grow with the batch.
"""

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gateway.core.step_cost import CostTable, StepWork
from loadtest.engine.fitting.rtx import ProfiledModel, profiled_costs
from loadtest.engine.fitting.shapes import LLAMA_8B
from loadtest.engine.fitting.sources import read_measured_run

BENCH = "RTXPRO6000/Llama-3.1-8B"
BENCH_MODEL = ProfiledModel(profile="RTXPRO6000_llama-3.1-8b", layers=LLAMA_8B.layers, hidden=LLAMA_8B.hidden)
MIN_RUNNING = 2.0
"""With fewer sequences one second's token count is too coarse."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeSecond:
    """One second of pure decoding."""

    step_s: float
    sequences: float
    context_tokens: float
    """Of one sequence, on average."""


def fit_step_overhead(data: Path) -> float:
    """Median seconds that a step takes beyond its kernels, over all seconds of pure decoding."""
    kernels, _ = profiled_costs(data, BENCH_MODEL)
    seconds = decode_seconds(read_measured_run(data, BENCH))
    return float(np.median([second.step_s - kernel_seconds(kernels, second) for second in seconds]))


def decode_seconds(run: dict[str, Any]) -> Iterator[DecodeSecond]:
    """The pure-decode seconds at the end of a run."""
    requests = run["requests"]
    began = min(request["scheduled_ts"] for request in requests)
    last_prefill = max(request["first_token_ts"] for request in requests)
    for row in csv.DictReader(io.StringIO(run["timeseries_csv"])):
        end = began + float(row["t"])
        rate = float(row["gen_throughput"])
        running = [(request, _overlap_s(request, end - 1, end)) for request in requests]
        sequences = sum(overlap for _, overlap in running)
        if end - 1 < last_prefill or sequences < MIN_RUNNING:
            continue
        tokens = sum(overlap * _context_tokens(request, end - 0.5) for request, overlap in running if overlap)
        yield DecodeSecond(step_s=sequences / rate, sequences=sequences, context_tokens=tokens / sequences)


def kernel_seconds(kernels: CostTable, second: DecodeSecond) -> float:
    """What the kernels of such a decode step take, without the sampler; `kernels` has no step overhead."""
    work = StepWork(
        decode_sequences=round(second.sequences),
        decode_context_tokens=round(second.sequences * second.context_tokens),
    )
    return kernels.step_seconds(work)


def _overlap_s(request: dict[str, float], start: float, end: float) -> float:
    return max(0.0, min(end, request["last_token_ts"]) - max(start, request["first_token_ts"]))


def _context_tokens(request: dict[str, float], at: float) -> float:
    first, last = request["first_token_ts"], request["last_token_ts"]
    done = min(1.0, max(0.0, (at - first) / (last - first)))
    return request["input_toks"] + done * request["output_toks"]
