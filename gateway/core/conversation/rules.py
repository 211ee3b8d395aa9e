"""What is done with conversations.

The rule of this module: tunables only, checked when they are made. Defaults: methods.md 3.2 [D].
"""

from dataclasses import dataclass
from enum import StrEnum

from gateway.core.path.base import PolicyError


class Mode(StrEnum):
    """What a conversation is held by."""

    CONSERVE = "conserve"
    """One prefill elsewhere, one transfer, and every later turn where the cache is: the conversation is the unit."""
    AFFINITY = "affinity"
    """Its turns stay on one decode worker; where each prefill runs is the path policy's business."""
    OFF = "off"
    """Every turn is a request like any other."""


class Pinning(StrEnum):
    """How a conversation gets its decode worker, where `AFFINITY` holds."""

    HASH = "hash"
    """By the conversation's name alone: replicas that share nothing agree. One without a name gets none."""
    LOAD = "load"
    """By the load when it begins, as any request; whoever routes its next turn must have been told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationRules:
    """How conversations are held together."""

    mode: Mode = Mode.AFFINITY
    by_model: tuple[tuple[str, Mode], ...] = ()
    pinning: Pinning = Pinning.HASH
    capacity: int = 100_000
    """Conversations that are remembered; beyond it the ones seen longest ago are forgotten."""
    idle_ttl_s: float = 600.0
    """After so long without a turn a conversation has ended."""
    admit_ratio: float = 0.85
    """Of a decode worker's KV cache that conversations may be promised."""
    headroom_ratio: float = 0.5
    headroom_tokens: int = 512
    """A new conversation of n prompt tokens is promised n (1 + ratio) + tokens."""
    tool_wait_s: float = 60.0
    """So long after its last turn, at most, a conversation counts as alive: its tools may be running."""
    presumes_over: bool = True
    """Whether one that pauses longer than nearly all did of late (`pauses`) counts as over, and its KV as free."""
    evict_after_s: float | None = 0.0
    """A new conversation waits so long for room before idle ones are given up; None: it waits for its turn."""
    max_wait_s: float = 5.0
    """After so long it gets the emptiest worker, room or not: nothing is refused for the sake of a pin."""
    local_below_tokens: int = 0
    """First turns of fewer prompt tokens prefill on their decode worker: no transfer at all."""
    rebalance_ratio: float | None = None
    """An idle conversation moves where its worker holds so much more of its capacity than the emptiest one."""

    def __post_init__(self) -> None:
        if self.capacity < 1:
            raise PolicyError("capacity must be at least 1")
        if not 0.0 < self.admit_ratio <= 1.0:
            raise PolicyError("admit_ratio must lie in (0, 1]")
        times = (self.idle_ttl_s, self.tool_wait_s, self.max_wait_s, self.evict_after_s or 0.0)
        if min(*times, self.headroom_ratio, self.headroom_tokens, self.local_below_tokens) < 0:
            raise PolicyError("times and sizes must be at least 0")
        if self.rebalance_ratio is not None and not 0.0 < self.rebalance_ratio <= 1.0:
            raise PolicyError("rebalance_ratio must lie in (0, 1]")

    def mode_of(self, model: str) -> Mode:
        """The mode for a model's conversations."""
        return next((mode for name, mode in self.by_model if name == model), self.mode)

    def missing_tokens(self, held: int, promised: int, capacity: int | None) -> int:
        """What a worker would have to be freed of to take a new conversation; one that holds nothing takes any.

        Args:
            held: tokens that conversations hold there.
            promised: tokens that the new one is promised.
            capacity: of its KV cache; None where nobody knows.
        """
        return 0 if capacity is None or not held else held + promised - int(self.admit_ratio * capacity)

    def protected_s(self, usual_pause_s: float) -> float:
        """So long after its last turn a conversation gives no way to one that has waited.

        Where usual pauses are known, the one that has paused longest gives way, however long that is: those that
        pause longer than usual have given way before.
        """
        return 0.0 if self.presumes_over and usual_pause_s < self.tool_wait_s else self.tool_wait_s

    def promised_tokens(self, isl_tokens: int, *, is_new: bool) -> int:
        """KV that a conversation is promised where it begins, or begins anew.

        What a new one grows to is a guess from its first prompt; one that comes back has done most of its growing.
        """
        return int(isl_tokens * (1.0 + self.headroom_ratio * is_new)) + self.headroom_tokens
