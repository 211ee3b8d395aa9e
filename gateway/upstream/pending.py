"""Requests that prefill on one worker to be decoded on another.

The rule of this module: a prefill whose decode worker is gone has no use, and its KV would stay held until its lease
ends. Such requests are told, so that they stop the leg and go elsewhere.
"""

from collections.abc import Callable
from typing import Protocol

from gateway.core.types import WorkerId


class Waiter(Protocol):
    """A request whose prefill leg runs."""

    def decode_worker_lost(self) -> None:
        """Its decode worker is gone."""


class PendingDecodes:
    """Who prefills for which decode worker."""

    def __init__(self) -> None:
        self._decode_workers: dict[Waiter, WorkerId] = {}

    def enter(self, waiter: Waiter, decode_worker: WorkerId) -> None:
        """Its prefill leg begins."""
        self._decode_workers[waiter] = decode_worker

    def leave(self, waiter: Waiter) -> None:
        """Its prefill leg is over; harmless where it has none."""
        self._decode_workers.pop(waiter, None)

    def check(self, is_down: Callable[[WorkerId], bool]) -> None:
        """Tell those whose decode worker is down. Called whenever time has passed."""
        down = {worker_id for worker_id in set(self._decode_workers.values()) if is_down(worker_id)}
        if not down:
            return
        for waiter in [waiter for waiter, worker_id in self._decode_workers.items() if worker_id in down]:
            # Telling one may end others.
            if self._decode_workers.pop(waiter, None) is not None:
                waiter.decode_worker_lost()
