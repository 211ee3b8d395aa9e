"""One replica's side of the shared state, before others that a test plays."""

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.core.conversation.book import Conversation
from gateway.core.conversation.facts import ConversationFacts
from gateway.core.conversation.identity import ConversationId
from gateway.core.conversation.rules import ConversationRules, Mode
from gateway.core.events import Event
from gateway.core.path.rules import AlwaysRemote
from gateway.core.policy import Policy
from gateway.core.router import Router
from gateway.core.types import Decision, RequestFacts, Role, WorkerId
from gateway.fleet.shared.hearing import Hearing
from gateway.fleet.shared.pins import Claim, Pin, SharedState
from gateway.fleet.shared.sharing import Sharing
from gateway.fleet.shared.telling import TellingCore
from gateway.upstream.calling import CallingCore
from tests.core.factories import facts, finished, routed, router, worker

DECODERS = [WorkerId(f"d{number}") for number in range(3)]
TENANT = 77


@dataclass
class PlayedState(SharedState):
    """Keeps what a test puts there, and writes down what is asked and told."""

    pins: dict[ConversationId, Pin] = field(default_factory=dict)
    is_down: bool = False
    asked: list[tuple[str, ConversationId, WorkerId]] = field(default_factory=list)
    """Claims and moves, and where to."""
    told: list[tuple[str, ConversationId]] = field(default_factory=list)
    """Touches and closes."""
    seen: list[float | None] = field(default_factory=list)
    """What the closes say of when it was seen."""
    responses: dict[int, Pin] = field(default_factory=dict)
    held: asyncio.Event = field(default_factory=asyncio.Event)
    """Answers wait while this is clear."""

    def __post_init__(self) -> None:
        self.held.set()

    async def claim(
        self, conversation: ConversationId, proposed: Pin, *, workers: Sequence[WorkerId] = ()
    ) -> Claim | None:
        self.asked.append(("claim", conversation, proposed.worker_id))
        await self.held.wait()
        if self.is_down:
            return None
        is_new = conversation not in self.pins
        return Claim(pin=self.pins.setdefault(conversation, proposed), occupancy={}, is_new=is_new)

    async def move(self, conversation: ConversationId, from_worker: WorkerId, to: Pin) -> Pin | None:
        self.asked.append(("move", conversation, to.worker_id))
        await self.held.wait()
        if self.is_down:
            return None
        standing = self.pins.get(conversation)
        if standing is None or standing.worker_id == from_worker:
            self.pins[conversation] = to
        return self.pins[conversation]

    def touch(self, conversation: ConversationId, pin: Pin) -> None:
        self.told.append(("touch", conversation))
        if not self.is_down:
            self.pins[conversation] = pin

    def close(self, conversation: ConversationId, *, seen_s: float | None = None) -> None:
        self.told.append(("close", conversation))
        self.seen.append(seen_s)
        if not self.is_down:
            self.pins.pop(conversation, None)

    def made(self, end: int, pin: Pin) -> None:
        if not self.is_down:
            self.responses[end] = pin

    async def find(self, end: int) -> Pin | None:
        self.asked.append(("find", ConversationId(end), WorkerId("")))
        await self.held.wait()
        return None if self.is_down else self.responses.get(end)


class PlayedReplica:
    """A router, what it shares, and a clock that the test moves."""

    def __init__(self, shared: PlayedState | None = None, *, fleet: Any = None, **rules: Any) -> None:
        self.now_s = 100.0
        policy = Policy(path=AlwaysRemote(), conversation=ConversationRules(**{"mode": Mode.CONSERVE, **rules}))
        decoders = [worker(name, kv_total_blocks=1000) for name in DECODERS]
        self.router: Router = router(*(fleet or [worker("p0", Role.PREFILL), *decoders]), policy=policy)
        self.shared = PlayedState() if shared is None else shared
        self.events: list[Event] = []
        self.core = CallingCore(TellingCore(self.router, self.router, self.shared))
        self.sharing = Sharing(self.router, self.shared, self.observe, clock=lambda: self.now_s)
        self.hearing = Hearing(self.router, self.observe, clock=lambda: self.now_s, refresh_s=1.0)

    def observe(self, event: Event) -> None:
        self.events.append(event)
        self.core.observe(event)

    def before(self, about: RequestFacts) -> Awaitable[None] | None:
        return self.sharing.before(about)

    async def submit(self, about: RequestFacts) -> Decision:
        """As the gateway does it."""
        if (wanted := self.before(about)) is not None:
            await wanted
        return routed(self.core.submit(about, self.now_s))

    async def serve(self, about: RequestFacts, **outcome: Any) -> Decision:
        """A turn from its beginning to its end."""
        decision = await self.submit(about)
        self.end(decision, **outcome)
        return decision

    def end(self, decision: Decision, **outcome: Any) -> None:
        fields = {"input_tokens": decision.features.isl_tokens, "output_tokens": 10, **outcome}
        self.core.observe(finished(decision, at_s=self.now_s, **fields))

    @property
    def known(self) -> Conversation:
        """The one conversation that it knows."""
        (one,) = self.router.conversations.book
        return one


def turn(number: int = 0, label: str | None = "a", *, tokens: int = 1000, final: bool = False) -> RequestFacts:
    """A conversation's turn, counted from 0."""
    turns = tuple(range(1, number + 2))
    said = ConversationFacts(label=label, turns=turns, tenant=TENANT, is_final=final)
    return facts(f"{label}/{number}", tokens=tokens, conversation=said, max_output_tokens=10)


def nameless(number: int = 0, **changes: Any) -> RequestFacts:
    return turn(number, None, **changes)


def pinned(worker_id: WorkerId, *, kv_tokens: int = 900, turns: int = 3) -> Pin:
    """As another replica has left it."""
    return Pin(worker_id=worker_id, kv_tokens=kv_tokens, turns=turns, last_seen_s=50.0)
