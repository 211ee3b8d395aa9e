"""Model dimensions, and what tensor parallelism leaves of them on one GPU.

The numbers are those of the published configurations (`config.json` of each model).
"""

from dataclasses import dataclass
from enum import StrEnum

from loadtest.engine.fitting.systems import System

BYTES = 2
"""Of a bfloat16 weight or activation."""


class Precision(StrEnum):
    """Of a matrix product's operands or of a cached key, by AIConfigurator's names."""

    BF16 = "bfloat16"
    FP8 = "fp8"

    @property
    def bytes(self) -> int:
        """Bytes of one number."""
        return 2 if self is Precision.BF16 else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """One matrix product of a layer on one GPU: `tokens x inner` times `inner x outer`."""

    name: str
    outer: int
    inner: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A dense decoder with grouped-query attention and a gated feed-forward layer."""

    name: str
    """Within a preset's name."""
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_width: int = 128
    inner: int
    """Width of the feed-forward layer."""
    vocabulary: int
    has_qk_norm: bool = False
    """Queries and keys are normalised before the rotary embedding."""
    layer_profile: str | None = None
    """The model's name in LLMServingSim's file names, where it has a file."""

    @property
    def layer_weights(self) -> int:
        """Weights of all layers: everything that is quantised in an fp8 checkpoint."""
        attention = (2 * self.heads + 2 * self.kv_heads) * self.head_width * self.hidden
        return self.layers * (attention + 3 * self.hidden * self.inner)

    @property
    def norm_weights(self) -> int:
        """Weights of all norms."""
        qk_norms = 2 * self.head_width if self.has_qk_norm else 0
        return (2 * self.layers + 1) * self.hidden + self.layers * qk_norms

    @property
    def embedding_weights(self) -> int:
        """Weights of the embedding and of the output layer, which stay in bfloat16."""
        return 2 * self.vocabulary * self.hidden


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """A model on a group of GPUs of one server, split by tensor parallelism."""

    system: System
    model: Model
    gpus: int = 1
    weights: Precision = Precision.BF16
    kv: Precision = Precision.BF16

    @property
    def name(self) -> str:
        """Such as `h200-llama70b-tp4-fp8`; a cache of another precision than the weights is named too."""
        parts = [self.system.name, self.model.name]
        if self.gpus > 1:
            parts.append(f"tp{self.gpus}")
        if self.weights is Precision.FP8:
            parts.append("fp8")
        if self.kv is not self.weights:
            parts.append("kv8" if self.kv is Precision.FP8 else "kv16")
        return "-".join(parts)

    @property
    def rank_heads(self) -> int:
        """Query heads of one GPU."""
        return self.model.heads // self.gpus

    @property
    def rank_kv_heads(self) -> int:
        """Key-value heads of one GPU."""
        return self.model.kv_heads // self.gpus

    @property
    def kv_bytes_per_token(self) -> int:
        """Of the whole group: keys and values of all layers."""
        model = self.model
        return 2 * model.layers * model.kv_heads * model.head_width * self.kv.bytes

    @property
    def weight_bytes(self) -> int:
        """Of the whole group."""
        model = self.model
        return self.weights.bytes * model.layer_weights + BYTES * (model.embedding_weights + model.norm_weights)

    @property
    def products(self) -> tuple[Product, ...]:
        """The products of one layer on one GPU, merged the way that vLLM merges them."""
        model = self.model
        qkv = (self.rank_heads + 2 * self.rank_kv_heads) * model.head_width
        inner = model.inner // self.gpus
        return (
            Product(name="qkv_proj", outer=qkv, inner=model.hidden),
            Product(name="o_proj", outer=model.hidden, inner=self.rank_heads * model.head_width),
            Product(name="gate_up_proj", outer=2 * inner, inner=model.hidden),
            Product(name="down_proj", outer=model.hidden, inner=inner),
        )

    @property
    def output_product(self) -> Product:
        """The projection to one GPU's share of the vocabulary."""
        return Product(name="lm_head", outer=self.model.vocabulary // self.gpus, inner=self.model.hidden)

    @property
    def elementwise_bytes(self) -> tuple[int, ...]:
        """Bytes that each element-wise kernel of one layer moves per token on one GPU.

        Two norms fused with the residual addition, rotary embedding, the write to the KV cache, the activation, and
        where the model has it the norm of queries and keys.
        """
        model = self.model
        norm = 4 * model.hidden
        rotary = 2 * (self.rank_heads + self.rank_kv_heads) * model.head_width
        cache_write = 4 * self.rank_kv_heads * model.head_width
        activation = 3 * model.inner // self.gpus
        qk_norm = (rotary,) if model.has_qk_norm else ()
        return tuple(BYTES * values for values in (norm, norm, rotary, cache_write, activation, *qk_norm))


LLAMA_8B = Model(
    name="llama8b",
    layers=32,
    hidden=4096,
    heads=32,
    kv_heads=8,
    inner=14_336,
    vocabulary=128_256,
    layer_profile="llama-3.1-8b",
)
LLAMA_70B = Model(
    name="llama70b",
    layers=80,
    hidden=8192,
    heads=64,
    kv_heads=8,
    inner=28_672,
    vocabulary=128_256,
    layer_profile="llama-3.1-70b",
)
QWEN3_32B = Model(
    name="qwen32b",
    layers=64,
    hidden=5120,
    heads=64,
    kv_heads=8,
    inner=25_600,
    vocabulary=151_936,
    has_qk_norm=True,
)
