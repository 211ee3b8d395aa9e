"""Emulated workers in one process, called as ASGI applications, in virtual time."""

import asyncio
import heapq
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, TypeVar

from prometheus_client.parser import text_string_to_metric_families

from loadtest.engine.engine import Engine
from loadtest.engine.presets import load_engine
from loadtest.worker.api import Worker
from loadtest.worker.app import WorkerApp
from loadtest.worker.config import WorkerConfig
from loadtest.worker.host import EngineHost
from loadtest.worker.pd import CLAIM_PATH, RELEASE_PATH, RemoteKv

T = TypeVar("T")
MODEL = "tiny-llama"
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
SETTLE_TURNS = 12
"""Turns of the event loop in which everything that can go on without time does."""


@dataclass(order=True)
class VirtualTimer:
    when_s: float
    serial: int
    callback: Callable[[], None] = field(compare=False)
    cancelled: bool = field(default=False, compare=False)

    def cancel(self) -> None:
        self.cancelled = True


class VirtualClock:
    """Time that stands still until it is moved to the next timer."""

    def __init__(self) -> None:
        self._now_s = 100.0
        self._timers: list[VirtualTimer] = []
        self._serial = count()

    def now_s(self) -> float:
        return self._now_s

    def call_at(self, when_s: float, callback: Callable[[], None]) -> VirtualTimer:
        timer = VirtualTimer(when_s, next(self._serial), callback)
        heapq.heappush(self._timers, timer)
        return timer

    def next_at_s(self) -> float | None:
        while self._timers and self._timers[0].cancelled:
            heapq.heappop(self._timers)
        return self._timers[0].when_s if self._timers else None

    def fire_next(self) -> None:
        assert self.next_at_s() is not None, "nothing is due, ever"
        timer = heapq.heappop(self._timers)
        self._now_s = max(self._now_s, timer.when_s)
        timer.callback()

    def move(self, seconds: float) -> None:
        until_s = self._now_s + seconds
        while (at_s := self.next_at_s()) is not None and at_s <= until_s:
            self.fire_next()
        self._now_s = until_s


@dataclass
class Reply:
    """What a client got, so far."""

    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    parts: list[bytes] = field(default_factory=list)
    complete: bool = False

    @property
    def body(self) -> bytes:
        return b"".join(self.parts)

    def json(self) -> Any:
        return json.loads(self.body)

    def data(self) -> list[str]:
        return sse_data(self.body)

    def events(self) -> list[Any]:
        *events, done = self.data()
        assert done == "[DONE]"
        return [json.loads(event) for event in events]


def sse_data(body: bytes) -> list[str]:
    """The payload of each event; every event must be one `data:` line and one empty line."""
    *events, rest = body.decode().split("\n\n")
    assert rest == ""
    assert all(event.startswith("data: ") and "\n" not in event for event in events)
    return [event.removeprefix("data: ") for event in events]


class Exchange:
    """One call under way."""

    def __init__(self, app: WorkerApp, scope: dict[str, Any], body: bytes) -> None:
        self.reply = Reply()
        self._inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._inbox.put_nowait({"type": "http.request", "body": body, "more_body": False})
        self.task = asyncio.create_task(self._run(app, scope))

    async def _run(self, app: WorkerApp, scope: dict[str, Any]) -> Reply:
        await app(scope, self._inbox.get, self._take)
        return self.reply

    def leave(self) -> None:
        """The client closes its connection."""
        self._inbox.put_nowait({"type": "http.disconnect"})

    async def _take(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.reply.status = message["status"]
            self.reply.headers = {key.decode(): value.decode() for key, value in message["headers"]}
        else:
            self.reply.parts.append(message["body"])
            self.reply.complete = not message.get("more_body", False)


@dataclass
class Emulated:
    """A worker and its insides."""

    worker: Worker
    host: EngineHost
    app: WorkerApp


class Lab:
    """Builds workers that share one clock and reach each other without sockets."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.released: list[RemoteKv] = []
        self._by_address: dict[tuple[str, int], Emulated] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._serial = count(1)

    def worker(self, *, hold_lease_s: float = 30.0, **settings: Any) -> Emulated:
        config = WorkerConfig(**{"name": "w", "engine": "h100-llama8b", "model": MODEL, "block_tokens": 32} | settings)
        spec, costs = load_engine(config.engine)
        spec = replace(
            spec,
            block_tokens=config.block_tokens or spec.block_tokens,
            total_blocks=config.total_blocks or spec.total_blocks,
            hold_lease_s=hold_lease_s,
        )
        host = EngineHost(Engine(spec, costs), speed=config.speed, clock=self.clock)
        address = ("worker", 9000 + len(self._by_address))
        worker = Worker(
            config,
            spec,
            host=host,
            peers=self,
            address=address,
            new_id=self.new_id,
            wall_clock=lambda: 1_800_000_000.5,
        )
        emulated = Emulated(worker, host, WorkerApp(worker.routes()))
        self._by_address[address] = emulated
        return emulated

    def new_id(self, size: int) -> str:
        return f"{next(self._serial):0{2 * size}x}"

    def begin(
        self,
        emulated: Emulated,
        path: str,
        body: Any = None,
        *,
        method: str = "POST",
        query: bytes = b"",
        **headers: str,
    ) -> Exchange:
        """Send a request; nothing happens until time or the loop goes on."""
        raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        named = {"content-type": "application/json"} | {k.replace("_", "-"): v for k, v in headers.items()}
        pairs = [(key.encode(), value.encode()) for key, value in named.items()]
        scope = {"type": "http", "method": method, "path": path, "headers": pairs, "query_string": query}
        return Exchange(emulated.app, scope, raw)

    async def post(self, emulated: Emulated, path: str, body: Any = None, **headers: str) -> Reply:
        return await self.run(self.begin(emulated, path, body, **headers).task)

    async def get(self, emulated: Emulated, path: str) -> Reply:
        return await self.run(self.begin(emulated, path, method="GET").task)

    async def run(self, work: Awaitable[T]) -> T:
        """Let the loop and time go on until `work` is done."""
        task = asyncio.ensure_future(work)
        await settle()
        while not task.done():
            self.clock.fire_next()
            await settle()
        return await task

    async def until(self, condition: Callable[[], bool]) -> None:
        """Let time go on until something is the case."""
        await settle()
        while not condition():
            self.clock.fire_next()
            await settle()

    async def time_passes(self, seconds: float) -> None:
        self.clock.move(seconds)
        await settle()

    async def metrics(self, emulated: Emulated) -> dict[str, float]:
        """Every sample of /metrics, by name and labels without the two that all have."""
        reply = await self.get(emulated, "/metrics")
        return samples(reply.body.decode())

    async def claim(self, remote: RemoteKv) -> int | None:
        holder = self._by_address.get((remote.host, remote.port))
        if holder is None:
            return None
        body = {"request_id": remote.request_id, "engine_id": remote.engine_id}
        exchange = self.begin(holder, CLAIM_PATH, body)
        reply = await exchange.task
        return reply.json()["tokens"] if reply.status == 200 else None

    def release(self, remote: RemoteKv) -> None:
        self.released.append(remote)
        holder = self._by_address[remote.host, remote.port]
        self._keep(self.begin(holder, RELEASE_PATH, {"request_id": remote.request_id}).task)

    def _keep(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def settle() -> None:
    for _ in range(SETTLE_TURNS):
        await asyncio.sleep(0)


def samples(text: str) -> dict[str, float]:
    """Samples of an exposition by `name{label="value"}`, without the labels engine and model_name."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = {k: v for k, v in sample.labels.items() if k not in {"engine", "model_name"}}
            shown = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
            found[f"{sample.name}{{{shown}}}" if shown else sample.name] = sample.value
    return found


def chat(text: str = "What is the capital of France?", **fields: Any) -> dict[str, Any]:
    """A chat request with one user message."""
    return {"model": MODEL, "messages": [{"role": "user", "content": text}]} | fields


def completion(prompt: Any = "The capital of France is", **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": prompt} | fields
