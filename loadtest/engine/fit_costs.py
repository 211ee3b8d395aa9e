"""Fits the shipped cost files: `python -m loadtest.engine.fit_costs --data DIR --out DIR`.

The same measurements always give the same bytes. Every file carries its formula, its sources and its residuals.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from loadtest.engine.cost_file import AttentionTerms, CostFile, Provenance, Residual, Source, write
from loadtest.engine.fitting import sources
from loadtest.engine.fitting.attention import MAX_SEQUENCES, check_chunks, fit_attention
from loadtest.engine.fitting.dense import check_products, fit_collective, fit_dense, fit_output_layer
from loadtest.engine.fitting.overhead import BENCH, fit_step_overhead
from loadtest.engine.fitting.regression import rounded
from loadtest.engine.fitting.shapes import LLAMA_70B_TP4, SHAPES, ModelShape
from loadtest.engine.fitting.sources import AIC_ORIGIN, SIM_ORIGIN

FORMULA = (
    "step = step_overhead + dense(tokens) + collective(tokens) + output_layer(sequences) + attention",
    "attention = launch + prefill_sequence * chunks + prefill_token * new + prefill_pair * pairs + decoding",
    "decoding = decode_sequence * decodes + kv_token * (cached tokens read by decodes and by chunks)",
    "pairs of a chunk = new * (before + (new + 1) / 2)",
    "dense = layers * (4 products + 5 element-wise kernels) + embedding + norm, for one GPU of the group",
    "element-wise kernel = mem_empirical_constant_latency + bytes / (mem_bw * mem_bw_empirical_scaling_factor)",
)
NOTES = (
    "Products are interpolated linearly between the measured n and k that enclose the model's dimensions.",
    "Falling stretches of a measured curve are replaced by their mean (isotonic regression).",
    "Element-wise kernels of LLMServingSim's layer files are not used: they are unfused (18 us for one norm).",
    "LLMServingSim's attention on H100 is not fitted to: its decodes take 27 ns per token of the longest sequence.",
    "So that kernel reads one sequence's keys serially, while vLLM's (FlashAttention 3) splits them over the GPU.",
    "The step overhead was measured on another GPU and one rank; as host time it is taken to be the same here.",
)


def fit(shape: ModelShape, data: Path) -> CostFile:
    """The cost file of one engine from the measurements in `data`."""
    layers = sources.read_layers(data, shape.profile, shape.gpus)
    gemm = sources.read_gemm(data)
    dense, dense_residual = fit_dense(shape, gemm, sources.read_gpu(data))
    output_layer, output_residual = fit_output_layer(shape, layers)
    attention, attention_residuals = fit_attention(shape, data)
    collective = fit_collective(shape, data)
    residuals = (
        dense_residual,
        check_products(shape, gemm, layers),
        *([collective[1]] if collective else []),
        output_residual,
        *attention_residuals,
        *_chunk_checks(shape, attention, data),
    )
    return CostFile(
        name=shape.name,
        step_overhead_s=rounded(fit_step_overhead(data)),
        dense=dense,
        collective=collective[0] if collective else None,
        output_layer=output_layer,
        attention=attention,
        provenance=Provenance(formula=FORMULA, sources=_sources(shape), residuals=residuals, notes=NOTES),
    )


def _chunk_checks(shape: ModelShape, attention: AttentionTerms, data: Path) -> tuple[Residual, ...]:
    """The one measured engine with chunks over a prefix is the 70B on four GPUs."""
    return (check_chunks(shape, attention, data),) if shape is LLAMA_70B_TP4 else ()


def _sources(shape: ModelShape) -> tuple[Source, ...]:
    heads = f"{shape.rank_heads} heads, {shape.rank_kv_heads} KV heads, width 128, bfloat16, no window"
    products = ", ".join(f"{p.name} n={p.outer} k={p.inner}" for p in shape.products)
    collective = Source(
        term="collective",
        file=sources.AIC_ALL_REDUCE,
        origin=AIC_ORIGIN,
        rows=f"{shape.gpus} GPUs, CUDA graph; {2 * shape.layers + 1} per step",
    )
    return (
        Source(term="dense", file=sources.AIC_GEMM, origin=AIC_ORIGIN, rows=f"bfloat16; {products}"),
        Source(term="dense", file=sources.AIC_SYSTEMS, origin=AIC_ORIGIN, rows="h100_sxm, gpu: mem_*"),
        *([collective] if shape.gpus > 1 else []),
        Source(
            term="output_layer",
            file=sources.sim_layers_file(shape.profile),
            origin=SIM_ORIGIN,
            rows=f"tp {shape.gpus}, lm_head",
        ),
        *(
            Source(term="attention", file=file, origin=AIC_ORIGIN, rows=f"{heads}, batch <= {MAX_SEQUENCES}")
            for file in (sources.AIC_PREFILL, sources.AIC_DECODE)
        ),
        *(
            Source(term="step_overhead", file=file, origin=SIM_ORIGIN, rows=f"{BENCH}, pure decode")
            for file in (sources.SIM_RUNS, sources.SIM_RTX)
        ),
    )


def report(file: CostFile) -> str:
    """The residuals of one cost file as lines of text."""
    lines = [f"{file.name}: step overhead {file.step_overhead_s * 1e3:.2f} ms"]
    lines += [
        f"  {r.term:<32} median {r.median:6.1%}  p90 {r.p90:6.1%}  {r.points:>5} points  {r.against}"
        for r in file.provenance.residuals
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit every engine, write its file and print its residuals."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="directory with the measurements")
    parser.add_argument("--out", type=Path, required=True, help="directory for the cost files")
    options = parser.parse_args(arguments)
    for shape in SHAPES:
        file = fit(shape, options.data)
        write(file, options.out)
        sys.stdout.write(report(file) + "\n")


if __name__ == "__main__":
    main()
