"""What one emulated worker is, as its user writes it.

Only what a user may want to choose is here; how long things take belongs to the engine preset.
"""

from dataclasses import dataclass
from enum import StrEnum

from gateway.core.types import Role
from loadtest.worker.faults import Fault


class KvLoadFailurePolicy(StrEnum):
    """What a decode leg does when the KV that it was promised cannot be had (vLLM's setting of this name)."""

    FAIL = "fail"
    """Answer 500."""
    RECOMPUTE = "recompute"
    """Prefill the prompt here."""


class Task(StrEnum):
    """What a worker's model can do; a vLLM server has the routes of its model's tasks, and no others."""

    GENERATE = "generate"
    """Completions, chat, responses, messages."""
    POOLING = "pooling"
    """Embeddings, scores, reranking, pooling."""
    TRANSCRIPTION = "transcription"
    """Speech to text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """One emulated worker. Raises ValueError for a setting that no worker can have."""

    name: str
    engine: str
    """Name of the engine preset, such as `h100-llama70b-tp4`."""
    model: str
    """The model name that clients ask for."""
    adapters: tuple[str, ...] = ()
    """LoRA adapters of the model: clients may ask for them by name as well."""
    tasks: tuple[Task, ...] = (Task.GENERATE,)
    """What the model can do."""
    faults: tuple[Fault, ...] = ()
    """Faults that it has from the start."""
    role: Role = Role.BOTH
    """What the fleet means this worker for. Like vLLM it does not refuse the other leg."""
    host: str = "127.0.0.1"
    """The address to listen on."""
    port: int = 0
    """The port to listen on; 0 takes a free one."""
    advertise_host: str | None = None
    """Where other workers find this one's KV; None is `host`, or the host name where that is a wildcard."""
    speed: float = 1.0
    """Engine seconds per second."""
    max_model_len: int | None = None
    """Prompt plus output tokens of one request; None is 131,072 or the KV cache's size, if that is less."""
    kv_load_failure_policy: KvLoadFailurePolicy = KvLoadFailurePolicy.RECOMPUTE
    enable_prompt_tokens_details: bool = True
    """Whether usage tells the cached prompt tokens."""
    block_tokens: int | None = None
    """Overrides the preset's KV block size."""
    total_blocks: int | None = None
    """Overrides the preset's number of KV blocks."""

    def __post_init__(self) -> None:
        if not self.name or not self.model:
            raise ValueError("a worker needs a name and a model")
        if self.speed <= 0:
            raise ValueError(f"speed must be positive, got {self.speed}")
        if not 0 <= self.port <= 65_535:
            raise ValueError(f"no such port: {self.port}")
        for field in ("max_model_len", "block_tokens", "total_blocks"):
            value = getattr(self, field)
            if value is not None and value < 1:
                raise ValueError(f"{field} must be at least 1, got {value}")
