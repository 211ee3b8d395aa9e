"""What replicas share of a conversation, and what they may ask.

The rule of this module: times are of the clock of the replica that holds the value. On the way to another replica they
become ages, so no two machines need agree on what time it is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.core.conversation.identity import ConversationId
from gateway.core.types import WorkerId

LEAST_TOKENS = 1
"""Of a pin that stands: the core takes none for a place where a conversation shall only begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """Where a conversation's KV is."""

    worker_id: WorkerId
    kv_tokens: int
    """What the conversation holds there; counted in the worker's occupancy."""
    turns: int
    last_seen_s: float
    """When a turn of it was last under way, on this replica's clock."""
    part_of: ConversationId | None = None
    """Of a response, for which all of this is as it was when a worker had made it: the key of its conversation; None
    where no book is kept of that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The answer to a claim."""

    pin: Pin
    """The pin that stands. One that was there before is as it was before this claim, its last turn included."""
    occupancy: Mapping[WorkerId, int]
    """KV tokens pinned at each worker asked about, over all replicas, this pin included."""
    is_new: bool
    """Nobody had one: the pin is the one that was proposed."""


class SharedState(Protocol):
    """Pins and responses that all replicas share. Nothing here raises, save that whoever waits may be cancelled."""

    async def claim(
        self, conversation: ConversationId, proposed: Pin, *, workers: Sequence[WorkerId] = ()
    ) -> Claim | None:
        """Ask where a conversation that this replica does not know is pinned; where nowhere, the proposal stands.

        Args:
            conversation: which.
            proposed: where it would go.
            workers: whose occupancy comes with the answer.

        Returns:
            The pin that stands, the same for every replica that asks; None where nobody knows.
        """

    async def move(self, conversation: ConversationId, from_worker: WorkerId, to: Pin) -> Pin | None:
        """Re-home a conversation, unless another replica has done so meanwhile.

        Returns:
            The pin that stands: `to`, or what the other replica chose; None where nobody knows, and then `to` is
            sent once more in the background, where the later of two moves wins.
        """

    def touch(self, conversation: ConversationId, pin: Pin) -> None:
        """Tell the others, soon, of a conversation's newest state."""

    def close(self, conversation: ConversationId, *, seen_s: float | None = None) -> None:
        """Tell the others, soon, that a conversation has ended; one that somebody has gone on with since stands.

        Args:
            conversation: which.
            seen_s: when a turn of it was last under way; unset is now.
        """

    def made(self, end: int, pin: Pin) -> None:
        """Tell the others, soon, of a response that a worker keeps, given by its `identity.response_end`."""

    async def find(self, end: int) -> Pin | None:
        """Ask which worker keeps a response that this replica does not know; None where nobody knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedOptions:
    """Where the shared state is and how patient a replica is with it. All replicas need the same prefix and TTL.

    Raises:
        ValueError: a value that cannot be used.
    """

    url: str
    """redis://, rediss:// (TLS) or unix://, with user, password and database where there are any."""
    prefix: str = "tidegate"
    """Fleets that share a server need one each."""
    is_cluster: bool = False
    """The URL is that of a node of a Redis or Valkey Cluster."""
    deadline_s: float = 0.05
    """No caller waits longer."""
    idle_ttl_s: float = 600.0
    """A pin that no turn has touched for so long is gone."""
    response_ttl_s: float = 86_400.0
    """So long a response is remembered."""
    max_responses: int = 100_000
    """So many of them, of all replicas together; beyond it the oldest are forgotten."""
    retry_s: float = 1.0
    """Between two tries to get back to a server that was lost."""
    refresh_s: float = 1.0
    """Between two reads of all workers' occupancy."""
    flush_s: float = 0.05
    """How long a touch or a close waits for others to go with it."""
    load_s: float | None = 0.025
    """Between two times that loads are told and heard; None: they are not."""
    batch_steps: int = 64
    """Steps in one call of the script; the server does nothing else meanwhile."""
    max_queued: int = 10_000
    """Conversations whose newest state waits to be sent; beyond it the one that has waited longest is dropped."""

    def __post_init__(self) -> None:
        if not self.prefix or set(self.prefix) & set("{}"):
            raise ValueError("prefix must be some text without braces")
        seconds = (self.deadline_s, self.idle_ttl_s, self.retry_s, self.refresh_s, self.flush_s, self.load_s or 1.0)
        bounds = (self.batch_steps, self.max_queued, self.max_responses)
        if min(*seconds, self.response_ttl_s) <= 0 or self.load_s == 0 or min(bounds) < 1:
            raise ValueError("times and bounds must be positive")
