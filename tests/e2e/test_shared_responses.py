"""Stored responses behind two gateways that share a Redis, each in turn, over real sockets."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.wire.journal import read_pairs
from loadtest.replay import replay
from tests.e2e.test_responses import MODES, House, houses
from tests.fleet.shared.redis_lab import LabServer, needs_server
from tests.fleet.shared.shared_waiting import PATIENCE_S, until

pytestmark = [pytest.mark.e2e, needs_server]


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabServer]:
    started = LabServer(tmp_path_factory.mktemp("redis"))
    started.start()
    yield started
    started.kill()


def shared_by(server: LabServer) -> dict[str, Any]:
    return {"url": server.url, "deadline_s": PATIENCE_S, "retry_s": 0.05, "flush_s": 0.01}


def stored(server: LabServer) -> dict[bytes, bytes]:
    with server.client() as client:
        found: Any = client.hgetall("{tidegate}:responses")
        return dict(found)


async def told(server: LabServer, count: int) -> None:
    """The server knows of so many responses."""
    await until(lambda: len(stored(server)) == count, f"{count} were told")


async def is_up(at: House) -> None:
    while "tidegate_shared_up 1.0" not in (await at.client.get("/metrics")).text:  # noqa: ASYNC110 (nothing tells)
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("rules", MODES, ids=lambda rules: "-".join(rules.values()))
async def test_with_several_keys_a_chain_goes_on_behind_either_gateway(
    tmp_path: Path, server: LabServer, rules: dict[str, Any]
) -> None:
    async with houses(tmp_path, 2, keys=True, shared=shared_by(server), **rules) as both:
        for at in both:
            await is_up(at)
        chains = [await both[0].made(f"question {number}", key="one") for number in range(6)]
        assert len({worker for _, worker in chains}) > 1
        count = len(chains)
        for at in list(both[::-1]) * 2:
            await told(server, count)
            for number, (last, worker) in enumerate(chains):
                answer = await at.respond("and", key="one", previous_response_id=last)
                assert (answer.status_code, answer.headers["x-tidegate-worker"]) == (200, worker), answer.text
                chains[number] = answer.json()["id"], worker
            count += len(chains)
        await told(server, count)
        for at in both:
            for last, worker in chains:
                found = await at.find(last, key="one")
                assert (found.status_code, found.headers["x-tidegate-worker"]) == (200, worker)
    for number in range(2):
        journal = tmp_path / f"journal-{number}.jsonl"
        assert replay(journal).mismatches == []
        with journal.open("rb") as lines:
            assert "ResponseTold" in {type(call.payload).__name__ for call, _ in read_pairs(lines)}


@pytest.mark.parametrize("plane", ["auto", "asgi"])
async def test_anothers_response_is_hidden_behind_either_gateway(tmp_path: Path, server: LabServer, plane: str) -> None:
    options: dict[str, Any] = {"keys": True, "shared": shared_by(server), "data_plane": plane, "mode": "off"}
    async with houses(tmp_path, 2, **options) as (one, other):
        for at in (one, other):
            await is_up(at)
        response_id, worker = await one.made(key="one")
        await told(server, 1)
        before = other.calls()
        for path, method in ((response_id, "GET"), (response_id, "DELETE"), (f"{response_id}/cancel", "POST")):
            hidden = await other.find(path, method=method, key="two")
            assert (hidden.status_code, hidden.json()["error"]["code"]) == (404, "response_not_found")
        follows = await other.respond(previous_response_id=response_id, key="two")
        assert (follows.status_code, follows.json()["error"]["code"]) == (404, "previous_response_not_found")
        assert other.calls() == before
        goes_on = await other.respond(previous_response_id=response_id, key="one")
        assert (goes_on.status_code, goes_on.headers["x-tidegate-worker"]) == (200, worker)
        await told(server, 2)
        for path, method, status in ((f"{response_id}/cancel", "POST", 400), (response_id, "DELETE", 405)):
            answer = await other.find(path, method=method, key="one")
            assert (answer.status_code, answer.headers["x-tidegate-worker"]) == (status, worker)
        assert set(stored(server).values()) == {f"0 0 - {worker}".encode()}


async def test_one_key_alone_asks_the_one_worker_too(tmp_path: Path, server: LabServer) -> None:
    async with houses(tmp_path, 2, shared=shared_by(server), mode="off") as (one, other):
        for at in (one, other):
            await is_up(at)
        made = [await one.made(f"question {number}") for number in range(4)]
        await told(server, len(made))
        before = other.calls()
        for response_id, worker in made:
            assert (await other.find(response_id)).headers["x-tidegate-worker"] == worker
        assert other.calls() - before == len(made)


async def test_without_redis_ones_own_are_found_and_no_others(tmp_path: Path, server: LabServer) -> None:
    async with houses(tmp_path, 2, keys=True, shared=shared_by(server), mode="off") as (one, other):
        for at in (one, other):
            await is_up(at)
        server.kill()
        response_id, worker = await one.made(key="one")
        for at, status in ((one, 200), (other, 404)):
            assert (await at.find(response_id, key="one")).status_code == status
        assert (await other.respond(previous_response_id=response_id, key="one")).status_code == 404
        assert (await one.respond(previous_response_id=response_id, key="one")).status_code == 200
        server.start()
        for at in (one, other):
            await is_up(at)
        await told(server, 2)
        assert (await other.find(response_id, key="one")).headers["x-tidegate-worker"] == worker
