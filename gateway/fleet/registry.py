"""The fleet as it changes: who joined, who drains, who has left, and what each said of its models.

The rule of this module: whatever the core is told of a worker's coming and going is told here. A worker that leaves
takes no new request and is forgotten once nothing is in flight there, so that no leg is left without an address.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

import structlog

from gateway.core.events import Event, WorkerDown, WorkerDraining, WorkerUp
from gateway.core.types import WorkerId, WorkerSpec
from gateway.fleet.allow import AllowList
from gateway.fleet.cards import Card, default_model, merged_cards
from gateway.fleet.members import Member
from gateway.fleet.prefillers import Prefillers
from gateway.upstream.origin import Origin

MAX_PREFILLERS = 256


class Observer(Protocol):
    """The part of the core that is told of workers."""

    def observe(self, event: Event) -> None:
        """Take note of a fact."""

    def tick(self, now_s: float) -> None:
        """Let time pass."""


class Watcher(Protocol):
    """Looks after the workers that are there."""

    def watch(self, worker_id: WorkerId) -> None:
        """A worker joined."""

    def unwatch(self, worker_id: WorkerId) -> None:
        """A worker left."""


class WorkerExists(ValueError):  # noqa: N818 (it says what is the case)
    """A worker of this id is in the fleet already."""


class Registry:
    """Workers by id.

    Args:
        core: is told of every change.
        clock: seconds; the core's clock.
        in_flight: requests in flight at a worker.
        allow: prefill workers that requests may name.
        max_prefillers: how many of those are remembered at once.
    """

    def __init__(
        self,
        core: Observer,
        *,
        clock: Callable[[], float],
        in_flight: Callable[[WorkerId], int],
        allow: AllowList | None = None,
        max_prefillers: int = MAX_PREFILLERS,
    ) -> None:
        self.origins: dict[WorkerId, Origin] = {}
        """Where each worker listens: live, and kept for those forced out until their requests have ended."""
        self.remote_origins: dict[WorkerId, Origin] = {}
        """The entry with remote prefill of those that split by themselves: live, as `origins`."""
        self.watcher: Watcher | None = None
        self._core = core
        self._clock = clock
        self._in_flight = in_flight
        self._members: dict[WorkerId, Member] = {}
        self._cards: dict[WorkerId, list[Card]] = {}
        self._draining: set[WorkerId] = set()
        self._leaving: dict[WorkerId, Member | None] = {}
        """Who leaves, and who comes in its place under the same id."""
        self._forced: set[WorkerId] = set()
        self._prefillers = Prefillers(
            self, allow=allow or AllowList(()), max_prefillers=max_prefillers, in_flight=in_flight
        )
        self._log = structlog.get_logger()

    # -- who is there ------------------------------------------------------------------------------------------

    @property
    def members(self) -> Mapping[WorkerId, Member]:
        """All members, those that leave included (live: read it, never change it)."""
        return self._members

    def get(self, worker_id: WorkerId) -> Member | None:
        """The member of this id."""
        return self._members.get(worker_id)

    def models(self, worker_id: WorkerId) -> tuple[str, ...] | None:
        """The models that a member serves; None until they are known."""
        member = self._members[worker_id]
        if member.named:
            return self._decoders_models()
        if member.models is not None:
            return member.models
        cards = self._cards.get(worker_id)
        return None if cards is None else tuple(card["id"] for card in cards)

    def spec(self, worker_id: WorkerId) -> WorkerSpec | None:
        """The worker as the core sees it; None until its models are known."""
        models = self.models(worker_id)
        return None if models is None else self._members[worker_id].spec(models)

    def is_draining(self, worker_id: WorkerId) -> bool:
        """Whether it takes no new requests by order."""
        return worker_id in self._draining

    # -- changes -----------------------------------------------------------------------------------------------

    def add(self, member: Member) -> None:
        """Let a worker join; where one of its id is leaving, as soon as that has left.

        Raises:
            WorkerExists: a worker of its id is here to stay.
        """
        worker_id = member.worker_id
        if worker_id in self._leaving:
            self._leaving[worker_id] = member
            self.settle()
        elif worker_id in self._members:
            raise WorkerExists(f"a worker {worker_id!r} exists already")
        else:
            self._join(member)

    def put(self, member: Member) -> None:
        """Let a worker join or change: at once where it listens as before, else by draining the one that is here."""
        known = self._members.get(member.worker_id)
        if known is None or member.worker_id in self._leaving:
            self.add(member)
        elif known.listens_where(member):
            self._members[member.worker_id] = member
            self._announce(member.worker_id)
        else:
            self.remove(member.worker_id)
            self.add(member)

    def drain(self, worker_id: WorkerId) -> None:
        """Give a worker no new requests."""
        if worker_id not in self._draining:
            self._draining.add(worker_id)
            self._core.observe(WorkerDraining(at_s=self._clock(), worker_id=worker_id))
            self._log.info("worker.draining", worker=worker_id)

    def remove(self, worker_id: WorkerId, *, force: bool = False) -> bool:
        """Let a worker leave once nothing is in flight there, or at once with `force`; True where it has left.

        Requests in flight at a worker forced out go on to their end; those that still prefill for it go elsewhere.
        """
        if worker_id not in self._members:
            return True
        if force:
            self._leaving.pop(worker_id, None)
            self._forget(worker_id)
            return True
        self.drain(worker_id)
        self._leaving[worker_id] = None
        self.settle()
        return worker_id not in self._members

    def settle(self) -> None:
        """Forget those that leave and have nothing in flight any more. Called whenever time has passed."""
        for worker_id in [worker_id for worker_id in self._leaving if not self._in_flight(worker_id)]:
            successor = self._leaving.pop(worker_id)
            self._forget(worker_id)
            if successor is not None:
                self._join(successor)
        for worker_id in [worker_id for worker_id in self._forced if not self._in_flight(worker_id)]:
            self._forced.discard(worker_id)
            self._drop_origin(worker_id)

    def offer(self, host_port: str) -> WorkerId | None:
        """The prefill worker at `host:port` that a request names; None where it may not be used."""
        return self._prefillers.offer(host_port)

    def allow(self, allow: AllowList) -> None:
        """Let requests name others from now on."""
        self._prefillers.allow(allow)

    # -- models ------------------------------------------------------------------------------------------------

    def put_cards(self, worker_id: WorkerId, cards: list[Card]) -> None:
        """Keep what a worker's /v1/models says."""
        before = self._cards.get(worker_id)
        self._cards[worker_id] = cards
        if before is None or [card["id"] for card in before] != [card["id"] for card in cards]:
            self._announce(worker_id)

    def model_cards(self, aliases: Mapping[str, str]) -> list[Card]:
        """One card per model and alias."""
        return merged_cards(self._members.values(), self._cards, aliases)

    def default_model(self) -> str | None:
        """What a request without a model means: the one model that the fleet serves, if it is one."""
        return default_model(self.model_cards({}))

    # -- details -----------------------------------------------------------------------------------------------

    def _join(self, member: Member) -> None:
        worker_id = member.worker_id
        self._forced.discard(worker_id)
        self._members[worker_id] = member
        self._drop_origin(worker_id)
        self.origins[worker_id] = member.origin
        if member.remote_origin is not None:
            self.remote_origins[worker_id] = member.remote_origin
        self._announce(worker_id)
        if self.watcher is not None and not member.named:
            self.watcher.watch(worker_id)

    def _forget(self, worker_id: WorkerId) -> None:
        member = self._members.pop(worker_id)
        self._cards.pop(worker_id, None)
        self._draining.discard(worker_id)
        self._core.observe(WorkerDown(at_s=self._clock(), worker_id=worker_id))
        self._log.info("worker.down", worker=worker_id)
        if self.watcher is not None and not member.named:
            self.watcher.unwatch(worker_id)
        if self._in_flight(worker_id):
            self._forced.add(worker_id)
        else:
            self._drop_origin(worker_id)

    def _drop_origin(self, worker_id: WorkerId) -> None:
        self.origins.pop(worker_id, None)
        self.remote_origins.pop(worker_id, None)

    def _announce(self, worker_id: WorkerId) -> None:
        """Tell the core of a worker; not of one that drains, which `WorkerUp` would bring back."""
        spec = self.spec(worker_id)
        if spec is not None and worker_id not in self._draining:
            self._core.observe(WorkerUp(at_s=self._clock(), spec=spec))
            self._log.info("worker.up", worker=worker_id, role=spec.role, models=spec.models)
        if self._members[worker_id].role.decodes:
            for other in [member.worker_id for member in self._members.values() if member.named]:
                self._announce(other)

    def _decoders_models(self) -> tuple[str, ...] | None:
        decoders = [member for member in self._members.values() if member.role.decodes and not member.named]
        known = [models for member in decoders if (models := self.models(member.worker_id)) is not None]
        return tuple(dict.fromkeys(model for models in known for model in models)) if known else None
