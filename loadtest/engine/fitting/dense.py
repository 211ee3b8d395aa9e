"""The terms that depend on a step's tokens or sequences only: products, element-wise kernels, all-reduces.

Each function returns seconds for all layers of the model on one GPU. The GPUs of a tensor-parallel group do the same
work at the same time, so one of them stands for all.
"""

from bisect import bisect_left
from pathlib import Path

import numpy as np

from loadtest.engine.cost_file import Knots, Residual
from loadtest.engine.fitting.regression import isotonic, residual, rounded
from loadtest.engine.fitting.shapes import BYTES, ModelShape, Product
from loadtest.engine.fitting.sources import (
    AIC_ALL_REDUCE,
    AIC_GEMM,
    Gpu,
    Table,
    read_all_reduce,
    sim_layers_file,
)

Grid = dict[tuple[int, int, int], float]

TOKEN_KNOTS = (
    *(1, 16, 32, 64, 128, 192, 256, 257, 512, 513, 768, 1024, 1280, 1536, 1792),
    *(2048, 2560, 3072, 3584, 4096, 8192, 16_384, 32_768),
)
SEQUENCE_KNOTS = (1, 16, 32, 64, 128, 192, 256, 384, 512, 768, 1024, 2048)


def fit_dense(shape: ModelShape, gemm: Grid, gpu: Gpu) -> tuple[Knots, Residual]:
    """Matrix products as measured, plus element-wise kernels priced by the bytes that they move."""
    sizes = sorted({tokens for tokens, _, _ in gemm})
    measured = {tokens: _dense_seconds(shape, gemm, gpu, tokens) for tokens in sizes}
    knots = _knots({tokens: measured[tokens] for tokens in TOKEN_KNOTS})
    between = {tokens: seconds for tokens, seconds in measured.items() if tokens not in TOKEN_KNOTS}
    return knots, residual("dense", f"{AIC_GEMM}: token counts between the knots", between, knots)


def check_products(shape: ModelShape, gemm: Grid, layers: Table) -> Residual:
    """The interpolated products against LLMServingSim's, which were measured at the very dimensions.

    Its query, key and value products are separate kernels, so they are left out.
    """
    _, *products = shape.products
    names = ("o_proj", "gate_proj", "up_proj", "down_proj")
    sizes = sorted({tokens for tokens, _, _ in gemm if tokens in layers["o_proj"]})
    measured = {tokens: sum(layers[name][tokens] for name in names) for tokens in sizes}
    seconds = [sum(_product_seconds(gemm, product, tokens) for product in products) for tokens in sizes]
    against = f"{sim_layers_file(shape.profile)}: o, gate, up and down products, not fitted to"
    return residual("dense", against, measured, Knots(at=tuple(sizes), seconds=tuple(seconds)))


def fit_collective(shape: ModelShape, data: Path) -> tuple[Knots, Residual] | None:
    """Two all-reduces per layer and one after the embedding; None on a single GPU."""
    if shape.gpus == 1:
        return None
    token_bytes = BYTES * shape.hidden
    times = 2 * shape.layers + 1
    measured = {
        size // token_bytes: times * seconds
        for size, seconds in sorted(read_all_reduce(data, shape.gpus).items())
        if size >= token_bytes
    }
    knots = _knots(measured)
    return knots, residual("collective", AIC_ALL_REDUCE, measured, knots)


def fit_output_layer(shape: ModelShape, layers: Table) -> tuple[Knots, Residual]:
    """The projection to the vocabulary, of which only a sequence's last token has need."""
    measured = layers["lm_head"]
    knots = _knots({sequences: measured[sequences] for sequences in SEQUENCE_KNOTS})
    return knots, residual("output_layer", f"{sim_layers_file(shape.profile)}: lm_head", measured, knots)


def _dense_seconds(shape: ModelShape, gemm: Grid, gpu: Gpu, tokens: int) -> float:
    products = sum(_product_seconds(gemm, product, tokens) for product in shape.products)
    per_layer = products + _elementwise_seconds(gpu, tokens, shape.elementwise_bytes)
    embedding = final_norm = 2 * BYTES * shape.hidden
    return shape.layers * per_layer + _elementwise_seconds(gpu, tokens, (embedding, final_norm))


def _elementwise_seconds(gpu: Gpu, tokens: int, bytes_per_token: tuple[int, ...]) -> float:
    moved = tokens * sum(bytes_per_token) / gpu.effective_bytes_per_s
    return len(bytes_per_token) * gpu.kernel_latency_s + moved


def _product_seconds(gemm: Grid, product: Product, tokens: int) -> float:
    """One product, interpolated between the measured sizes that enclose its dimensions."""
    sizes = sorted({n for _, n, _ in gemm})
    outer, inner = _enclosing(sizes, product.outer), _enclosing(sizes, product.inner)
    by_outer = [float(np.interp(product.inner, inner, [gemm[tokens, n, k] for k in inner])) for n in outer]
    return float(np.interp(product.outer, outer, by_outer))


def _enclosing(sizes: list[int], wanted: int) -> tuple[int, ...]:
    at = bisect_left(sizes, wanted)
    return (wanted,) if sizes[at] == wanted else (sizes[at - 1], sizes[at])


def _knots(measured: dict[int, float]) -> Knots:
    return Knots(at=tuple(measured), seconds=tuple(map(rounded, isotonic(measured.values()))))
