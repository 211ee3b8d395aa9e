"""What the other replicas of a gateway have pinned at each worker.

The rule of this module: a figure has a time up to which it is believed. Without one, a replica goes by its own book.
"""

import math
from collections.abc import Callable, Mapping

from gateway.core.types import WorkerId


class Elsewhere:
    """KV tokens of conversations that only other replicas know."""

    def __init__(self) -> None:
        self._tokens: Mapping[WorkerId, int] = {}
        self._until_s = -math.inf

    def told(self, everywhere: Mapping[WorkerId, int], own: Callable[[WorkerId], int], until_s: float) -> None:
        """What is pinned over all replicas: what this one has told them is a part of it.

        Args:
            everywhere: KV tokens by worker, over all replicas.
            own: those of this replica.
            until_s: how long to believe it.
        """
        self._tokens = {worker_id: max(0, tokens - own(worker_id)) for worker_id, tokens in everywhere.items()}
        self._until_s = until_s

    def tokens(self, worker_id: WorkerId, now_s: float) -> int:
        """KV tokens that the others have pinned there; 0 where nobody has told of late."""
        return self._tokens.get(worker_id, 0) if now_s <= self._until_s else 0
