"""The settings of routing: which rules and policies decide, and by what.

The rule of this module: declarations, and what must hold between them.
"""

from pathlib import Path as FilePath
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from gateway.core.candidates import LEAST
from gateway.core.conversation.rules import Mode, Pinning
from gateway.core.path.rules import DynamoMode
from gateway.settings_base import Ratio, Seconds, Section
from gateway.wire.conversation_names import BodyField, ConversationNames

NAMES = ConversationNames()
HeaderName = Annotated[str, Field(pattern=r"^[!-~]+$")]


class DynamoSettings(Section):
    """NVIDIA Dynamo's conditional disaggregation; the five keys and defaults are Dynamo's."""

    policy: DynamoMode = Field(DynamoMode.ISL_BOUNDING, description="isl_bounding, prefill_load or isl_or_load.")
    eff_isl_threshold: int = Field(2048, ge=0, description="Local below so many uncached tokens.")
    eff_isl_ratio_threshold: Ratio = Field(0.7, description="Local below this uncached share.")
    prefill_busy_threshold: float | None = Field(
        None, ge=0, description="A prefill worker with more tokens than this times its step budget is busy."
    )
    decode_busy_threshold: float | None = Field(
        None, ge=0, description="No local prefill above this share of the decode worker's blocks; unset is off."
    )


class LlmdSettings(Section):
    """llm-d's prefix-based decider."""

    non_cached_tokens: int = Field(0, ge=0, description="Remote from so many uncached tokens; 0 is never.")
    prompt_tokens: int = Field(0, ge=0, description="Remote only from so many prompt tokens.")


class PowerSettings(Section):
    """What all GPUs of one worker draw, in watts."""

    idle_w: float = Field(ge=0, description="With the model loaded and nothing to do.")
    decode_w: float = Field(gt=0, description="In steps that only decode.")
    prefill_w: float = Field(gt=0, description="In the time that prompt tokens add to a step; the TDP, if not known.")

    @model_validator(mode="after")
    def _rises(self) -> Self:
        if not self.idle_w <= self.decode_w <= self.prefill_w:
            raise ValueError("power must rise from idle_w to decode_w and prefill_w")
        return self


class EngineFileSettings(Section):
    """What the workers' engines take, as `tidegate calibrate` writes it; one file alone stands for both pools."""

    prefill: FilePath | None = Field(None, description="Engine file of the prefill workers.")
    decode: FilePath | None = Field(None, description="Engine file of the decode workers.")
    prefill_power: PowerSettings | None = Field(None, description="Of the prefill workers; unset: energy is not told.")
    decode_power: PowerSettings | None = Field(None, description="Of the decode workers.")


class ConversationSettings(Section):
    """How the turns of a conversation are recognised, and kept together."""

    mode: Mode = Field(Mode.AFFINITY, description="conserve, affinity or off.")
    by_model: dict[str, Mode] = Field({}, description="Another mode for some models.")
    headers: tuple[HeaderName, ...] = Field(NAMES.headers, description="Headers that name a conversation, first wins.")
    fields: tuple[BodyField, ...] = Field(NAMES.fields, description="Body fields that name it where no header does.")
    pinning: Pinning = Field(
        Pinning.HASH,
        description="Of affinity: hash (by the label, replicas agree) or load (as the path policy places it).",
    )
    capacity: int = Field(100_000, ge=1, description="Conversations that are remembered.")
    admit_ratio: float = Field(0.85, gt=0, le=1, description="Share of a KV cache that conversations are promised.")
    headroom_ratio: float = Field(0.5, ge=0, description="Promised beyond a first prompt, as a share of it.")
    headroom_tokens: int = Field(512, ge=0, description="Promised beyond that.")
    idle_ttl_s: Seconds = Field(600.0, description="Without a turn for so long, a conversation has ended.")
    tool_wait_s: float = Field(60.0, ge=0, description="For so long after a turn, at most, it counts as alive.")
    presumes_over: bool = Field(
        True, description="Count a conversation as over that pauses longer than 95 % of pauses did of late."
    )
    evict_after_s: float | None = Field(
        0.0, ge=0, description="A new conversation waits so long before idle ones give way; null is a plain queue."
    )
    max_wait_s: float = Field(5.0, ge=0, description="After so long it is served, room or not.")
    local_below_tokens: int = Field(0, ge=0, description="Shorter first prompts are prefilled at home: no transfer.")
    rebalance_ratio: float | None = Field(
        None, gt=0, le=1, description="An idle conversation moves where its worker is so much fuller; null never."
    )

    @property
    def names(self) -> ConversationNames | None:
        """By what conversations are recognised; None where none is held together."""
        if {self.mode, *self.by_model.values()} == {Mode.OFF}:
            return None
        return ConversationNames(headers=self.headers, fields=self.fields)


class RoutingSettings(Section):
    """How paths and workers are chosen."""

    policy: Literal["local", "remote", "dynamo", "llmd", "learned"] = Field("dynamo", description="The path policy.")
    dynamo: DynamoSettings = DynamoSettings()
    llmd: LlmdSettings = LlmdSettings()
    bundle: FilePath | None = Field(None, description="Directory of the policy bundle that learned uses.")
    store: FilePath | None = Field(
        None, description="Policy store whose active bundle learned follows; without one it decides as dynamo."
    )
    store_poll_s: Seconds = Field(2.0, description="Between two looks at the store.")
    output_length: bool = Field(True, description="Use the bundle's output-length model, where it has one.")
    engines: EngineFileSettings = EngineFileSettings()
    prefill_weights: dict[str, float] | None = Field(None, description="Scorer weights of the prefill pool.")
    decode_weights: dict[str, float] | None = Field(None, description="Scorer weights of the decode pool.")
    conversation: ConversationSettings = ConversationSettings()
    index_blocks_per_worker: int = Field(200_000, ge=1, description="Bound of the prefix index, per worker.")
    max_candidates: int | None = Field(
        64, ge=LEAST, description="A decision looks at so many workers of a pool at most; null: at all."
    )
    load_sample: int | None = Field(
        None,
        ge=1,
        description="So many of them for their load alone; unset: what is left, or none beside its own part.",
    )
    replicas: int = Field(1, ge=1, description="Gateways that share the workers without telling each other.")
    replica: int | None = Field(
        None, ge=0, description="Which of them this one is, from 0: of every pool it prefers its own part."
    )
    overflow_tokens: int = Field(
        40_000, ge=0, description="Prompt tokens waiting at each worker of its part, beyond which it looks at others."
    )
    seed: int = Field(0, description="Seed of the router's generator.")

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.bundle is not None and self.store is not None:
            raise ValueError("give either bundle or store, not both")
        if self.policy == "learned" and self.bundle is None and self.store is None:
            raise ValueError("policy 'learned' needs bundle or store")
        uses_dynamo = self.policy == "dynamo" or self.follows_store
        needs_busy = uses_dynamo and self.dynamo.policy is not DynamoMode.ISL_BOUNDING
        if needs_busy and self.dynamo.prefill_busy_threshold is None:
            raise ValueError(f"dynamo policy '{self.dynamo.policy}' needs dynamo.prefill_busy_threshold")
        return self

    @property
    def follows_store(self) -> bool:
        """Whether the store says which bundle decides."""
        return self.policy == "learned" and self.store is not None
