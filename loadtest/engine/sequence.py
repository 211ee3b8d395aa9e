"""One request inside the engine.

Only `Scheduler` and `Engine` change a sequence; whoever holds one of its blocks is named by its phase.
"""

from dataclasses import dataclass
from enum import Enum, auto

from loadtest.engine.kv_cache import Segment
from loadtest.engine.types import EngineRequest


class Phase(Enum):
    """Where a sequence is."""

    INTAKE = auto()
    """On its way to the queue: being read and tokenised, or too late for the plan that is made."""
    WAITING = auto()
    """In the queue, without blocks."""
    TRANSFERRING = auto()
    """Has blocks; its remote KV is on the way into them."""
    ARRIVED = auto()
    """Its remote KV is here, but the scheduler does not know it yet."""
    READY = auto()
    """Its remote KV has arrived; waits for a slot."""
    PREFILLING = auto()
    """In the batch with more than one token to compute."""
    DECODING = auto()
    """In the batch; every step adds one token."""
    HELD = auto()
    """Finished; its blocks wait to be fetched."""
    GONE = auto()


@dataclass(slots=True, eq=False, kw_only=True)
class LiveSequence:
    """A request's progress; compared by identity.

    While it decodes its counts stand still, and the engine's decode clock tells how far it is: `known_tokens` and
    `generated_tokens` are those of `joined_clock`.
    """

    request: EngineRequest
    known_tokens: int
    """Prompt and generated tokens: what must be computed before the next token is made."""
    findable_blocks: int
    """Leading prompt blocks that others can find by its hashes, once they are computed."""
    phase: Phase = Phase.INTAKE
    computed_tokens: int = 0
    """Leading known tokens whose KV is in this engine."""
    generated_tokens: int = 0
    joined_clock: int = 0
    """Decode steps that the engine had done when this one began to decode."""
    end_clock: int | None = None
    """The clock at which it will have made its last token; None unless it decodes."""
    segment: Segment | None = None
    """The last segment of text that it uses in the cache; None while it has no blocks."""
    named_blocks: int = 0
    """Its leading blocks that belong to segments, whatever other users added to the last of these."""
    registered_blocks: int = 0
    """Its leading blocks that were offered to the cache."""
    held_blocks: int = 0
    """Blocks that it was given: named ones, and others behind them."""
    remote_tokens: int = 0
    """Leading prompt tokens that a transfer will bring; zero once it has."""
    cached_tokens: int | None = None
    """Prompt tokens found in the prefix cache at first admission; None before it."""
    preemptions: int = 0

    @classmethod
    def of(cls, request: EngineRequest, block_tokens: int) -> "LiveSequence":
        """A sequence that waits with nothing done."""
        return cls(
            request=request,
            known_tokens=request.prompt_tokens,
            findable_blocks=min(request.prompt_tokens // block_tokens, len(request.block_hashes) * request.hash_blocks),
            remote_tokens=request.remote_tokens,
        )

    @property
    def missing_remote_tokens(self) -> int:
        """Tokens that a transfer must bring: those that the prefix cache does not have."""
        return max(0, self.remote_tokens - self.computed_tokens)

    @property
    def left_tokens(self) -> int:
        """Output tokens still to be made, as of `generated_tokens`."""
        return self.request.output_tokens - self.generated_tokens
