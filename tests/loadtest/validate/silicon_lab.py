"""Rows of the public benchmarks' form, without their file."""

from dataclasses import replace

from loadtest.engine.fitting.shapes import LLAMA_70B, Model, Precision
from loadtest.engine.fitting.systems import H200
from loadtest.validate.silicon_rows import Benchmark, SiliconRow

POINT = Benchmark(
    row_id="row",
    model=LLAMA_70B,
    system=H200,
    gpus=4,
    precision=Precision.FP8,
    isl_tokens=1000,
    osl_tokens=100,
    concurrency=8,
    ttft_s=0.1,
    tpot_s=0.01,
)


def row(ttft_error: float, tpot_error: float, model: Model = LLAMA_70B, gpus: int = 4) -> SiliconRow:
    """A row whose prediction is off by so much."""
    point = replace(POINT, model=model, gpus=gpus)
    return SiliconRow(measured=point, ttft_s=point.ttft_s * (1 + ttft_error), tpot_s=point.tpot_s * (1 + tpot_error))
