"""A real Redis or Valkey on loopback, replicas that share it, and what is really stored there."""

import asyncio
import contextlib
import shutil
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ConnectionError as NoConnection

from gateway.core.conversation.identity import ConversationId
from gateway.core.types import WorkerId
from gateway.fleet.shared.codec import read
from gateway.fleet.shared.pins import Pin, SharedOptions
from gateway.fleet.shared.server import RedisServer
from gateway.fleet.shared.store import SharedPins
from tests.fleet.shared.shared_waiting import PATIENCE_S, until

SERVER = shutil.which("redis-server") or shutil.which("valkey-server")
needs_server = pytest.mark.skipif(SERVER is None, reason="redis-server is not installed (apt-get install redis-server)")

TALK = ConversationId(2**64 - 1)
A, B, C = WorkerId("decode-a"), WorkerId("decode-b"), WorkerId("decode-c")


def pin(worker_id: WorkerId, kv_tokens: int = 100, *, turns: int = 1, idle_s: float = 0.0) -> Pin:
    """A pin last seen so long ago."""
    return Pin(worker_id=worker_id, kv_tokens=kv_tokens, turns=turns, last_seen_s=time.monotonic() - idle_s)


class LabServer:
    """A server process that can be killed, stopped for a while, and started again without its memory."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self._directory = directory
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it and wait until it answers."""
        assert SERVER is not None
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._directory)]
        options += ["--save", "", "--appendonly", "no", "--loglevel", "warning", *self._arguments]
        self._process = subprocess.Popen([SERVER, *options], stdout=subprocess.DEVNULL)
        until_s = time.monotonic() + PATIENCE_S
        while True:
            with contextlib.suppress(NoConnection), self.client() as client:
                client.ping()
                return
            assert time.monotonic() < until_s, "the server never answered"
            assert self._process.poll() is None, "the server has ended"
            time.sleep(0.02)

    def kill(self) -> None:
        """End it without a word."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    @contextlib.contextmanager
    def hanging(self) -> Iterator[None]:
        """Meanwhile it takes connections and answers nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    @contextlib.contextmanager
    def client(self) -> Iterator["Redis"]:
        """A plain client."""
        client = Redis(port=self.port, protocol=2)
        try:
            yield client
        finally:
            client.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What is in the server."""

    pins: Mapping[ConversationId, tuple[str, int, int]]
    """Worker, KV tokens and turns."""
    seen_ms: Mapping[ConversationId, float]
    sums: Mapping[str, int]
    count: int

    def check(self) -> None:
        """The sums are those of the pins, and every pin is in all three places."""
        sums: dict[str, int] = {}
        for worker, kv_tokens, _ in self.pins.values():
            sums[worker] = sums.get(worker, 0) + kv_tokens
        assert dict(self.sums) == {worker: tokens for worker, tokens in sums.items() if tokens}
        assert self.count == len(self.pins)
        assert self.seen_ms.keys() == self.pins.keys()


class Place:
    """A prefix of its own on a server."""

    def __init__(self, server: LabServer, **options: Any) -> None:
        self.server = server
        # So patient that a crowded machine is not taken for a slow server.
        self.options = SharedOptions(
            url=server.url, prefix=uuid.uuid4().hex, deadline_s=PATIENCE_S, retry_s=0.05, refresh_s=0.05, flush_s=0.01
        )
        self.options = replace(self.options, **options)

    def key(self, name: str) -> str:
        return f"{{{self.options.prefix}}}:{name}"

    def stored(self) -> Stored:
        with self.server.client() as client, client.pipeline(transaction=True) as together:
            together.hgetall(self.key("pins"))
            together.zrange(self.key("seen"), 0, -1, withscores=True)
            together.hgetall(self.key("sums"))
            pins, seen, sums = together.execute()
        count = int(sums.pop(b"", 0))
        return Stored(
            pins={read(field): _stored_pin(value) for field, value in pins.items()},
            seen_ms={read(field): score for field, score in seen},
            sums={worker.decode(): int(tokens) for worker, tokens in sums.items()},
            count=count,
        )

    def age(self, by_s: float) -> None:
        """Let all pins have been seen earlier than they were."""
        with self.server.client() as client:
            seen: Any = client.zrange(self.key("seen"), 0, -1, withscores=True)
            for field, score in seen:
                client.zadd(self.key("seen"), {field: score - by_s * 1e3})


def _stored_pin(value: bytes) -> tuple[str, int, int]:
    kv_tokens, turns, worker = value.decode().split(" ", maxsplit=2)
    return worker, int(kv_tokens), int(turns)


class Replica:
    """A gateway's side: what it knows itself, and what it was told."""

    def __init__(self, options: SharedOptions) -> None:
        self.known: dict[ConversationId, Pin] = {}
        self.moves: list[tuple[ConversationId, WorkerId | None]] = []
        self.occupancy: dict[WorkerId, int] = {}
        self.refreshed = 0
        self.shared = SharedPins(
            RedisServer(options, clock=time.monotonic),
            options,
            clock=time.monotonic,
            snapshot=lambda: dict(self.known),
            moved=self._moved,
            occupancy=self._refresh,
        )

    def _moved(self, conversation: ConversationId, moved_to: Pin | None) -> None:
        self.moves.append((conversation, None if moved_to is None else moved_to.worker_id))

    def _refresh(self, occupancy: Mapping[WorkerId, int]) -> None:
        self.occupancy = dict(occupancy)
        self.refreshed += 1

    async def is_up(self) -> None:
        await until(lambda: self.shared.stats.is_up, "the server is up")

    async def is_down(self) -> None:
        await until(lambda: not self.shared.stats.is_up, "the server is down")

    async def has_sent(self) -> None:
        await until(lambda: not self.shared.stats.queued, "everything is sent")


@contextlib.asynccontextmanager
async def replicas(options: SharedOptions, count: int, *, is_there: bool = True) -> AsyncIterator[list[Replica]]:
    """Replicas that have started, and reached the server where there is one."""
    started = [Replica(options) for _ in range(count)]
    try:
        for replica in started:
            await replica.shared.start()
            if is_there:
                await replica.is_up()
        yield started
    finally:
        await asyncio.gather(*(replica.shared.stop() for replica in started))
