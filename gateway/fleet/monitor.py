"""Watching the workers: health probes, metric scrapes and model lists.

The rule of this module: each worker is watched by its own tasks, so that one that hangs delays no other; whatever
goes wrong is an observation, never an exception that ends the watch.
"""

import asyncio
from collections.abc import Callable, Mapping
from enum import Enum, auto

import httpx
import msgspec
import structlog

from gateway.core.events import WorkerProbed, WorkerSampled
from gateway.core.types import WorkerId
from gateway.fleet.cards import Card, known_cards
from gateway.fleet.registry import Observer, Registry
from gateway.settings import FleetSettings
from gateway.wire.engine_metrics import parse_sample

MODELS_EVERY_PROBES = 15
"""Model lists change rarely (adapters come and go): every so many probes they are read again."""
TICK_S = 0.25
MAX_PAGE_BYTES = 4 * 2**20
"""A longer answer is read no further and counts as none."""


class _Missing(Enum):
    """Why a page did not come."""

    REFUSED = auto()
    """No connection, an answer that broke off or is too long, or a status that is no success."""
    NOT_FOUND = auto()
    TIMED_OUT = auto()


class FleetMonitor:
    """Watches every worker of a registry between `start` and `stop`.

    Args:
        registry: who is there.
        core: is told what was seen, and that time passes.
        client: asks.
        settings: how often, and how long an answer may take.
        clock: seconds; the core's clock.
        passed: is called whenever time has passed for the core.
    """

    def __init__(
        self,
        registry: Registry,
        core: Observer,
        client: httpx.AsyncClient,
        settings: FleetSettings,
        *,
        clock: Callable[[], float],
        passed: Callable[[], None] = lambda: None,
    ) -> None:
        self._registry = registry
        self._core = core
        self._client = client
        self._settings = settings
        self._clock = clock
        self._passed = passed
        self._watches: dict[WorkerId, asyncio.Task[None]] = {}
        self._ticking: asyncio.Task[None] | None = None
        self._healthy: dict[WorkerId, bool] = {}
        self._log = structlog.get_logger()

    async def start(self) -> None:
        """Look at every worker once, then keep watching them and all that join."""
        members = [member.worker_id for member in self._registry.members.values() if not member.named]
        await asyncio.gather(*map(self.look, members))
        self._registry.watcher = self
        for worker_id in members:
            self._watches[worker_id] = asyncio.create_task(self._keep_watching(worker_id))
        self._ticking = asyncio.create_task(self._tick_forever())

    async def stop(self) -> None:
        """Stop watching."""
        self._registry.watcher = None
        tasks = [*self._watches.values(), *([self._ticking] if self._ticking else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._watches.clear()

    def watch(self, worker_id: WorkerId) -> None:
        """A worker joined: look at it at once, then keep watching."""
        self._watches[worker_id] = asyncio.create_task(self._look_and_keep_watching(worker_id))

    def unwatch(self, worker_id: WorkerId) -> None:
        """A worker left."""
        self._watches.pop(worker_id).cancel()
        self._healthy.pop(worker_id, None)

    async def look(self, worker_id: WorkerId) -> None:
        """One probe, one model list and one scrape of a worker."""
        await self.probe(worker_id)
        if self._healthy.get(worker_id):
            await self.read_models(worker_id)
            await self.scrape(worker_id)

    async def probe(self, worker_id: WorkerId) -> None:
        """Ask a worker's /health; where there is no such page, its /v1/models is as good a sign of life."""
        page = await self._get(worker_id, "/health")
        if page is _Missing.NOT_FOUND:
            page = await self._get(worker_id, "/v1/models")
        healthy = isinstance(page, bytes)
        if self._healthy.get(worker_id) is not healthy:
            self._healthy[worker_id] = healthy
            self._log.info("worker.probed", worker=worker_id, healthy=healthy)
        timed_out = page is _Missing.TIMED_OUT
        self._core.observe(WorkerProbed(at_s=self._clock(), worker_id=worker_id, healthy=healthy, timed_out=timed_out))

    async def read_models(self, worker_id: WorkerId) -> None:
        """Read a worker's /v1/models; an answer that is none is as good as no answer."""
        page = await self._get(worker_id, "/v1/models")
        cards = _cards(page) if isinstance(page, bytes) else None
        if cards is not None:
            self._registry.put_cards(worker_id, cards)

    async def scrape(self, worker_id: WorkerId) -> None:
        """Read a worker's /metrics."""
        page = await self._get(worker_id, "/metrics")
        if isinstance(page, bytes):
            now_s = self._clock()
            sample = parse_sample(page, now_s)
            self._core.observe(WorkerSampled(at_s=now_s, worker_id=worker_id, sample=sample))

    async def _get(self, worker_id: WorkerId, path: str) -> bytes | _Missing:
        """A page that came whole, with a 2xx, in time; or why it did not."""
        url = self._registry.members[worker_id].url.rstrip("/") + path
        try:
            # The client's own timeouts are per read: a worker that sends a byte now and then would never run out.
            async with asyncio.timeout(self._settings.probe_timeout_s), self._client.stream("GET", url) as response:
                if not response.is_success:
                    not_found = response.status_code == httpx.codes.NOT_FOUND
                    return _Missing.NOT_FOUND if not_found else _Missing.REFUSED
                return await _read(response)
        except (TimeoutError, httpx.TimeoutException):
            return _Missing.TIMED_OUT
        except httpx.HTTPError:
            return _Missing.REFUSED

    async def _look_and_keep_watching(self, worker_id: WorkerId) -> None:
        await self.look(worker_id)
        await self._keep_watching(worker_id)

    async def _keep_watching(self, worker_id: WorkerId) -> None:
        await asyncio.gather(self._probe_forever(worker_id), self._scrape_forever(worker_id))

    async def _probe_forever(self, worker_id: WorkerId) -> None:
        probes = 0
        while True:
            await asyncio.sleep(self._settings.probe_interval_s)
            was_healthy = self._healthy.get(worker_id)
            await self.probe(worker_id)
            probes += 1
            is_unknown = self._registry.spec(worker_id) is None
            is_due = not was_healthy or is_unknown or probes % MODELS_EVERY_PROBES == 0
            if self._healthy[worker_id] and is_due:
                await self.read_models(worker_id)

    async def _scrape_forever(self, worker_id: WorkerId) -> None:
        while True:
            await asyncio.sleep(self._settings.scrape_interval_s)
            await self.scrape(worker_id)

    async def _tick_forever(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._core.tick(self._clock())
            self._registry.settle()
            self._passed()


async def _read(response: httpx.Response) -> bytes | _Missing:
    page = bytearray()
    async for piece in response.aiter_bytes():
        page += piece
        if len(page) > MAX_PAGE_BYTES:
            return _Missing.REFUSED
    return bytes(page)


def _cards(page: bytes) -> list[Card] | None:
    try:
        answer = msgspec.json.decode(page)
    except (msgspec.DecodeError, RecursionError):
        return None
    data = answer.get("data") if isinstance(answer, Mapping) else None
    return known_cards(data) if isinstance(data, list) else None
