"""How each source ran its benchmarks: one set of settings per source, the same for all its rows.

Settings are those of the source's public scripts, and no number is fitted. Two of them are open, and were read with the
rows at hand: the KV cache's type on H100, and the token budget of AIConfigurator's runs. `evidence` says why, and
`ALTERNATIVES` has the other readings.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from loadtest.engine.fitting.shapes import LLAMA_8B, LLAMA_70B, QWEN3_32B, Deployment, Model, Precision
from loadtest.engine.presets import kv_blocks
from loadtest.engine.types import EngineSpec
from loadtest.validate.silicon_loop import Lengths
from loadtest.validate.silicon_rows import Benchmark

BLOCK_TOKENS = 16
"""vLLM's default."""
SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """One source's client and server settings."""

    source: str
    evidence: tuple[str, ...]
    requests_per_client: int = 10
    """Requests of a run, per unit of concurrency."""
    shortest_share: float
    """Lengths are uniform between this share of the nominal length and all of it."""
    budget_tokens: int
    """Token budget of a step."""
    budget_adds_prompt: bool = False
    """The nominal prompt length is added to `budget_tokens`."""
    max_running: int | None = None
    """None where the server was started with the row's concurrency as its limit."""
    front_end_is_serial: bool = True
    """Requests that come together are taken in one after another."""
    kv_on: Mapping[str, Precision] = field(default_factory=dict)
    """Precision of the KV cache by system; that of the weights where none is named."""

    def deployment(self, row: Benchmark) -> Deployment:
        """What served the row."""
        kv = self.kv_on.get(row.system.name, row.precision)
        return Deployment(system=row.system, model=row.model, gpus=row.gpus, weights=row.precision, kv=kv)

    def engine_spec(self, row: Benchmark) -> EngineSpec:
        """The limits of the server that the row was measured on."""
        deployment = self.deployment(row)
        return EngineSpec(
            name=deployment.name,
            block_tokens=BLOCK_TOKENS,
            total_blocks=kv_blocks(deployment, BLOCK_TOKENS),
            max_batched_tokens=self.budget_tokens + (row.isl_tokens if self.budget_adds_prompt else 0),
            max_running=self.max_running or row.concurrency,
            kv_bytes_per_token=deployment.kv_bytes_per_token,
        )

    def lengths(self, row: Benchmark) -> list[Lengths]:
        """Prompt and output tokens of every request, in the order in which they are sent."""
        draw = random.Random(SEED)  # noqa: S311 - lengths, not secrets

        def length(nominal: int) -> int:
            return draw.randint(int(self.shortest_share * nominal), nominal)

        count = self.requests_per_client * row.concurrency
        return [(length(row.isl_tokens), length(row.osl_tokens)) for _ in range(count)]


INFERENCE_MAX = Protocol(
    source="InferenceMAX, October 2025",
    evidence=(
        "client of its 70b_fp8 scripts: 10 requests per client, random_range_ratio 0.8, ignore_eos, all at once",
        "server of the same scripts: 90 % of the memory, max-num-batched-tokens 8192, no prefix caching",
        "max-num-seqs is the number of clients",
        "collected are mean_ttft and mean_tpot of that client",
        "KV cache: the scripts say fp8; an earlier one for H100 names no type, which means bfloat16",
        "on H100 it was bfloat16: in rows that memory limits, clients and times leave 225,000 tokens resident",
    ),
    shortest_share=0.8,
    budget_tokens=8192,
    kv_on={"h100": Precision.BF16},
)
AICONFIGURATOR = Protocol(
    source="AIConfigurator's own runs, vLLM 0.12.0; their scripts are not public",
    evidence=(
        "client of its eval command: fixed lengths, 10 requests per client after a warm-up, averages reported",
        "server by its generator's rules: max-num-seqs 512, no prefix caching",
        "max-num-batched-tokens by the same rules: 512 + prompt + 1500",
        "vLLM's default of 8192 does not go with the rows: on two H100 eight prompts of 1024 tokens that come",
        "together would share a step of over 0.4 s, and a mean TTFT of 0.15 s was measured",
        "KV cache in the weights' precision",
    ),
    shortest_share=1.0,
    budget_tokens=512 + 1500,
    budget_adds_prompt=True,
    max_running=512,
)
SOURCES = (INFERENCE_MAX, AICONFIGURATOR)

PROTOCOLS: Mapping[Model, Protocol] = {
    LLAMA_70B: INFERENCE_MAX,
    QWEN3_32B: AICONFIGURATOR,
    LLAMA_8B: AICONFIGURATOR,
}

ALTERNATIVES: Mapping[Model, Mapping[str, Protocol]] = {
    LLAMA_70B: {
        "fp8 KV cache on H100 too": replace(INFERENCE_MAX, kv_on={}),
        "lengths as nominal": replace(INFERENCE_MAX, shortest_share=1.0),
    },
    QWEN3_32B: {
        "8192 tokens a step": replace(AICONFIGURATOR, budget_tokens=8192, budget_adds_prompt=False),
        "2048 tokens a step": replace(AICONFIGURATOR, budget_tokens=2048, budget_adds_prompt=False),
        "50 requests per client": replace(AICONFIGURATOR, requests_per_client=50),
        "requests taken in all at once": replace(AICONFIGURATOR, front_end_is_serial=False),
    },
}
"""Other readings of a source, by model and by what they change."""
