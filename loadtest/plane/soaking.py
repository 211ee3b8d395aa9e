"""The run of a soak: so many places send requests, and somebody spoils the workers meanwhile.

The rule of this module: a closed loop, and every request ends: answered, failed, left, or counted as one that would
not end. Memory is looked at as each tenth is over, under load.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import cycle, product

import msgspec

from loadtest.client.http import Collected, HttpClient, HttpError, Origin
from loadtest.plane.traffic import FAULTS, STATUSES, Request, Traffic
from loadtest.worker.control import FAULTS_PATH
from loadtest.worker.faults import Fault

PLACES = 32
TIMEOUT_S = 30.0
"""A request that takes longer counts as one that would not end: workers' faults are over long before."""
FAULT_S = 0.3
"""How long a fault stays where its calls do not come."""
PAUSE_S = 0.7
TENTHS = 10
OK, LEFT, STUCK = "ok", "left", "stuck"


@dataclass(slots=True)
class Told:
    """What became of all requests."""

    outcomes: Counter[str] = field(default_factory=Counter)
    """`ok`, `left`, `stuck`, a status, or how the connection failed."""
    wrong: Counter[str] = field(default_factory=Counter)
    """Those that the gateway had to answer by itself and answered otherwise."""
    faults: int = 0
    """Times that a worker was spoilt."""
    memory_bytes: list[int] = field(default_factory=list)
    """After each tenth."""

    @property
    def requests(self) -> int:
        """All of them."""
        return self.outcomes.total()


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedWorker:
    """A worker that can be spoilt."""

    name: str
    url: str


class Soak:
    """One run.

    Args:
        url: the gateway's.
        workers: all of them, in one process.
        requests: how many to send.
        memory_bytes: the gateway's memory now.
        seed: of the traffic.
    """

    def __init__(
        self,
        url: str,
        workers: Sequence[EmulatedWorker],
        *,
        requests: int,
        memory_bytes: Callable[[], int],
        seed: int,
    ) -> None:
        self.told = Told()
        self._client = HttpClient(Origin.of(url))
        self._workers = workers
        self._requests = requests
        self._memory_bytes = memory_bytes
        self._traffic = Traffic(seed)
        self._begun = 0

    async def run(self, say: Callable[[str], None]) -> Told:
        """Send all, to their end."""
        spoiling = asyncio.create_task(self._spoil_forever())
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(PLACES):
                    group.create_task(self._one_place(say))
        finally:
            spoiling.cancel()
            await asyncio.gather(spoiling, return_exceptions=True)
            await self._clear_all()
            self._client.close()
        return self.told

    async def _one_place(self, say: Callable[[str], None]) -> None:
        while self._begun < self._requests:
            self._begun += 1
            request = self._traffic.draw()
            self._count(request, await send(self._client, request))
            self._look(say)

    def _count(self, request: Request, outcome: str) -> None:
        told = self.told
        told.outcomes[outcome] += 1
        required = STATUSES.get(request.kind)
        if required is not None and outcome != str(required):
            told.wrong[f"{request.kind}: {outcome}"] += 1

    def _look(self, say: Callable[[str], None]) -> None:
        """At memory, where another tenth is over."""
        told = self.told
        if told.requests * TENTHS >= self._requests * (len(told.memory_bytes) + 1):
            told.memory_bytes.append(self._memory_bytes())
            say(f"{told.requests:,} requests, {told.memory_bytes[-1] / 2**20:.1f} MB, {told.faults} faults")

    async def _spoil_forever(self) -> None:
        for fault, worker in cycle(product(FAULTS, self._workers)):
            await asyncio.sleep(PAUSE_S)
            await self._spoil(worker, fault)
            self.told.faults += 1
            await asyncio.sleep(FAULT_S)
            await self._tell("DELETE", worker)

    async def _spoil(self, worker: EmulatedWorker, fault: Fault) -> None:
        await self._tell("PUT", worker, msgspec.json.encode(fault))

    async def _clear_all(self) -> None:
        for worker in self._workers:
            await self._tell("DELETE", worker)

    async def _tell(self, method: str, worker: EmulatedWorker, body: bytes = b"") -> None:
        """By way of another one, which listens even where this one refuses."""
        other = next(each for each in self._workers if each is not worker)
        client = HttpClient(Origin.of(other.url))
        await client.send(method, f"{FAULTS_PATH}?worker={worker.name}", Collected(), body=body)
        client.close()


async def send(client: HttpClient, request: Request) -> str:
    """One request to its end; what became of it."""
    answer = Collected()
    try:
        async with asyncio.timeout(TIMEOUT_S if request.leaves_s is None else request.leaves_s):
            await client.send("POST", request.target, answer, headers=request.headers, body=request.body)
    except TimeoutError:
        return STUCK if request.leaves_s is None else LEFT
    except HttpError as error:
        return error.kind
    return OK if answer.status == 200 else str(answer.status)
