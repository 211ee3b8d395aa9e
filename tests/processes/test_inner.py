"""What a process answers to its parent, and by it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from gateway.app import Gateway, open_gateway
from gateway.commands.processes.changes import Added, Drained, Removed, Routed
from gateway.commands.processes.hub import Beginning, Joins
from gateway.commands.processes.identity import INNER
from gateway.commands.processes.inner import Inner, MetricsOfAll, begin_as, join
from gateway.core.types import WorkerId
from gateway.settings import Settings, SettingsError
from gateway.telemetry.merging import unpacked
from tests.api.asgi_client import idle

W0 = {"id": "w0", "url": "http://127.0.0.1:9", "models": ["llama"]}
W1 = {"id": "w1", "url": "http://127.0.0.1:9", "models": ["llama"]}
AS_PARENT = {INNER: "1"}


@asynccontextmanager
async def process() -> AsyncIterator[tuple[Gateway, Inner, httpx.AsyncClient, dict[str, Any]]]:
    """A gateway, its inner application, a client of that, and the settings that a reload finds."""
    tree: dict[str, Any] = {"workers": [W0]}

    def reread() -> Settings:
        if tree.get("broken"):
            raise SettingsError("broken")
        return Settings(**tree)

    well = httpx.MockTransport(lambda request: httpx.Response(200 if request.url.path == "/health" else 404))
    async with open_gateway(Settings(**tree), reread=reread, transport=well) as gateway:
        inner = Inner(gateway)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(inner), base_url="http://localhost:8081") as client:
            yield gateway, inner, client, tree


async def test_metrics_are_shown_to_the_parent_at_any_time() -> None:
    async with process() as (_, _, client, _):
        families = unpacked((await client.get("/metrics", headers=AS_PARENT)).content)
        assert "tidegate_requests" in {family.name for family in families}


async def test_changes_wait_until_it_is_as_its_siblings() -> None:
    async with process() as (_, inner, client, _):
        asked = asyncio.create_task(client.get("/workers"))
        await idle()
        assert not asked.done()
        inner.ready.set()
        assert [worker["id"] for worker in (await asked).json()] == ["w0"]


async def test_the_parent_lets_it_reload_and_hears_what_has_changed() -> None:
    async with process() as (_, inner, client, tree):
        inner.ready.set()
        tree["workers"] = [W0, W1]
        reloaded = (await client.post("/reload", headers=AS_PARENT)).json()
        assert reloaded["workers_put"] == ["w1"]
        tree["broken"] = True
        assert (await client.post("/reload", headers=AS_PARENT)).status_code == 400
        assert (await client.post("/follow", headers=AS_PARENT)).status_code == 200


async def test_nobody_else_has_what_is_the_parents() -> None:
    async with process() as (_, inner, client, _):
        inner.ready.set()
        for method, path in (("GET", "/metrics"), ("POST", "/reload"), ("POST", "/follow")):
            assert (await client.request(method, path)).status_code == 404


async def test_it_begins_as_its_siblings_are() -> None:
    async with process() as (gateway, _, _, tree):
        tree["aliases"] = {"gpt": "llama"}
        routing = {"policy": "remote", "replicas": 2}
        changes = [Removed("w0"), Added(W1), Drained("w1"), Routed(routing), Drained("none"), Removed("none")]
        await begin_as(gateway, Beginning(changes=changes, must_reload=True))
        assert list(gateway.registry.members) == ["w1"]
        assert gateway.registry.is_draining(WorkerId("w1"))
        assert gateway.reloader.policy.path.name == "remote"
        assert dict(gateway.live.aliases) == {"gpt": "llama"}


async def test_what_cannot_be_done_any_more_keeps_nothing_else_from_being_done() -> None:
    async with process() as (gateway, _, _, tree):
        tree["broken"] = True
        changes = [Added(W0), Added({"id": "!"}), Routed({"policy": "magic"}), Added(W1)]
        await begin_as(gateway, Beginning(changes=changes, must_reload=True))
        assert list(gateway.registry.members) == ["w0", "w1"]


# -- by the parent ---------------------------------------------------------------------------------------------------


def parent(answer: httpx.Response | None) -> httpx.AsyncClient:
    """A parent that answers so, or not at all; it sends back what was accepted."""

    def answered(request: httpx.Request) -> httpx.Response:
        if answer is None:
            raise httpx.ConnectError("gone")
        answer.headers["content-type"] = request.headers["accept"]
        return answer

    return httpx.AsyncClient(transport=httpx.MockTransport(answered), base_url="http://gateway")


async def rest(scope: Any, receive: Any, send: Any) -> None:
    """The gateway behind."""
    await send({"type": "http.response.start", "status": 418, "headers": []})
    await send({"type": "http.response.body", "body": b""})


@asynccontextmanager
async def client_of(answer: httpx.Response | None) -> AsyncIterator[httpx.AsyncClient]:
    async with parent(answer) as asked:
        transport = httpx.ASGITransport(MetricsOfAll(rest, asked))
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            yield client


async def test_a_scrape_is_answered_by_the_parent_and_nothing_else_is() -> None:
    async with client_of(httpx.Response(200, content=b"sums")) as client:
        answer = await client.get("/metrics", headers={"accept": "text/special"})
        assert (answer.status_code, answer.content, answer.headers["content-type"]) == (200, b"sums", "text/special")
        assert (await client.post("/metrics")).status_code == 418
        assert (await client.get("/version")).status_code == 418


async def test_without_the_parent_there_are_no_sums_to_be_misread() -> None:
    for answer in (None, httpx.Response(500)):
        async with client_of(answer) as client:
            assert (await client.get("/metrics")).status_code == 503


async def test_a_process_says_that_it_is_there_and_hears_how_to_begin() -> None:
    beginning = Beginning(changes=[Added(W1), Routed({})], must_reload=True)
    asked: list[httpx.Request] = []

    def answered(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(200, content=msgspec.json.encode(beginning))

    async with httpx.AsyncClient(transport=httpx.MockTransport(answered), base_url="http://gateway") as client:
        assert await join(client, 1, Path("/run/1")) == beginning
    assert msgspec.json.decode(asked[0].content, type=Joins) == Joins(1, "/run/1")


async def test_a_parent_that_is_gone_is_an_error_of_the_system() -> None:
    async with parent(None) as client:
        with pytest.raises(OSError, match="parent"):
            await join(client, 1, Path("/run/1"))
