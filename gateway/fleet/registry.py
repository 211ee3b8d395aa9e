"""The workers of the settings, and what they said of their models.

The rule of this module: what the core is told of a worker is made here, from its settings and its own word.
"""

from collections.abc import Sequence
from typing import Any

from gateway.core.types import WorkerId, WorkerSpec
from gateway.settings import WorkerSettings


class Registry:
    """Workers by id, with what they said of their models."""

    def __init__(self, workers: Sequence[WorkerSettings]) -> None:
        self.workers = {WorkerId(worker.id): worker for worker in workers}
        self._cards: dict[WorkerId, list[dict[str, Any]]] = {}

    def spec(self, worker_id: WorkerId) -> WorkerSpec | None:
        """The worker as the core sees it; None until its models are known."""
        settings = self.workers[worker_id]
        models = settings.models
        if models is None:
            if worker_id not in self._cards:
                return None
            models = tuple(card["id"] for card in self._cards[worker_id])
        return WorkerSpec(
            worker_id=worker_id,
            url=settings.url,
            role=settings.role,
            models=models,
            kv_block_tokens=settings.kv_block_tokens,
            kv_total_blocks=settings.kv_total_blocks,
            max_batched_tokens=settings.max_batched_tokens,
        )

    def put_cards(self, worker_id: WorkerId, cards: list[dict[str, Any]]) -> bool:
        """Keep what a worker's /v1/models says; True where its models changed."""
        before = [card["id"] for card in self._cards.get(worker_id, [])]
        self._cards[worker_id] = cards
        return before != [card["id"] for card in cards]

    def model_cards(self) -> list[dict[str, Any]]:
        """One card per model: the first worker's in the order of the settings."""
        merged: dict[str, dict[str, Any]] = {}
        for worker_id, worker in self.workers.items():
            for card in self._cards.get(worker_id, []):
                if worker.models is None or card["id"] in worker.models:
                    merged.setdefault(card["id"], card)
            for model in worker.models or ():
                merged.setdefault(model, {"id": model, "object": "model", "created": 0, "owned_by": "tidegate"})
        return list(merged.values())
