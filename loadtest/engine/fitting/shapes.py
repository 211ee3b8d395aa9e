"""Model dimensions, and what tensor parallelism leaves of them on one GPU.

The numbers are those of the published Llama 3.1 configurations (`config.json` of the 8B and the 70B).
"""

from dataclasses import dataclass

BYTES = 2
"""Of a bfloat16 weight, activation or cached key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """One matrix product of a layer on one GPU: `tokens x inner` times `inner x outer`."""

    name: str
    outer: int
    inner: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A dense Llama model split over `gpus` GPUs by tensor parallelism."""

    name: str
    profile: str
    """The model's name in LLMServingSim's file names."""
    gpus: int
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_width: int
    inner: int
    """Width of the feed-forward layer."""

    @property
    def rank_heads(self) -> int:
        """Query heads of one GPU."""
        return self.heads // self.gpus

    @property
    def rank_kv_heads(self) -> int:
        """Key-value heads of one GPU."""
        return self.kv_heads // self.gpus

    @property
    def products(self) -> tuple[Product, ...]:
        """The products of one layer on one GPU, merged the way that vLLM merges them."""
        qkv = (self.rank_heads + 2 * self.rank_kv_heads) * self.head_width
        inner = self.inner // self.gpus
        return (
            Product(name="qkv_proj", outer=qkv, inner=self.hidden),
            Product(name="o_proj", outer=self.hidden, inner=self.rank_heads * self.head_width),
            Product(name="gate_up_proj", outer=2 * inner, inner=self.hidden),
            Product(name="down_proj", outer=self.hidden, inner=inner),
        )

    @property
    def elementwise_bytes(self) -> tuple[int, ...]:
        """Bytes that each element-wise kernel of one layer moves per token on one GPU.

        Two norms fused with the residual addition, rotary embedding, the write to the KV cache, the activation.
        """
        norm = 4 * self.hidden
        rotary = 2 * (self.rank_heads + self.rank_kv_heads) * self.head_width
        cache_write = 4 * self.rank_kv_heads * self.head_width
        activation = 3 * self.inner // self.gpus
        return tuple(BYTES * values for values in (norm, norm, rotary, cache_write, activation))


LLAMA_8B = ModelShape(
    name="h100-llama8b",
    profile="llama-3.1-8b",
    gpus=1,
    layers=32,
    hidden=4096,
    heads=32,
    kv_heads=8,
    head_width=128,
    inner=14_336,
)
LLAMA_70B_TP4 = ModelShape(
    name="h100-llama70b-tp4",
    profile="llama-3.1-70b",
    gpus=4,
    layers=80,
    hidden=8192,
    heads=64,
    kv_heads=8,
    head_width=128,
    inner=28_672,
)
SHAPES = (LLAMA_8B, LLAMA_70B_TP4)
