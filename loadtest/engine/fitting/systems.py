"""The GPU systems that were measured, and the files with their kernels."""

from dataclasses import dataclass

AIC_SOURCE = "ai-dynamo/aiconfigurator (Apache-2.0)"


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """One kind of GPU server, as AIConfigurator measured it."""

    name: str
    """The first part of a preset's name."""
    aic: str
    """AIConfigurator's name of it."""
    gpu: str
    kernels: str
    """The engine version whose kernels were measured."""
    memory_bytes: int
    """Of one GPU: `mem_capacity` of AIConfigurator's system file."""
    nic_bytes_per_s: float
    """Of one GPU's network card: `inter_node_bw` of that file."""
    server_budget_tokens: int
    """vLLM's default token budget of a step for a server: 8192 where a GPU has 70 GiB or more, but 2048 on an A100."""

    @property
    def origin(self) -> str:
        """Who measured, what, and where."""
        return f"{AIC_SOURCE}, {self.kernels} kernels on {self.gpu}"

    def file(self, kernel: str) -> str:
        """The file with the measurements of a kernel: `gemm`, `context_attention` and so on."""
        return f"aic_{self.aic}_vllm_{kernel}_perf.csv.gz"


A100 = System(
    name="a100",
    aic="a100_sxm",
    gpu="A100-SXM4-80GB",
    kernels="vLLM 0.14.0",
    memory_bytes=80 << 30,
    nic_bytes_per_s=25e9,
    server_budget_tokens=2048,
)
H100 = System(
    name="h100",
    aic="h100_sxm",
    gpu="H100 80GB HBM3",
    kernels="vLLM 0.24.0",
    memory_bytes=80 << 30,
    nic_bytes_per_s=50e9,
    server_budget_tokens=8192,
)
H200 = System(
    name="h200",
    aic="h200_sxm",
    gpu="H200",
    kernels="vLLM 0.24.0",
    memory_bytes=141 << 30,
    nic_bytes_per_s=50e9,
    server_budget_tokens=8192,
)
