"""The engines that can be emulated by name: limits here, prices in `policy_store/costs/<name>.json`.

Where the numbers come from:

- KV bytes per token: 2 (keys and values) x layers x KV heads x head width x bytes, from the models' configurations.
- KV memory: vLLM's default 90 % of the GPU's memory, less the weights, less what AIConfigurator's system files reserve
  per GPU: `other_mem`, and `nccl_mem` where GPUs talk to each other.
- Token budget: vLLM's default for a server. Running sequences: 256, vLLM's default in general.
- Transfer rate: one network card. A group of four GPUs has four, but reported transfers do not add them up: the llm-d
  simulator's 70B profile has 8 us per token, which is 41 GB/s.
- Transfer latency: 2 ms, the RDMA set-up overhead of the llm-d simulator's H100 profiles.
- Steps are planned ahead, as vLLM's asynchronous scheduling does by default.
- Lease: 30 s, the default `kv_lease_duration` of vLLM's NixlConnector.

Behind a name may stand, in this order:

- `@cap60`: on GPUs capped at 60 % of their TDP: the same limits, other prices and power (`loadtest.engine.power`);
- `@chunk512`: started with `--long-prefill-token-threshold 512`: a step computes at most 512 tokens of one prompt.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from gateway.core.step_cost import CostTable
from loadtest.engine.engine_file import SUFFIX, load_engine_file
from loadtest.engine.fitting.shapes import LLAMA_8B, LLAMA_70B, QWEN3_32B, Deployment, Precision
from loadtest.engine.fitting.systems import A100, H100, H200
from loadtest.engine.power import GPU_POWER, PowerModel, capped
from loadtest.engine.types import EngineSpec
from policy_store.costs.file import load_cost_table

BLOCK_TOKENS = 64
MEMORY_SHARE = 0.9
MAX_RUNNING = 256
OTHER_BYTES = 3_758_096_384
NCCL_BYTES = 411_041_792
TRANSFER_LATENCY_S = 0.002
HOLD_LEASE_S = 30.0

MIN_CAP_PERCENT = 30
"""About the least that boards can be set to: 100 of an A100's 400 W, 200 of an H100's 700 W."""

FP8 = Precision.FP8

_NAME = re.compile(r"(?P<base>[^@]+)(@cap(?P<percent>\d\d))?(@chunk(?P<chunk>[1-9]\d{0,5}))?")

DEPLOYMENTS = (
    Deployment(system=A100, model=LLAMA_8B),
    Deployment(system=A100, model=LLAMA_70B, gpus=4),
    Deployment(system=A100, model=QWEN3_32B, gpus=2),
    Deployment(system=H100, model=LLAMA_8B),
    Deployment(system=H100, model=LLAMA_70B, gpus=2, weights=FP8, kv=FP8),
    Deployment(system=H100, model=LLAMA_70B, gpus=4),
    Deployment(system=H100, model=LLAMA_70B, gpus=4, weights=FP8, kv=FP8),
    Deployment(system=H100, model=QWEN3_32B, gpus=2),
    Deployment(system=H200, model=LLAMA_8B),
    Deployment(system=H200, model=LLAMA_70B, gpus=4),
    Deployment(system=H200, model=LLAMA_70B, gpus=4, weights=FP8, kv=FP8),
    Deployment(system=H200, model=QWEN3_32B),
)
"""What has a preset; an fp8 one keeps weights and KV cache in fp8."""


class UnknownEngine(KeyError):  # noqa: N818 - named after what happened
    """No preset has this name; the message lists those that there are."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        names, caps = ", ".join(sorted(ENGINES)), f"@cap{MIN_CAP_PERCENT} to @cap99"
        return f"no engine is called {self.name!r}; there are {names}, and each with {caps} and @chunkN behind its name"


def load_engine(name: str) -> tuple[EngineSpec, CostTable]:
    """The limits and prices of a preset, capped or not, or of an engine file where the name ends in `.json`.

    Raises:
        UnknownEngine: no such preset.
        EngineFileError: the file is no engine file.
        OSError: it cannot be read.
    """
    if name.endswith(SUFFIX):
        return load_engine_file(Path(name))
    parted = _Parted.of(name)
    spec, costs = ENGINES[parted.base], load_cost_table(parted.base)
    if parted.chunk_tokens is not None:
        spec = replace(spec, name=name, long_prefill_tokens=parted.chunk_tokens)
    if parted.cap_ratio is None:
        return spec, costs
    slowed, _ = capped(costs, _POWER[parted.base], parted.cap_ratio)
    return replace(spec, name=name), replace(slowed, name=name)


def power_model(name: str) -> PowerModel:
    """What all GPUs of a preset's worker draw, capped or not.

    Raises:
        UnknownEngine: no such preset; engine files do not say what theirs draw.
    """
    parted = _Parted.of(name)
    power = _POWER[parted.base]
    return power if parted.cap_ratio is None else capped(load_cost_table(parted.base), power, parted.cap_ratio)[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parted:
    """A preset's name and what stands behind it."""

    base: str
    cap_ratio: float | None
    """Of the TDP."""
    chunk_tokens: int | None

    @classmethod
    def of(cls, name: str) -> "_Parted":
        match = _NAME.fullmatch(name)
        if match is None or match["base"] not in ENGINES:
            raise UnknownEngine(name)
        percent, chunk = (None if match[each] is None else int(match[each]) for each in ("percent", "chunk"))
        if percent is not None and percent < MIN_CAP_PERCENT:
            raise UnknownEngine(name)
        return cls(base=match["base"], cap_ratio=None if percent is None else percent / 100, chunk_tokens=chunk)


def kv_blocks(deployment: Deployment, block_tokens: int = BLOCK_TOKENS) -> int:
    """How many blocks fit beside the weights."""
    reserved = OTHER_BYTES + (NCCL_BYTES if deployment.gpus > 1 else 0)
    per_gpu = MEMORY_SHARE * deployment.system.memory_bytes - reserved
    free = deployment.gpus * per_gpu - deployment.weight_bytes
    return int(free // (deployment.kv_bytes_per_token * block_tokens))


def engine_spec(deployment: Deployment) -> EngineSpec:
    """The limits of an engine that runs with vLLM's defaults."""
    return EngineSpec(
        name=deployment.name,
        block_tokens=BLOCK_TOKENS,
        total_blocks=kv_blocks(deployment),
        max_batched_tokens=deployment.system.server_budget_tokens,
        max_running=MAX_RUNNING,
        kv_bytes_per_token=deployment.kv_bytes_per_token,
        transfer_bytes_per_s=deployment.system.nic_bytes_per_s,
        transfer_latency_s=TRANSFER_LATENCY_S,
        hold_lease_s=HOLD_LEASE_S,
        plans_ahead=True,
    )


ENGINES: Mapping[str, EngineSpec] = MappingProxyType({each.name: engine_spec(each) for each in DEPLOYMENTS})
_POWER: Mapping[str, PowerModel] = MappingProxyType(
    {each.name: GPU_POWER[each.system.name].group(each.gpus) for each in DEPLOYMENTS}
)
