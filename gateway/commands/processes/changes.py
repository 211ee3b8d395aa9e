"""What operators have changed by the admin application, for processes that begin later.

The rule of this module: only what is still so is kept, in the order in which it was done, so it is bounded by the
workers that were ever named. What a reload of the settings has taken over is the settings' from then on.
"""

from collections.abc import Mapping
from typing import Any

import msgspec


class Added(msgspec.Struct, frozen=True, tag=True):
    """A worker joined."""

    worker: dict[str, Any]
    """As `WorkerSettings`."""


class Drained(msgspec.Struct, frozen=True, tag=True):
    """A worker gets no new requests."""

    worker_id: str


class Removed(msgspec.Struct, frozen=True, tag=True):
    """A worker of the settings has left."""

    worker_id: str


class Routed(msgspec.Struct, frozen=True, tag=True):
    """Another routing section decides."""

    routing: dict[str, Any]


Change = Added | Drained | Removed | Routed


class Changes:
    """All changes that a new process must make to be as its siblings are."""

    def __init__(self) -> None:
        self._workers: dict[str, list[Change]] = {}
        self._routed: Routed | None = None

    def all(self) -> list[Change]:
        """In order, worker by worker."""
        routed = [] if self._routed is None else [self._routed]
        return [change for changes in self._workers.values() for change in changes] + routed

    def note(self, method: str, path: str, body: bytes) -> None:
        """Take note of a call that was answered well; one that changes nothing lasting is passed over."""
        match method, path.strip("/").split("/"):
            case "POST", ["workers"]:
                worker = msgspec.json.decode(body, type=dict[str, Any])
                self._workers.setdefault(str(worker["id"]), []).append(Added(worker))
            case "POST", ["workers", worker_id, "drain"]:
                known = self._workers.setdefault(worker_id, [])
                if Drained(worker_id) not in known:
                    known.append(Drained(worker_id))
            case "DELETE", ["workers", worker_id]:
                self._remove(worker_id)
            case "PUT", ["policy"]:
                self._routed = Routed(msgspec.json.decode(body, type=dict[str, Any]))

    def reloaded(self, reloaded: Mapping[str, Any]) -> None:
        """Take note of what a reload has changed; see `Reloaded`."""
        for worker_id in (*reloaded.get("workers_put", ()), *reloaded.get("workers_removed", ())):
            self._workers.pop(worker_id, None)
        if any(name.partition(".")[0] == "routing" for name in reloaded.get("changed", ())):
            self._routed = None

    def _remove(self, worker_id: str) -> None:
        was_added = isinstance(next(iter(self._workers.get(worker_id, ())), None), Added)
        if was_added:
            del self._workers[worker_id]
        else:
            self._workers[worker_id] = [Removed(worker_id)]
