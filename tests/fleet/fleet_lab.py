"""Workers behind a mock transport, and an observer that keeps what it is told."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Self

import httpx

from gateway.core.events import Event
from gateway.core.types import Role, WorkerId
from gateway.fleet.members import Member, worker_member
from gateway.fleet.monitor import FleetMonitor
from gateway.fleet.registry import Registry
from gateway.settings import FleetSettings, WorkerSettings

Answer = httpx.Response | Exception | Callable[[], Awaitable[httpx.Response]]
PATIENCE_S = 10.0
NOW_S = 42.0
METRICS = b"vllm:num_requests_running 3\nvllm:num_requests_waiting 1\nvllm:kv_cache_usage_perc 0.5\n"


def cards(*models: str, **fields: Any) -> httpx.Response:
    """An answer of /v1/models."""
    return httpx.Response(200, json={"object": "list", "data": [{"id": model, **fields} for model in models]})


def page(content: bytes) -> httpx.Response:
    return httpx.Response(200, content=content)


async def hang() -> httpx.Response:
    """A worker that accepts and never answers."""
    await asyncio.Event().wait()
    raise AssertionError("it was waited for")


class Pieces(httpx.AsyncByteStream):
    """A body that never ends; `read` counts how many pieces of it were taken."""

    def __init__(self, piece: bytes) -> None:
        self._piece = piece
        self.read = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            self.read += 1
            yield self._piece
            await asyncio.sleep(0.001)


class FakeWorker:
    """One worker's answers by path; a test replaces them as it likes."""

    def __init__(self, *models: str) -> None:
        self.answers: dict[str, Answer] = {
            "/health": httpx.Response(200),
            "/v1/models": cards(*models),
            "/metrics": page(METRICS),
        }
        self.asked: list[str] = []

    async def answer(self, path: str) -> httpx.Response:
        self.asked.append(path)
        found = self.answers[path]
        if isinstance(found, Exception):
            raise found
        if isinstance(found, httpx.Response):
            # A response can be read once only.
            return (
                found if isinstance(found.stream, Pieces) else httpx.Response(found.status_code, content=found.read())
            )
        return await found()


class Told:
    """Keeps the events that it is told."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.ticks: list[float] = []

    def observe(self, event: Event) -> None:
        self.events.append(event)

    def tick(self, now_s: float) -> None:
        self.ticks.append(now_s)

    def of(self, kind: type[Any], worker: str) -> list[Any]:
        """The events of one kind about one worker."""
        return [event for event in self.events if isinstance(event, kind) and _worker(event) == worker]


class Observed(Told):
    """Lets a test wait for an event too."""

    def __init__(self) -> None:
        super().__init__()
        self._told = asyncio.Condition()
        self._notices: set[asyncio.Task[None]] = set()

    def observe(self, event: Event) -> None:
        super().observe(event)
        self._notify()

    def tick(self, now_s: float) -> None:
        super().tick(now_s)
        self._notify()

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until what was observed fulfils the condition."""
        async with asyncio.timeout(PATIENCE_S), self._told:
            await self._told.wait_for(lambda: bool(condition()))

    def _notify(self) -> None:
        task = asyncio.ensure_future(self._wake())
        self._notices.add(task)
        task.add_done_callback(self._notices.discard)

    async def _wake(self) -> None:
        async with self._told:
            self._told.notify_all()


def member(name: str, *, base_path: str = "", role: Role = Role.DECODE, **settings: Any) -> Member:
    """A worker of this name, at a host of this name."""
    return worker_member(WorkerSettings(id=name, url=f"http://{name}{base_path}", role=role, **settings))


class Fleet(Registry):
    """A registry whose core is the list `told`, and whose requests in flight are what a test says."""

    def __init__(self, *members: Member, **options: Any) -> None:
        self.observed = Told()
        self.busy: dict[str, int] = {}
        super().__init__(
            self.observed, clock=lambda: NOW_S, in_flight=lambda worker_id: self.busy.get(worker_id, 0), **options
        )
        for each in members:
            self.add(each)

    @property
    def told(self) -> list[tuple[str, str]]:
        """(event, worker) pairs so far."""
        return [(type(event).__name__, _worker(event)) for event in self.observed.events]


class Watched:
    """A watcher that keeps who is watched."""

    def __init__(self) -> None:
        self.now: set[str] = set()

    def watch(self, worker_id: WorkerId) -> None:
        assert worker_id not in self.now
        self.now.add(worker_id)

    def unwatch(self, worker_id: WorkerId) -> None:
        self.now.remove(worker_id)


def card(model: str, **fields: Any) -> dict[str, Any]:
    """A model card."""
    return {"id": model, "object": "model", **fields}


class Watch:
    """A monitor over fake workers; the intervals are as short as can be."""

    def __init__(
        self, workers: Mapping[str, FakeWorker], *, timeout_s: float = 5.0, base_path: str = "", **settings: Any
    ) -> None:
        self.workers = workers
        self.observed = Observed()
        self.in_flight: dict[WorkerId, int] = {}
        self.registry = Registry(self.observed, clock=lambda: 42.0, in_flight=lambda id_: self.in_flight.get(id_, 0))
        for name in workers:
            self.registry.add(member(name, base_path=base_path, **settings))
        transport = httpx.MockTransport(lambda request: workers[request.url.host].answer(request.url.path))
        self.client = httpx.AsyncClient(transport=transport, trust_env=False)
        intervals = FleetSettings(probe_interval_s=0.001, scrape_interval_s=0.001, probe_timeout_s=timeout_s)
        self.passed: list[int] = []
        self.monitor = FleetMonitor(
            self.registry,
            self.observed,
            self.client,
            intervals,
            clock=lambda: 42.0,
            passed=lambda: self.passed.append(len(self.observed.ticks)),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.monitor.stop()
        await self.client.aclose()


def _worker(event: Any) -> WorkerId:
    worker_id: WorkerId = event.spec.worker_id if hasattr(event, "spec") else event.worker_id
    return worker_id
