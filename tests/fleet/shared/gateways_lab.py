"""Gateways that share a server, over the same emulated workers, all in this process."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from gateway.app import Gateway, open_gateway
from gateway.core.conversation.book import Conversation
from gateway.core.types import Role
from gateway.settings import Settings
from loadtest.worker.config import WorkerConfig
from tests.api.asgi_client import AsgiClient
from tests.fleet.shared.redis_lab import Place
from tests.fleet.shared.shared_waiting import until
from tests.parity.test_parity import MODEL, workers

ROLES = {"prefill-0": Role.PREFILL, "decode-0": Role.DECODE, "decode-1": Role.DECODE, "decode-2": Role.DECODE}
SPEED = 3.0
"""A turn takes several times as long as news wait for others to go with them, as it does on an engine."""
SYSTEM = "You are a helpful agent with many tools, each of which is described here at length. " * 20


@dataclass(frozen=True, slots=True)
class Answered:
    """What a turn came to."""

    status: int | None
    path: bytes | None
    worker: bytes | None


@dataclass
class Client:
    """A client that resends its history, to whichever gateway it likes."""

    name: str
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    """What names its conversation, where anything does."""
    answered: list[Answered] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"Task {self.name}"}]

    def start(self, gateway: Gateway) -> AsgiClient:
        """Send the next turn."""
        body = {"model": MODEL, "messages": self.messages, "max_tokens": 6, "ignore_eos": True}
        headers = [(b"content-type", b"application/json"), *self.headers]
        return AsgiClient(gateway.asgi, headers=headers).start(json.dumps(body).encode())

    async def turn(self, gateway: Gateway) -> Answered:
        """One turn, and the client's next message."""
        client = self.start(gateway)
        await client.task
        self.answered.append(told(client))
        if client.status == 200:
            answer = json.loads(client.body)["choices"][0]["message"]["content"]
            self.messages += [
                {"role": "assistant", "content": answer},
                {"role": "user", "content": f"Go on, {len(self.answered)}"},
            ]
        return self.answered[-1]


def told(client: AsgiClient) -> Answered:
    return Answered(client.status, client.header(b"x-tidegate-path"), client.header(b"x-tidegate-worker"))


def named(name: str) -> Client:
    return Client(name, [(b"x-session-id", name.encode())])


async def page(gateway: Gateway) -> str:
    """What a scrape is answered."""
    async with httpx.AsyncClient(transport=httpx.ASGITransport(gateway.asgi), base_url="http://gw") as client:
        return (await client.get("/metrics")).text


def home_of(gateway: Gateway) -> Conversation:
    """The one conversation that a gateway knows."""
    (known,) = gateway.router.conversations.book
    return known


def settings_of(urls: dict[str, str], place: Place, conversation: dict[str, Any], journal: Path | None) -> Settings:
    options = place.options
    return Settings.model_validate(
        {
            "workers": [{"id": name, "url": url, "role": ROLES[name].value} for name, url in urls.items()],
            "routing": {"policy": "remote", "conversation": conversation},
            "fleet": {"probe_interval_s": 0.05, "scrape_interval_s": 0.02},
            "telemetry": {"journal": None if journal is None else str(journal)},
            "shared": {
                "url": options.url,
                "prefix": options.prefix,
                "deadline_s": options.deadline_s,
                "retry_s": options.retry_s,
                "refresh_s": options.refresh_s,
                "flush_s": options.flush_s,
            },
        }
    )


@contextlib.asynccontextmanager
async def gateways(
    place: Place, count: int = 2, *, journals: Path | None = None, **conversation: Any
) -> AsyncIterator[list[Gateway]]:
    """Gateways that know all workers and reach the server; `conversation` are the settings of that section."""
    configs = [
        WorkerConfig(name=name, role=role, engine="h100-llama8b", model=MODEL, speed=SPEED)
        for name, role in ROLES.items()
    ]
    async with workers(configs) as served, contextlib.AsyncExitStack() as stack:
        urls = {worker.name: worker.url for worker in served}
        opened = []
        for number in range(count):
            journal = None if journals is None else journals / f"{number}.jsonl"
            settings = settings_of(urls, place, {"mode": "conserve", **conversation}, journal)
            opened.append(await stack.enter_async_context(open_gateway(settings, instance=f"gw{number}")))
        for gateway in opened:
            await until(lambda gateway=gateway: _knows_all(gateway), "it knows all workers")  # type: ignore[misc]
            while "tidegate_shared_up 1.0" not in await page(gateway):  # noqa: ASYNC110 (nothing tells)
                await asyncio.sleep(0.05)
        async with asyncio.timeout(60):
            yield opened


def _knows_all(gateway: Gateway) -> bool:
    return sum(state.kv_capacity_tokens is not None for state in gateway.router.fleet) == len(ROLES)
