"""The measured rows: AIConfigurator's collection of end-to-end benchmarks, of which this reads one engine's.

Read are the aggregated vLLM rows of dense models on H100 and H200, without pipeline or data parallelism.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from loadtest.engine.fitting.shapes import LLAMA_8B, LLAMA_70B, QWEN3_32B, Model, Precision
from loadtest.engine.fitting.sources import csv_rows
from loadtest.engine.fitting.systems import H100, H200, System

FILE = "aic_silicon_e2e_sample.csv.gz"

MODELS = {
    "meta-llama/Llama-3.1-70B": LLAMA_70B,
    "Qwen/Qwen3-32B": QWEN3_32B,
    "nvidia/Llama-3.1-8B-Instruct-FP8": LLAMA_8B,
}
SYSTEMS = {system.aic: system for system in (H100, H200)}
PRECISIONS = {"": Precision.BF16, "fp8": Precision.FP8}


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """One measured point: a closed loop of `concurrency` clients against one engine."""

    row_id: str
    model: Model
    system: System
    gpus: int
    precision: Precision
    """Of the weights."""
    isl_tokens: int
    """Nominal prompt length."""
    osl_tokens: int
    """Nominal output length."""
    concurrency: int
    ttft_s: float
    """Mean over the requests."""
    tpot_s: float
    """Mean over the requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiliconRow:
    """A measured point beside what the engine model predicts; means over the requests."""

    measured: Benchmark
    ttft_s: float
    """Predicted."""
    tpot_s: float
    """Predicted."""

    @property
    def ttft_error(self) -> float:
        """Of the prediction, relative to the measurement."""
        return self.ttft_s / self.measured.ttft_s - 1

    @property
    def tpot_error(self) -> float:
        """Of the prediction, relative to the measurement."""
        return self.tpot_s / self.measured.tpot_s - 1


def read_benchmarks(data: Path) -> Iterator[Benchmark]:
    """The rows in the file's order."""
    for row in csv_rows(data / FILE):
        if (
            row["backend"] == "vllm"
            and row["mode"] == "agg"
            and row["model_path"] in MODELS
            and row["system"] in SYSTEMS
            and row["pp_size"] == "1"
        ):
            yield Benchmark(
                row_id=row["id"],
                model=MODELS[row["model_path"]],
                system=SYSTEMS[row["system"]],
                gpus=int(row["tp_size"]),
                precision=PRECISIONS[row["precision"]],
                isl_tokens=int(row["isl"]),
                osl_tokens=int(row["osl"]),
                concurrency=int(row["batch_size"]),
                ttft_s=float(row["silicon_ttft_ms"]) / 1e3,
                tpot_s=float(row["silicon_tpot_ms"]) / 1e3,
            )
