"""The step overhead: what a measured vLLM decode step takes beyond its kernels.

It is host time, which no kernel profile shows, so it comes from a run whose GPU was profiled too. In the seconds
after the run's last first token every step is a pure decode: step time is mean running sequences over token rate.
"""

import csv
import io
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.engine.fitting.shapes import LLAMA_8B
from loadtest.engine.fitting.sources import DecodeProfile, read_decode_profile, read_measured_run

BENCH = "RTXPRO6000/Llama-3.1-8B"
ONCE = ("embedding", "final_layernorm")
"""Dense kernels that run once per step rather than once per layer."""
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
    profile = read_decode_profile(data)
    beyond = [
        second.step_s - kernel_seconds(profile, second) for second in decode_seconds(read_measured_run(data, BENCH))
    ]
    return float(np.median(beyond))


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


def kernel_seconds(profile: DecodeProfile, second: DecodeSecond) -> float:
    """What the kernels of such a decode step take, without the sampler."""
    layers = LLAMA_8B.layers
    dense = sum(
        _interpolate(times, second.sequences) * (1 if name in ONCE else layers) for name, times in profile.dense.items()
    )
    by_batch = {
        batch: _interpolate({context: s for (_, context), s in points}, second.context_tokens)
        for batch, points in itertools.groupby(sorted(profile.decode_attention.items()), key=lambda item: item[0][0])
    }
    output = _interpolate(profile.per_sequence["lm_head"], second.sequences)
    return dense + layers * _interpolate(by_batch, second.sequences) + output


def _interpolate(points: dict[int, float], x: float) -> float:
    xs = sorted(points)
    return float(np.interp(x, xs, [points[x] for x in xs]))


def _overlap_s(request: dict[str, float], start: float, end: float) -> float:
    return max(0.0, min(end, request["last_token_ts"]) - max(start, request["first_token_ts"]))


def _context_tokens(request: dict[str, float], at: float) -> float:
    first, last = request["first_token_ts"], request["last_token_ts"]
    done = min(1.0, max(0.0, (at - first) / (last - first)))
    return request["input_toks"] + done * request["output_toks"]
