"""Workers of this process on real sockets, and a client that sees every byte."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from loadtest.worker.config import WorkerConfig
from loadtest.worker.control import FAULTS_PATH, FleetControl
from loadtest.worker.server import BoundWorker, serve_workers
from tests.loadtest.worker.worker_lab import MODEL, samples

PATIENCE_S = 20.0
SPEED = 1000


@dataclass(frozen=True, slots=True)
class Raw:
    """Everything that came before the connection ended."""

    data: bytes

    @property
    def status(self) -> int:
        return int(self.data.split(b" ", 2)[1])

    @property
    def head(self) -> dict[str, str]:
        _, *lines = self.data.partition(b"\r\n\r\n")[0].decode().split("\r\n")
        return {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}

    @property
    def body(self) -> bytes:
        return self.data.partition(b"\r\n\r\n")[2]

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True, slots=True)
class Workers:
    bound: dict[str, BoundWorker]
    control: FleetControl

    async def send(
        self, worker: str, path: str, body: Any = None, *, method: str = "POST"
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        raw = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nhost: w\r\nconnection: close\r\ncontent-type: application/json\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", self.bound[worker].port)
        writer.write(head.encode() + b"content-length: %d\r\n\r\n" % len(raw) + raw)
        return reader, writer

    async def ask(self, worker: str, path: str, body: Any = None, *, method: str = "POST") -> Raw:
        async with asyncio.timeout(PATIENCE_S):
            reader, writer = await self.send(worker, path, body, method=method)
            data = await reader.read()
            writer.close()
            return Raw(data)

    async def put(self, worker: str, **fault: Any) -> Any:
        return (await self.ask(worker, FAULTS_PATH, fault, method="PUT")).json()

    async def fired(self, worker: str) -> list[int]:
        report = (await self.ask(worker, FAULTS_PATH, method="GET")).json()
        return [fault["fired"] for fault in report["faults"]]

    async def until_idle(self, worker: str) -> None:
        """Until nothing runs, waits or holds KV: a client's leaving takes a moment to be seen."""
        async with asyncio.timeout(PATIENCE_S):
            while any((await self.load(worker)).values()):
                pass

    async def load(self, worker: str) -> dict[str, float]:
        found = samples((await self.ask(worker, "/metrics", method="GET")).body.decode())
        gauges = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
        return {name: found[name] for name in gauges}


@asynccontextmanager
async def workers(*names: str, **settings: Any) -> AsyncIterator[Workers]:
    plain = {"engine": "h100-llama8b", "model": MODEL, "speed": SPEED}
    configs = [msgspec.convert(plain | {"name": name} | settings, WorkerConfig) for name in names]
    stop, control = asyncio.Event(), FleetControl()
    ready: asyncio.Future[list[BoundWorker]] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve_workers(configs, stop=stop, on_ready=ready.set_result, control=control))
    try:
        yield Workers({worker.name: worker for worker in await ready}, control)
    finally:
        stop.set()
        await serving
