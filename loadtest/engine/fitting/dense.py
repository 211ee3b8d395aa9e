"""The terms that depend on a step's tokens or sequences only: products, element-wise kernels, all-reduces.

Each function returns seconds for all layers of the model on one GPU. The GPUs of a tensor-parallel group do the same
work at the same time, so one of them stands for all.
"""

from pathlib import Path

from loadtest.engine.fitting.products import ProductTimes, product_times
from loadtest.engine.fitting.regression import isotonic, residual, rounded
from loadtest.engine.fitting.shapes import BYTES, Deployment, Precision
from loadtest.engine.fitting.sources import Gpu, Table, read_all_reduce, read_gpu, sim_layers_file
from policy_store.costs.file import Knots, Residual

TOKEN_KNOTS = (
    *(1, 16, 32, 64, 128, 192, 256, 257, 512, 513, 768, 1024, 1280, 1536, 1792),
    *(2048, 2560, 3072, 3584, 4096, 8192, 16_384, 32_768),
)
SEQUENCE_KNOTS = (1, 16, 32, 64, 128, 192, 256, 512, 768, 1024, 2048)


def fit_dense(deployment: Deployment, data: Path) -> tuple[Knots, Residual]:
    """Matrix products as measured, plus element-wise kernels priced by the bytes that they move."""
    system = deployment.system
    times, gpu = product_times(data, system, deployment.weights), read_gpu(data, system)
    measured = {tokens: _dense_seconds(deployment, times, gpu, tokens) for tokens in times.sizes}
    knots = _knots({tokens: measured[tokens] for tokens in TOKEN_KNOTS if tokens in measured})
    between = {tokens: seconds for tokens, seconds in measured.items() if tokens not in TOKEN_KNOTS}
    return knots, residual("dense", f"{system.file('gemm')}: token counts between the knots", between, knots)


def check_products(deployment: Deployment, data: Path, profile: str, layers: Table) -> Residual:
    """The interpolated products against LLMServingSim's, which were measured at the very dimensions.

    Its query, key and value products are separate kernels, so they are left out.
    """
    times = product_times(data, deployment.system, Precision.BF16)
    _, *products = deployment.products
    names = ("o_proj", "gate_proj", "up_proj", "down_proj")
    sizes = [tokens for tokens in times.sizes if tokens in layers["o_proj"]]
    measured = {tokens: sum(layers[name][tokens] for name in names) for tokens in sizes}
    seconds = [sum(times.seconds(product, tokens) for product in products) for tokens in sizes]
    against = f"{sim_layers_file(profile)}: o, gate, up and down products, not fitted to"
    return residual("dense", against, measured, Knots(at=tuple(sizes), seconds=tuple(seconds)))


def fit_collective(deployment: Deployment, data: Path) -> tuple[Knots, Residual] | None:
    """Two all-reduces per layer and one after the embedding; None on a single GPU."""
    system, model = deployment.system, deployment.model
    if deployment.gpus == 1:
        return None
    token_bytes = BYTES * model.hidden
    times = 2 * model.layers + 1
    measured = {
        size // token_bytes: times * seconds
        for size, seconds in sorted(read_all_reduce(data, system, deployment.gpus).items())
        if size >= token_bytes
    }
    knots = _knots(measured)
    return knots, residual("collective", system.file("custom_allreduce"), measured, knots)


def fit_output_layer(deployment: Deployment, data: Path) -> tuple[Knots, Residual]:
    """The bfloat16 projection to the vocabulary, of which only a sequence's last token has need."""
    system = deployment.system
    times = product_times(data, system, Precision.BF16)
    measured = {sequences: times.seconds(deployment.output_product, sequences) for sequences in times.sizes}
    knots = _knots({sequences: measured[sequences] for sequences in SEQUENCE_KNOTS if sequences in measured})
    last = knots.at[-1]
    between = {size: seconds for size, seconds in measured.items() if size not in SEQUENCE_KNOTS and size < last}
    return knots, residual("output_layer", f"{system.file('gemm')}: counts between the knots", between, knots)


def check_output_layer(knots: Knots, profile: str, layers: Table) -> Residual:
    """The projection against LLMServingSim's, measured at the very dimensions."""
    measured = {count: seconds for count, seconds in layers["lm_head"].items() if count <= knots.at[-1]}
    return residual("output_layer", f"{sim_layers_file(profile)}: lm_head, not fitted to", measured, knots)


def _dense_seconds(deployment: Deployment, times: ProductTimes, gpu: Gpu, tokens: int) -> float:
    model = deployment.model
    products = sum(times.seconds(product, tokens) for product in deployment.products)
    per_layer = products + _elementwise_seconds(gpu, tokens, deployment.elementwise_bytes)
    embedding = final_norm = 2 * BYTES * model.hidden
    return model.layers * per_layer + _elementwise_seconds(gpu, tokens, (embedding, final_norm))


def _elementwise_seconds(gpu: Gpu, tokens: int, bytes_per_token: tuple[int, ...]) -> float:
    moved = tokens * sum(bytes_per_token) / gpu.effective_bytes_per_s
    return len(bytes_per_token) * gpu.kernel_latency_s + moved


def _knots(measured: dict[int, float]) -> Knots:
    return Knots(at=tuple(measured), seconds=tuple(map(rounded, isotonic(measured.values()))))
