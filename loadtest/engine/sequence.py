"""One request inside the engine.

Only `Scheduler` and `Engine` change a sequence; whoever holds one of its blocks is named by its phase.
"""

from dataclasses import dataclass, field
from enum import Enum, auto

from loadtest.engine.types import EngineRequest


class Phase(Enum):
    """Where a sequence is."""

    WAITING = auto()
    """In the queue, without blocks."""
    TRANSFERRING = auto()
    """Has blocks; its remote KV is on the way into them."""
    READY = auto()
    """Its remote KV has arrived; waits for a slot."""
    RUNNING = auto()
    HELD = auto()
    """Finished; its blocks wait to be fetched."""
    GONE = auto()


@dataclass(slots=True, eq=False, kw_only=True)
class LiveSequence:
    """A request's progress; compared by identity."""

    request: EngineRequest
    known_tokens: int
    """Prompt and generated tokens: what must be computed before the next token is made."""
    phase: Phase = Phase.WAITING
    computed_tokens: int = 0
    """Leading known tokens whose KV is in this engine."""
    generated_tokens: int = 0
    blocks: list[int] = field(default_factory=list)
    block_room_tokens: int = 0
    """Tokens that fit in `blocks`."""
    registered_blocks: int = 0
    """Leading blocks that the prefix cache knows."""
    remote_tokens: int = 0
    """Leading prompt tokens that a transfer will bring; zero once it has."""
    cached_tokens: int | None = None
    """Prompt tokens found in the prefix cache at first admission; None before it."""
    preemptions: int = 0

    @classmethod
    def of(cls, request: EngineRequest) -> "LiveSequence":
        """A sequence that waits with nothing done."""
        return cls(request=request, known_tokens=request.prompt_tokens, remote_tokens=request.remote_tokens)

    @property
    def missing_remote_tokens(self) -> int:
        """Tokens that a transfer must bring: those that the prefix cache does not have."""
        return max(0, self.remote_tokens - self.computed_tokens)

    @property
    def is_done(self) -> bool:
        """True once all requested tokens are made."""
        return self.generated_tokens == self.request.output_tokens
