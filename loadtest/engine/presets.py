"""The engines that can be emulated by name: limits here, prices in `costs/<name>.json`.

Where the numbers come from:

- KV bytes per token: 2 (keys and values) x layers x KV heads x head width x 2 bytes, from Llama 3.1's configurations.
- KV memory: vLLM's default 90 % of the GPU's memory, less weights (2 bytes per parameter), less what AIConfigurator's
  `h100_sxm.yaml` reserves per GPU: `other_mem`, and `nccl_mem` where GPUs talk to each other. `mem_capacity` is 80 GiB.
- Token budget: 8192, vLLM's default for a server on an H100. Running sequences: 256, as in Dynamo's simulated workers.
- Transfer rate: `inter_node_bw` of that file, one 400 Gb/s NIC. A group of four GPUs has four, but reported transfers
  do not add them up: the llm-d simulator's 70B profile has 8 us per token, which is 41 GB/s.
- Transfer latency: 2 ms, the RDMA set-up overhead of the llm-d simulator's H100 profiles.
- Lease: 30 s, the default `kv_lease_duration` of vLLM's NixlConnector.
"""

from collections.abc import Mapping
from types import MappingProxyType

from loadtest.engine.cost import CostTable, load_cost_table
from loadtest.engine.types import EngineSpec

BLOCK_TOKENS = 64
MEMORY_SHARE = 0.9
GPU_BYTES = 85_899_345_920
OTHER_BYTES = 3_758_096_384
NCCL_BYTES = 411_041_792
NIC_BYTES_PER_S = 50e9


class UnknownEngine(KeyError):  # noqa: N818 - named after what happened
    """No preset has this name; the message lists those that there are."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"no engine is called {self.name!r}; there are {', '.join(sorted(ENGINES))}"


def load_engine(name: str) -> tuple[EngineSpec, CostTable]:
    """The limits and prices of a preset; `UnknownEngine` where there is none."""
    try:
        spec = ENGINES[name]
    except KeyError:
        raise UnknownEngine(name) from None
    return spec, load_cost_table(name)


def kv_blocks(*, gpus: int, parameters: int, kv_bytes_per_token: int) -> int:
    """How many blocks fit beside the weights of a bfloat16 model on a group of H100 80GB GPUs."""
    reserved = OTHER_BYTES + (NCCL_BYTES if gpus > 1 else 0)
    free = gpus * (MEMORY_SHARE * GPU_BYTES - reserved) - 2 * parameters
    return int(free // (kv_bytes_per_token * BLOCK_TOKENS))


def _spec(name: str, *, gpus: int, parameters: int, layers: int, kv_heads: int, head_width: int) -> EngineSpec:
    kv_bytes_per_token = 2 * layers * kv_heads * head_width * 2
    return EngineSpec(
        name=name,
        block_tokens=BLOCK_TOKENS,
        total_blocks=kv_blocks(gpus=gpus, parameters=parameters, kv_bytes_per_token=kv_bytes_per_token),
        max_batched_tokens=8192,
        max_running=256,
        kv_bytes_per_token=kv_bytes_per_token,
        transfer_bytes_per_s=NIC_BYTES_PER_S,
        transfer_latency_s=0.002,
        hold_lease_s=30.0,
    )


ENGINES: Mapping[str, EngineSpec] = MappingProxyType(
    {
        spec.name: spec
        for spec in (
            _spec("h100-llama8b", gpus=1, parameters=8_030_261_248, layers=32, kv_heads=8, head_width=128),
            _spec("h100-llama70b-tp4", gpus=4, parameters=70_553_706_496, layers=80, kv_heads=8, head_width=128),
        )
    }
)
