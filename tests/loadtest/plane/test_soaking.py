"""A soak in front of a scripted server: every request ends and is counted."""

import asyncio

import pytest

from loadtest.client.http import HttpClient, Origin
from loadtest.plane import soaking
from loadtest.plane.soaking import EmulatedWorker, Soak, Told, send
from loadtest.plane.traffic import Kind, Request
from tests.loadtest.client.scripted_server import Answer, ScriptedServer, Seen, whole

pytestmark = pytest.mark.e2e


async def well(_: Seen) -> Answer:
    yield whole(b"{}")


async def silence(_: Seen) -> Answer:
    await asyncio.sleep(3600)
    yield None


async def cut(_: Seen) -> Answer:
    yield None


async def by_kind(seen: Seen) -> Answer:
    """As the gateway answers."""
    if seen.headers["authorization"] == "Bearer sk-wrong":
        yield whole(b"{}", 401)
    elif seen.target == "/v1/nowhere" or b'"nobody"' in seen.body:
        yield whole(b"{}", 404)
    elif not seen.body.endswith(b"}"):
        yield whole(b"{}", 400)
    else:
        yield whole(b"{}")


def request(*, leaves_s: float | None = None) -> Request:
    return Request(kind=Kind.PLAIN, target="/v1/chat/completions", key="k", body=b"{}", leaves_s=leaves_s)


async def outcome(server: ScriptedServer, one: Request) -> str:
    client = HttpClient(Origin.of(server.url))
    found = await send(client, one)
    client.close()
    return found


async def test_a_request_ends_in_one_way(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ScriptedServer(well) as server:
        assert await outcome(server, request()) == "ok"
    async with ScriptedServer(by_kind) as server:
        assert await outcome(server, request()) == "ok"
    async with ScriptedServer(cut) as server:
        assert await outcome(server, request()) == "disconnected"
    monkeypatch.setattr(soaking, "TIMEOUT_S", 0.01)
    async with ScriptedServer(silence) as server:
        assert await outcome(server, request(leaves_s=0.0)) == "left"
        assert await outcome(server, request()) == "stuck"


async def soaked(server: ScriptedServer, control: ScriptedServer, requests: int) -> Told:
    workers = [EmulatedWorker(name=name, url=control.url) for name in ("a", "b")]
    sizes = iter(range(100))
    soak = Soak(server.url, workers, requests=requests, memory_bytes=lambda: next(sizes), seed=0)
    return await soak.run(lambda _: None)


async def test_all_are_sent_and_memory_is_looked_at_ten_times() -> None:
    async with ScriptedServer(by_kind) as server, ScriptedServer(well) as control:
        told = await soaked(server, control, 95)
    assert told.requests == 95
    assert told.memory_bytes == list(range(10))
    assert told.wrong == {}
    assert told.outcomes["ok"] > 50


async def test_mistakes_that_are_answered_otherwise_are_told() -> None:
    async with ScriptedServer(well) as server, ScriptedServer(well) as control:
        told = await soaked(server, control, 200)
    assert set(told.wrong) <= {f"{kind}: ok" for kind in soaking.STATUSES}
    assert told.wrong.total() > 0


async def test_workers_are_spoilt_in_turn_and_well_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soaking, "PAUSE_S", 0.0)
    monkeypatch.setattr(soaking, "FAULT_S", 0.0)
    async with ScriptedServer(by_kind) as server, ScriptedServer(well) as control:
        told = await soaked(server, control, 400)
    asked = [(seen.method, seen.target) for seen in control.seen]
    assert told.faults > 1
    assert asked[:4] == [
        (method, f"/emulator/faults?worker={name}") for name in ("a", "b") for method in ("PUT", "DELETE")
    ]
    assert asked[-2:] == [("DELETE", f"/emulator/faults?worker={name}") for name in ("a", "b")]
