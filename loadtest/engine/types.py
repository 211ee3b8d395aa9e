"""What the engine model takes and tells.

The rule of this module: data only, in types that cost little to make. An engine knows tokens, blocks and seconds; text,
HTTP and real time are its host's business.
"""

from dataclasses import dataclass
from enum import StrEnum

import msgspec


class FinishReason(StrEnum):
    """Why a request left the engine."""

    LENGTH = "length"
    """All requested tokens were made."""
    REJECTED = "rejected"
    """Prompt plus output can never fit the KV cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """One emulated GPU group's limits, in the engine's own terms."""

    name: str
    """Preset name, such as `h100-llama70b-tp4`."""
    block_tokens: int = 64
    total_blocks: int = 16_384
    max_batched_tokens: int = 8192
    """Token budget of one step."""
    long_prefill_tokens: int | None = None
    """The most of one prompt that a step computes: vLLM's `--long-prefill-token-threshold`; None: all that the budget
    has left. Short prompts then pass long ones, and whoever decodes meanwhile goes on."""
    max_running: int = 256
    kv_bytes_per_token: int = 327_680
    transfer_bytes_per_s: float = 50e9
    transfer_latency_s: float = 0.002
    transfers_share_link: bool = True
    """Transfers out of or into one worker follow one another at the full rate; else each has that rate to itself."""
    transfers_whole_prompt: bool = False
    """Tokens that the decode side has in its prefix cache are transferred all the same."""
    reservations_per_step: int = 1 << 30
    """How many decode legs may get their blocks between two steps."""
    caches_prefixes: bool = True
    """Whether prompts find what earlier ones left in the KV cache."""
    plans_ahead: bool = False
    """The next step is planned while one runs, as vLLM's asynchronous scheduling does: what changes meanwhile is for
    the step after it."""
    intake_s: float = 0.0
    """From a request's arrival to its place in the queue: HTTP and validation."""
    intake_token_s: float = 0.0
    """Tokenising: more of the same, per prompt token."""
    hold_lease_s: float = 30.0
    """How long a prefill leg's blocks wait for their transfer before they are given up."""

    def __post_init__(self) -> None:
        if self.max_batched_tokens < self.max_running:
            raise ValueError("a step's token budget must allow one token for every running sequence, as in vLLM")
        if self.long_prefill_tokens is not None and self.long_prefill_tokens < 1:
            raise ValueError("a step must compute at least one token of a prompt")


class EngineRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence for the engine to serve.

    `block_hashes` are chained 64-bit hashes of the prompt's pieces of `hash_blocks` blocks each, the last of which may
    be shorter: equal leading hashes are equal leading tokens. Only full blocks are ever found again.
    """

    request_id: str
    prompt_tokens: int
    output_tokens: int
    """How many tokens to generate, at least 1."""
    block_hashes: tuple[int, ...] = ()
    hash_blocks: int = 1
    holds_kv: bool = False
    """A prefill leg: after its last token its blocks stay until `release_held` or the lease ends."""
    remote_tokens: int = 0
    """A decode leg: leading prompt tokens whose KV arrives by transfer instead of being computed."""


class TokenMade(msgspec.Struct, frozen=True, kw_only=True):
    """A step ended and the request has one more output token; `index` counts from 0."""

    at_s: float
    request_id: str
    index: int


class RequestFinished(msgspec.Struct, frozen=True, kw_only=True):
    """The request's last token was made (or it was rejected)."""

    at_s: float
    request_id: str
    reason: FinishReason
    cached_tokens: int
    """Prompt tokens that came from this engine's own prefix cache at first admission."""
    preemptions: int


class TransferFinished(msgspec.Struct, frozen=True, kw_only=True):
    """The remote KV of a decode leg has arrived: its source may free it."""

    at_s: float
    request_id: str


EngineEvent = TokenMade | RequestFinished | TransferFinished


class EngineSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Gauges and monotone counters, named after what vLLM reports."""

    running: int
    waiting: int
    """Requests not yet admitted, those that wait for a KV transfer among them."""
    kv_used_ratio: float
    prefix_queried_tokens: int
    prefix_hit_tokens: int
    remote_kv_tokens: int
    preemptions: int
    prompt_tokens: int
    generated_tokens: int
    finished: int
    steps: int
    busy_s: float
