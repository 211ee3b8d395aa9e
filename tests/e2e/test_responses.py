"""Stored responses behind a gateway and four emulated workers, over real sockets."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from gateway.app import Gateway, open_gateway
from gateway.core.types import WorkerId
from gateway.settings import Settings
from gateway.telemetry.decisions import read_decision_log
from loadtest.worker.config import WorkerConfig
from loadtest.worker.server import BoundWorker, serve_workers

pytestmark = pytest.mark.e2e

MODEL = "emulated-llm"
PATIENCE_S = 20.0
WORKERS = ("w0", "w1", "w2", "w3")
MODES: list[dict[str, Any]] = [
    {"mode": "conserve"},
    {"mode": "affinity", "pinning": "hash"},
    {"mode": "affinity", "pinning": "load"},
    {"mode": "off"},
]
KEYS = {"one": "key-of-one", "two": "key-of-two"}


@dataclass
class House:
    """A gateway, its client, and workers that can be stopped."""

    gateway: Gateway
    client: httpx.AsyncClient
    stops: Mapping[str, asyncio.Event]
    serving: Mapping[str, asyncio.Task[None]]
    lookups: int = 0

    async def respond(self, words: str = "hi", *, key: str | None = None, **fields: Any) -> httpx.Response:
        body = {"model": MODEL, "input": words, "max_output_tokens": 4, "ignore_eos": True, **fields}
        return await self.client.post("/v1/responses", json=body, headers=keyed(key))

    async def made(self, words: str = "hi", **fields: Any) -> tuple[str, str]:
        """A new response: its id and its worker."""
        answer = await self.respond(words, **fields)
        assert answer.status_code == 200, answer.text
        return answer.json()["id"], answer.headers["x-tidegate-worker"]

    async def find(self, path: str, *, method: str = "GET", key: str | None = None) -> httpx.Response:
        self.lookups += 1
        return await self.client.request(method, f"/v1/responses/{path}", headers=keyed(key))

    def calls(self) -> int:
        """Requests that the gateway has sent to workers."""
        stats = self.gateway.pool.stats()
        return stats.created + stats.reused

    async def stop(self, worker: str) -> None:
        self.stops[worker].set()
        await self.serving[worker]


def keyed(key: str | None) -> dict[str, str]:
    return {} if key is None else {"authorization": f"Bearer {KEYS[key]}"}


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def house(folder: Path, *, keys: bool = False, **conversation: Any) -> AsyncIterator[House]:
    async with houses(folder, 1, keys=keys, **conversation) as (one,):
        yield one


@asynccontextmanager
async def houses(
    folder: Path,
    count: int,
    *,
    keys: bool = False,
    shared: dict[str, Any] | None = None,
    data_plane: str = "auto",
    **conversation: Any,
) -> AsyncIterator[list[House]]:
    """Gateways before the same workers."""
    async with AsyncExitStack() as stack:
        stops = {name: asyncio.Event() for name in WORKERS}
        bound: dict[str, BoundWorker] = {}
        serving = {}
        for name in WORKERS:
            config = WorkerConfig(name=name, engine="h100-llama8b", model=MODEL, speed=50.0)
            ready: asyncio.Future[list[BoundWorker]] = asyncio.get_running_loop().create_future()
            task = asyncio.create_task(serve_workers([config], stop=stops[name], on_ready=ready.set_result))
            serving[name] = task
            stack.push_async_callback(_end, stops[name], task)
            (bound[name],) = await ready
        hashes = [{"name": name, "sha256": sha256(key.encode()).hexdigest()} for name, key in KEYS.items()]
        opened = []
        for number in range(count):
            log = "decisions.jsonl" if count == 1 else f"decisions-{number}.jsonl"
            settings = Settings(
                workers=[{"id": name, "url": worker.url} for name, worker in bound.items()],
                routing={"policy": "local", "conversation": conversation},
                auth={"keys": hashes if keys else []},
                telemetry={"decision_log": str(folder / log), "journal": str(folder / f"journal-{number}.jsonl")},
                shared=shared or {},
                server={"data_plane": data_plane},
            )
            gateway = await stack.enter_async_context(open_gateway(settings))
            url = await stack.enter_async_context(_served(gateway))
            client = await stack.enter_async_context(
                httpx.AsyncClient(base_url=url, timeout=PATIENCE_S, trust_env=False)
            )
            opened.append(House(gateway, client, stops, serving))
        yield opened


async def _end(stop: asyncio.Event, serving: asyncio.Task[None]) -> None:
    stop.set()
    await serving


@asynccontextmanager
async def _served(gateway: Gateway) -> AsyncIterator[str]:
    config = uvicorn.Config(
        gateway.asgi, http=gateway.http, ws="none", lifespan="off", access_log=False, log_config=None
    )
    server = _Server(config)
    listener = socket.create_server(("127.0.0.1", 0))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving


@pytest.mark.parametrize("rules", MODES, ids=lambda rules: "-".join(rules.values()))
async def test_responses_are_found_and_gone_on_from_where_they_are_kept(tmp_path: Path, rules: dict[str, Any]) -> None:
    async with house(tmp_path, **rules) as at:
        made = [await at.made(f"question {number}", stream=False) for number in range(20)]
        assert len({worker for _, worker in made}) > 1
        before = at.calls()
        for response_id, worker in made:
            found = await at.find(response_id)
            assert (found.status_code, found.json()["id"]) == (200, response_id)
            assert found.headers["x-tidegate-worker"] == worker
        assert at.calls() - before == len(made)
        # Chains, under a name that a hash would send anywhere.
        for number, (response_id, worker) in enumerate(made[:6]):
            last = response_id
            for step in range(3):
                answer = await at.respond(f"and {step}", previous_response_id=last, user=f"u{number}{step}")
                assert (answer.status_code, answer.json()["previous_response_id"]) == (200, last)
                assert answer.headers["x-tidegate-worker"] == worker
                last = answer.json()["id"]
        requests = 20 + at.lookups + 18
    records = list(read_decision_log(tmp_path / "decisions.jsonl"))
    assert len(records) == requests
    assert [record.outcome.response_id for record in records[:20]] == [response_id for response_id, _ in made]
    assert sum(record.decision is None for record in records) == at.lookups
    chained = [record.decision for record in records[-18:]]
    assert all(decision is not None and "is kept on" in decision.words for decision in chained)


async def test_streams_are_found_and_read_again(tmp_path: Path) -> None:
    async with house(tmp_path, mode="off") as at:
        answer = await at.respond(stream=True, background=True)
        response_id = answer.text.split('"id":"', 1)[1].split('"', 1)[0]
        before = at.calls()
        again = await at.find(f"{response_id}?stream=true&starting_after=0")
        assert at.calls() - before == 1
        assert again.headers["content-type"].startswith("text/event-stream")
        assert again.text
        assert answer.text.endswith(again.text)
        assert again.text != answer.text


async def test_what_an_engine_answers_passes_untouched(tmp_path: Path) -> None:
    async with house(tmp_path, mode="off") as at:
        response_id, worker = await at.made()
        before = at.calls()
        deleted = await at.find(response_id, method="DELETE")
        cancelled = await at.find(f"{response_id}/cancel", method="POST")
        items = await at.find(f"{response_id}/input_items")
        assert at.calls() - before == 3
        assert {answer.headers["x-tidegate-worker"] for answer in (deleted, cancelled, items)} == {worker}
        assert (deleted.status_code, deleted.json()) == (405, {"detail": "Method Not Allowed"})
        assert (cancelled.status_code, cancelled.json()["error"]["code"]) == (400, 400)
        assert (items.status_code, items.json()) == (404, {"detail": "Not Found"})
        assert (await at.client.get("/v1/responses")).status_code == 405
        kept_not, _ = await at.made(store=False)
        assert (await at.find(kept_not)).status_code == 404


async def test_unknown_ids_are_looked_for_everywhere(tmp_path: Path) -> None:
    async with house(tmp_path, mode="off") as at:
        before = at.calls()
        missing = await at.find("resp_nobodys")
        assert at.calls() - before == len(WORKERS)
        assert missing.status_code == 404
        assert missing.json()["error"]["code"] == "response_not_found"
        response_id, worker = await at.made()
        at.gateway.router.conversations.responses.capacity = 0  # as after a restart
        found = await at.find(response_id)
        assert (found.status_code, found.headers["x-tidegate-worker"]) == (200, worker)
        previous = await at.respond(previous_response_id="resp_nobodys")
        assert (previous.status_code, previous.json()["error"]["param"]) == (404, "response_id")


async def test_tenants_do_not_reach_each_others_responses(tmp_path: Path) -> None:
    async with house(tmp_path, keys=True, mode="off") as at:
        response_id, worker = await at.made(key="one")
        before = at.calls()
        for path, method in ((response_id, "GET"), (response_id, "DELETE"), (f"{response_id}/cancel", "POST")):
            hidden = await at.find(path, method=method, key="two")
            assert (hidden.status_code, hidden.json()["error"]["code"]) == (404, "response_not_found")
        assert (await at.find(response_id)).status_code == 401
        follows = await at.respond(previous_response_id=response_id, key="two")
        assert (follows.status_code, follows.json()["error"]["code"]) == (404, "previous_response_not_found")
        assert at.calls() == before
        assert (await at.find(response_id, key="one")).headers["x-tidegate-worker"] == worker
        assert (await at.respond(previous_response_id=response_id, key="one")).status_code == 200


async def test_a_worker_that_is_gone_is_told_of(tmp_path: Path) -> None:
    async with house(tmp_path, mode="off") as at:
        response_id, worker = await at.made()
        await at.stop(worker)
        found = await at.find(response_id)
        assert (found.status_code, found.json()["error"]["code"]) == (502, "bad_gateway")
        # Another worker's word would be that there is no such response.
        follows = await at.respond(previous_response_id=response_id)
        assert follows.status_code == 502
        unknown = await at.find("resp_nobodys")
        assert unknown.status_code == 502
        at.gateway.registry.remove(WorkerId(worker), force=True)
        for answer in (await at.find(response_id), await at.respond(previous_response_id=response_id)):
            assert answer.status_code == 404
        text = (await at.client.get("/metrics")).text
        total = sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith("tidegate_requests_total"))
        assert total == 1 + at.lookups + 2
