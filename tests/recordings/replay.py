"""A gateway on loopback between a client that repeats what was recorded and workers that do too."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from gateway.app import Gateway, open_gateway
from gateway.commands.serve import GatewayServer
from gateway.core.policy import Policy
from gateway.core.types import WorkerId
from gateway.settings import Settings
from gateway.telemetry.decisions import read_decision_log
from gateway.wire.decision_record import DecisionRecord
from tests.recordings.exchanges import Message, parse, parse_head

PATIENCE_S = 30.0
ODD_WRITES = (3, 7, 4, 5, 6)
"""Sizes of writes that respect no boundary of HTTP, SSE, JSON or UTF-8."""

MAX_HEAD_BYTES = 2**23

Address = tuple[str, int]


class ReplayWorker:
    """Answers every request with the same bytes, then closes; keeps what it was asked."""

    def __init__(self, answer: bytes = b"", *, write_sizes: tuple[int, ...] = ()) -> None:
        self.answer = answer
        self.write_sizes = write_sizes
        """How the answer is cut; empty writes it at once."""
        self.asked: list[Message] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = parse_head(head).header(b"content-length")
        self.asked.append(parse(head + await reader.readexactly(int(length or b"0"))))
        for piece in _cut(self.answer, self.write_sizes):
            writer.write(piece)
            await writer.drain()
            # The gateway reads what is there before more comes.
            await asyncio.sleep(0)
        writer.close()


def _cut(data: bytes, sizes: tuple[int, ...]) -> Iterator[bytes]:
    at = 0
    for size in cycle(sizes or (len(data),)):
        if at >= len(data):
            return
        yield data[at : at + size]
        at += size


def framed(request: Message, *, body: bytes | None = None) -> bytes:
    """A recorded request's bytes, with a hop's headers of its own; its body replaced where one is given."""
    body = request.body if body is None else body
    own = {b"connection", b"host", b"content-length"}
    headers = [(name, value) for name, value in request.headers if name not in own]
    headers += [(b"host", b"gateway"), (b"connection", b"close")]
    if body or request.start.startswith(b"POST"):
        headers.append((b"content-length", b"%d" % len(body)))
    lines = [request.start, *(name + b": " + value for name, value in headers)]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


class Replay:
    """A served gateway and its books."""

    def __init__(self, gateway: Gateway, address: Address, log: Path) -> None:
        self.gateway = gateway
        self._address = address
        self._log = log

    async def send(self, request: bytes) -> bytes:
        """What comes back for the bytes of a request, until the gateway closes."""
        async with asyncio.timeout(PATIENCE_S):
            reader, writer = await asyncio.open_connection(*self._address)
            writer.write(request)
            answer = await reader.read()
            writer.close()
            await writer.wait_closed()
        return answer

    async def send_and_leave(self, request: bytes) -> None:
        """Send bytes and close the connection."""
        _, writer = await asyncio.open_connection(*self._address)
        writer.write(request)
        writer.close()
        await writer.wait_closed()

    async def repeat(self, request: Message, *, body: bytes | None = None) -> Message:
        """Send a recorded request, its body replaced where one is given; the whole answer."""
        return parse(await self.send(framed(request, body=body)))

    async def metrics(self) -> Mapping[str, float]:
        """The sum over all labels of each sample of the metrics page."""
        page = await self.send(b"GET /metrics HTTP/1.1\r\nhost: gateway\r\nconnection: close\r\n\r\n")
        sums: dict[str, float] = {}
        for family in text_string_to_metric_families(parse(page).body.decode()):
            for sample in family.samples:
                sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
        return sums

    def failures(self, worker: str) -> float:
        """The failures that count against a worker."""
        return self.gateway.router.health.get(WorkerId(worker)).failures

    async def check_settled(self, requests: int) -> None:
        """Nothing is held any more, and each request was counted once."""
        assert len(self.gateway.router.ledger) == 0
        metrics = await self.metrics()
        assert metrics.get("tidegate_inflight_requests", 0.0) == 0
        assert metrics.get("tidegate_requests_total", 0.0) == requests
        assert metrics.get("tidegate_request_duration_seconds_count", 0.0) == requests

    def records(self) -> list[DecisionRecord]:
        """The decision log; to be read when the gateway is down."""
        return list(read_decision_log(self._log))


@asynccontextmanager
async def replay(
    workers: Mapping[str, ReplayWorker],
    *,
    log: Path,
    models_page: bytes,
    policy: Policy | None = None,
    **sections: Any,
) -> AsyncIterator[Replay]:
    """Serve a gateway in front of workers, of which those named `p...` and `d...` do one half each.

    Args:
        workers: by id.
        log: where the decision log goes.
        models_page: what each of them says of its models.
        policy: by default the settings' own.
        sections: of the settings.
    """
    async with AsyncExitStack() as stack:
        entries = []
        for name, worker in workers.items():
            host, port = await stack.enter_async_context(_listening(worker))
            role = {"p": "prefill", "d": "decode"}.get(name[0], "both")
            entries.append({"id": name, "url": f"http://{host}:{port}", "role": role, "kv_block_tokens": 32})
        settings = Settings(workers=entries, telemetry={"decision_log": log, "request_log": False}, **sections)
        probes = httpx.MockTransport(lambda request: _probed(request, models_page))
        gateway = await stack.enter_async_context(
            open_gateway(settings, transport=probes, policy=policy, instance="gw")
        )
        yield Replay(gateway, await stack.enter_async_context(_served(gateway)), log)


def _probed(request: httpx.Request, models_page: bytes) -> httpx.Response:
    return httpx.Response(200, content=models_page if request.url.path == "/v1/models" else b"")


@asynccontextmanager
async def _listening(worker: ReplayWorker) -> AsyncIterator[Address]:
    server = await asyncio.start_server(worker.serve, "127.0.0.1", 0, limit=MAX_HEAD_BYTES)
    async with server:
        yield server.sockets[0].getsockname()[:2]


@asynccontextmanager
async def _served(gateway: Gateway) -> AsyncIterator[Address]:
    """As `tidegate serve` does it, without its ticks."""
    server = GatewayServer(gateway.asgi, "127.0.0.1", 0, 1, name="gateway", http=gateway.http)
    server.config.load()
    server.lifespan = server.config.lifespan_class(server.config)
    await server.startup()
    try:
        yield server.servers[0].sockets[0].getsockname()[:2]
    finally:
        # Its own shutdown sleeps, whether or not there is anything to wait for.
        for listener in server.servers:
            listener.close()
            await listener.wait_closed()
