"""Path rules that are not learned: always local, always remote, Dynamo's and llm-d's.

The rule of this module: a peer's rule is re-implemented from its documentation and public source with its own
defaults and its own strict or loose inequalities, so that a comparison with it is fair.
"""

from dataclasses import dataclass
from enum import StrEnum
from random import Random

from gateway.core.path.base import PathQuestion, PolicyError
from gateway.core.types import Path, PathChoice, Reason, WorkerView


@dataclass(frozen=True, slots=True)
class AlwaysLocal:
    """Every request prefills on its decode worker."""

    name: str = "local"

    def choose(self, question: PathQuestion, rng: Random) -> PathChoice:  # noqa: ARG002
        """Local."""
        return PathChoice(path=Path.LOCAL, reason=Reason.ALWAYS_LOCAL, words="the policy is always local")


@dataclass(frozen=True, slots=True)
class AlwaysRemote:
    """Every request that can prefills on a prefill worker."""

    name: str = "remote"

    def choose(self, question: PathQuestion, rng: Random) -> PathChoice:  # noqa: ARG002
        """Remote."""
        return PathChoice(path=Path.REMOTE, reason=Reason.ALWAYS_REMOTE, words="the policy is always remote")


class DynamoMode(StrEnum):
    """Dynamo's `policy` key."""

    ISL_BOUNDING = "isl_bounding"
    PREFILL_LOAD = "prefill_load"
    ISL_OR_LOAD = "isl_or_load"


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamoRule:
    """NVIDIA Dynamo's conditional disaggregation (methods.md 1.1 [F], peers.md 2.1 [V]).

    Dynamo's "bypass" is local prefill. With eff = prompt - cached on the decode worker:
    `isl_bounding` bypasses iff eff < `eff_isl_threshold` and eff / max(prompt, 1) < `eff_isl_ratio_threshold`;
    `prefill_load` iff the prefill worker's active tokens > `prefill_busy_threshold` x its step budget, an unknown
    budget counting as not busy; `isl_or_load` iff either does. The optional decode guard vetoes a bypass iff the
    decode worker's blocks, this request's included, > `decode_busy_threshold` x its total, an unknown total
    vetoing too (the newer code's choice). All inequalities are strict.
    """

    mode: DynamoMode = DynamoMode.ISL_BOUNDING
    eff_isl_threshold: int = 2048
    eff_isl_ratio_threshold: float = 0.7
    prefill_busy_threshold: float | None = None
    decode_busy_threshold: float | None = None
    name: str = "dynamo"

    def __post_init__(self) -> None:
        if self.eff_isl_threshold < 0:
            raise PolicyError("eff_isl_threshold must be at least 0 tokens")
        if not 0.0 <= self.eff_isl_ratio_threshold <= 1.0:
            raise PolicyError("eff_isl_ratio_threshold must lie between 0 and 1")
        if self.mode is not DynamoMode.ISL_BOUNDING and self.prefill_busy_threshold is None:
            raise PolicyError(f"policy {self.mode} needs prefill_busy_threshold")
        for key in ("prefill_busy_threshold", "decode_busy_threshold"):
            value = getattr(self, key)
            if value is not None and not value >= 0:
                raise PolicyError(f"{key} must be at least 0")

    def choose(self, question: PathQuestion, rng: Random) -> PathChoice:  # noqa: ARG002
        """Apply the rule."""
        bypass = self._bypass(question)
        if bypass.path is Path.LOCAL and self._decode_is_busy(question):
            words = "the decode worker is too full for a local prefill, or its capacity is unknown"
            return PathChoice(path=Path.REMOTE, reason=Reason.DECODE_BUSY, words=words)
        return bypass

    def _bypass(self, question: PathQuestion) -> PathChoice:
        if self.mode is DynamoMode.PREFILL_LOAD:
            return self._by_load(question.prefill)
        by_isl = self._by_isl(question)
        if by_isl.path is Path.LOCAL or self.mode is DynamoMode.ISL_BOUNDING:
            return by_isl
        by_load = self._by_load(question.prefill)
        return by_load if by_load.path is Path.LOCAL else by_isl

    def _by_isl(self, question: PathQuestion) -> PathChoice:
        prompt = question.features.isl_tokens
        eff = question.features.decode_isl_tokens
        ratio = eff / max(prompt, 1)
        short = eff < self.eff_isl_threshold and ratio < self.eff_isl_ratio_threshold
        words = (
            f"{eff} of {prompt} prompt tokens are uncached on the decode worker (limits {self.eff_isl_threshold}"
            f" tokens and {self.eff_isl_ratio_threshold:.0%}, this is {ratio:.0%})"
        )
        if short:
            return PathChoice(path=Path.LOCAL, reason=Reason.SHORT_EFFECTIVE_ISL, words=words)
        return PathChoice(path=Path.REMOTE, reason=Reason.LONG_EFFECTIVE_ISL, words=words)

    def _by_load(self, prefill: WorkerView) -> PathChoice:
        threshold, budget = self.prefill_busy_threshold, prefill.max_batched_tokens
        assert threshold is not None
        if budget is not None and prefill.prefill_tokens > threshold * budget:
            words = f"the prefill worker has {prefill.prefill_tokens} tokens to go, over {threshold:g} x {budget}"
            return PathChoice(path=Path.LOCAL, reason=Reason.PREFILL_BUSY, words=words)
        words = f"the prefill worker has {prefill.prefill_tokens} tokens to go, which is not busy"
        return PathChoice(path=Path.REMOTE, reason=Reason.PREFILL_FREE, words=words)

    def _decode_is_busy(self, question: PathQuestion) -> bool:
        if self.decode_busy_threshold is None:
            return False
        decode = question.decode
        if decode.kv_capacity_tokens is None or decode.kv_block_tokens is None:
            return True
        block = decode.kv_block_tokens
        held_blocks = -(-decode.kv_tokens // block) + -(-question.features.isl_tokens // block)
        return held_blocks > self.decode_busy_threshold * (decode.kv_capacity_tokens // block)


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmdRule:
    """llm-d's `prefix-based-pd-decider` (peers.md 2.2 [V]).

    Remote iff prompt >= `prompt_tokens` and prompt - cached whole blocks on the decode worker >=
    `non_cached_tokens`; a `non_cached_tokens` of 0 (the default) never disaggregates.
    """

    non_cached_tokens: int = 0
    prompt_tokens: int = 0
    name: str = "llmd"

    def __post_init__(self) -> None:
        if self.non_cached_tokens < 0 or self.prompt_tokens < 0:
            raise PolicyError("non_cached_tokens and prompt_tokens must be at least 0")

    def choose(self, question: PathQuestion, rng: Random) -> PathChoice:  # noqa: ARG002
        """Apply the rule."""
        prompt = question.features.isl_tokens
        block = question.decode.kv_block_tokens or 1
        cached = min(question.decode.hit_tokens, prompt) // block * block
        uncached = prompt - cached
        remote = self.non_cached_tokens > 0 and prompt >= self.prompt_tokens and uncached >= self.non_cached_tokens
        words = (
            f"{uncached} of {prompt} prompt tokens lie outside whole cached blocks (minimum {self.non_cached_tokens})"
        )
        if remote:
            return PathChoice(path=Path.REMOTE, reason=Reason.UNCACHED_ABOVE_MINIMUM, words=words)
        return PathChoice(path=Path.LOCAL, reason=Reason.UNCACHED_BELOW_MINIMUM, words=words)
