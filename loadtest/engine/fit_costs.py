"""Fits the shipped cost files: `python -m loadtest.engine.fit_costs --data DIR --out DIR`.

The same measurements always give the same bytes. Every file carries its formula, its sources and its residuals.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from gateway.core.step_cost import AttentionTerms
from loadtest.engine.fitting import sources
from loadtest.engine.fitting.attention import MAX_SEQUENCES, check_chunks, fit_attention
from loadtest.engine.fitting.dense import (
    check_output_layer,
    check_products,
    fit_collective,
    fit_dense,
    fit_output_layer,
)
from loadtest.engine.fitting.overhead import BENCH, fit_step_overhead
from loadtest.engine.fitting.regression import rounded
from loadtest.engine.fitting.shapes import LLAMA_70B, Deployment, Precision
from loadtest.engine.fitting.sources import SIM_ORIGIN
from loadtest.engine.fitting.systems import AIC_SOURCE, H100
from loadtest.engine.presets import DEPLOYMENTS
from policy_store.costs.file import CostFile, Knots, Provenance, Residual, Source, write

FORMULA = (
    "step = step_overhead + dense(tokens) + collective(tokens) + output_layer(sequences) + attention",
    "attention = launch + prefill_sequence * chunks + prefill_token * new + prefill_pair * pairs + decoding",
    "decoding = decode_sequence * decodes + kv_token * (cached tokens read by decodes and by chunks)",
    "pairs of a chunk = new * (before + (new + 1) / 2)",
    "dense = layers * (4 products + element-wise kernels) + embedding + norm, for one GPU of the group",
    "element-wise kernel = mem_empirical_constant_latency + bytes / (mem_bw * mem_bw_empirical_scaling_factor)",
)
NOTES = (
    "Products are interpolated linearly between the measured n and k that enclose the model's dimensions.",
    "Falling stretches of a measured curve are replaced by their mean (isotonic regression).",
    "The step overhead was measured on another GPU and one rank; as host time it is taken to be the same here.",
)
FP8_NOTE = "An fp8 product's time includes quantising its input; the output layer stays in bfloat16."
SIM_NOTES = (
    "Element-wise kernels of LLMServingSim's layer files are not used: they are unfused (18 us for one norm).",
    "LLMServingSim's attention on H100 is not fitted to: its decodes take 27 ns per token of the longest sequence.",
    "So that kernel reads one sequence's keys serially, while vLLM's (FlashAttention 3) splits them over the GPU.",
)


def fit(deployment: Deployment, data: Path, step_overhead_s: float) -> CostFile:
    """The cost file of one engine from the measurements in `data`; the step overhead is the same for all.

    Raises:
        LookupError: the system, the split or the precision was not measured.
    """
    dense, dense_residual = fit_dense(deployment, data)
    output_layer, output_residual = fit_output_layer(deployment, data)
    attention, attention_residuals = fit_attention(deployment, data)
    collective = fit_collective(deployment, data)
    residuals = (
        dense_residual,
        *([collective[1]] if collective else []),
        output_residual,
        *attention_residuals,
        *_checks(deployment, output_layer, attention, data),
    )
    return CostFile(
        name=deployment.name,
        step_overhead_s=rounded(step_overhead_s),
        dense=dense,
        collective=collective[0] if collective else None,
        output_layer=output_layer,
        attention=attention,
        provenance=Provenance(
            formula=FORMULA, sources=_sources(deployment), residuals=residuals, notes=_notes(deployment)
        ),
    )


def _has_checks(deployment: Deployment) -> bool:
    """LLMServingSim measured Llama in bfloat16 on H100."""
    return deployment.system is H100 and deployment.weights is Precision.BF16 and bool(deployment.model.layer_profile)


def _checks(deployment: Deployment, output_layer: Knots, attention: AttentionTerms, data: Path) -> tuple[Residual, ...]:
    """Against measurements that no term was fitted to; chunks over a prefix were measured for the 70B on four GPUs."""
    profile = deployment.model.layer_profile
    if not _has_checks(deployment) or profile is None:
        return ()
    layers = sources.read_layers(data, profile, deployment.gpus)
    has_chunks = deployment.model is LLAMA_70B and deployment.gpus == 4
    return (
        check_products(deployment, data, profile, layers),
        check_output_layer(output_layer, profile, layers),
        *([check_chunks(deployment, attention, data)] if has_chunks else []),
    )


def _notes(deployment: Deployment) -> tuple[str, ...]:
    return (
        *NOTES,
        *([FP8_NOTE] if deployment.weights is Precision.FP8 else []),
        *(SIM_NOTES if _has_checks(deployment) else ()),
    )


def _sources(deployment: Deployment) -> tuple[Source, ...]:
    system, gpus = deployment.system, deployment.gpus
    heads = f"{deployment.rank_heads} heads, {deployment.rank_kv_heads} KV heads, width 128, {deployment.kv}, no window"
    products = ", ".join(f"{p.name} n={p.outer} k={p.inner}" for p in deployment.products)
    output = deployment.output_product
    rows = {
        ("dense", "gemm"): f"{deployment.weights}; {products}",
        ("output_layer", "gemm"): f"bfloat16; n={output.outer} k={output.inner}",
        ("attention", "context_attention"): f"{heads}, batch <= {MAX_SEQUENCES}",
        ("attention", "generation_attention"): f"{heads}, batch <= {MAX_SEQUENCES}",
    }
    if gpus > 1:
        all_reduces = 2 * deployment.model.layers + 1
        rows["collective", "custom_allreduce"] = f"{gpus} GPUs, CUDA graph; {all_reduces} per step"
    return (
        *(
            Source(term=term, file=system.file(kernel), origin=system.origin, rows=text)
            for (term, kernel), text in rows.items()
        ),
        Source(term="dense", file=sources.AIC_SYSTEMS, origin=AIC_SOURCE, rows=f"{system.aic}, gpu: mem_*"),
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
    step_overhead_s = fit_step_overhead(options.data)
    for deployment in DEPLOYMENTS:
        file = fit(deployment, options.data, step_overhead_s)
        write(file, options.out)
        sys.stdout.write(report(file) + "\n")


if __name__ == "__main__":
    main()
