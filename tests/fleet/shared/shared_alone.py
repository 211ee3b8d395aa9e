"""The shared state before a server that a test plays, on a clock that a test moves."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gateway.core.conversation.identity import ConversationId
from gateway.core.types import WorkerId
from gateway.fleet.shared.codec import Op, Reply, Step
from gateway.fleet.shared.pins import Pin, SharedOptions
from gateway.fleet.shared.store import SharedPins
from tests.fleet.shared.shared_waiting import until

NOW_S = 1000.0
TALK = ConversationId(2**64 - 1)
WORKER, OTHER = WorkerId("decode-0"), WorkerId("decode-1")
OPTIONS = SharedOptions(url="redis://nowhere", deadline_s=20.0, retry_s=0.001, refresh_s=60.0, flush_s=0.001)


def pin_at(worker_id: WorkerId = WORKER, *, kv_tokens: int = 100, last_seen_s: float = NOW_S) -> Pin:
    return Pin(worker_id=worker_id, kv_tokens=kv_tokens, turns=1, last_seen_s=last_seen_s)


@dataclass
class PlayedServer:
    """Takes every step as it was sent, unless a test has it do something else."""

    answers: dict[ConversationId, Pin] = field(default_factory=dict)
    """Pins that stand."""
    occupancy: dict[WorkerId, int] = field(default_factory=dict)
    taken: list[list[tuple[Op, ConversationId]]] = field(default_factory=list)
    """What was in every call, but for those without a step."""
    asked_for: list[Sequence[WorkerId] | None] = field(default_factory=list)
    opened: int = 0
    fault: Exception | None = None
    """What every call raises."""
    sweeps: list[int] = field(default_factory=list)
    """How many pins the next calls sweep."""
    held: asyncio.Event = field(default_factory=asyncio.Event)
    """A call with a step waits while this is clear."""
    waiting: asyncio.Event = field(default_factory=asyncio.Event)
    """A call waits."""
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    """The subscription breaks off."""
    news: list[tuple[ConversationId, Pin | None]] = field(default_factory=list)
    """What is heard as soon as one listens."""
    closed_s: dict[ConversationId, float] = field(default_factory=dict)
    """When those were seen that were closed."""
    during: Callable[[], None] = lambda: None
    """Is called in every call."""

    def __post_init__(self) -> None:
        self.held.set()

    async def open(self) -> None:
        self.opened += 1
        self.lost.clear()
        if self.fault is not None:
            raise self.fault

    async def run(self, steps: Sequence[Step], *, workers: Sequence[WorkerId] | None, sweep: int) -> Reply:
        self.asked_for.append(workers)
        if steps:
            self.taken.append([(step.op, step.conversation) for step in steps])
            self.closed_s.update({step.conversation: step.seen_s for step in steps if step.op is Op.CLOSE})
            self.waiting.set()
            await self.held.wait()
        self.during()
        if self.fault is not None:
            raise self.fault
        return Reply(
            swept=self.sweeps.pop(0) if self.sweeps else 0,
            occupancy=self.occupancy,
            answers=[self.answers.get(step.conversation) for step in steps],
        )

    async def listen(self, heard: Callable[[ConversationId, Pin | None], None]) -> None:
        while self.news:
            heard(*self.news.pop(0))
        await self.lost.wait()
        raise ConnectionError("the subscription broke off")

    async def close(self) -> None:
        pass

    def flat(self) -> list[tuple[Op, ConversationId]]:
        """All steps of all calls."""
        return [step for call in self.taken for step in call]


@dataclass
class Alone:
    """One replica's shared state, and what it was told."""

    server: PlayedServer
    shared: SharedPins
    known: dict[ConversationId, Pin]
    moves: list[tuple[ConversationId, Pin | None]]
    occupancies: list[dict[WorkerId, int]]
    now_s: list[float]

    def advance(self, by_s: float) -> None:
        self.now_s[0] += by_s


def alone(**options: Any) -> Alone:
    """Not started yet."""
    server, now_s = PlayedServer(), [NOW_S]
    known: dict[ConversationId, Pin] = {}
    moves: list[tuple[ConversationId, Pin | None]] = []
    occupancies: list[dict[WorkerId, int]] = []

    def moved(conversation: ConversationId, to: Pin | None) -> None:
        moves.append((conversation, to))

    def occupancy(mapping: Mapping[WorkerId, int]) -> None:
        occupancies.append(dict(mapping))

    shared = SharedPins(
        server,
        replace(OPTIONS, **options),
        clock=lambda: now_s[0],
        snapshot=lambda: dict(known),
        moved=moved,
        occupancy=occupancy,
    )
    return Alone(server=server, shared=shared, known=known, moves=moves, occupancies=occupancies, now_s=now_s)


@contextlib.asynccontextmanager
async def started(**options: Any) -> AsyncIterator[Alone]:
    """From the first look at the occupancy to the stop."""
    one = alone(**options)
    await one.shared.start()
    await until(lambda: bool(one.occupancies))
    try:
        yield one
    finally:
        one.server.held.set()
        await one.shared.stop()
