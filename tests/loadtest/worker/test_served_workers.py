"""The worker process as its parent sees it: real sockets, speed 1000."""

import asyncio
import json
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

import httpx
import pytest

from loadtest.worker.pd import HttpKvPeers, RemoteKv
from tests.loadtest.worker.worker_lab import CHAT, chat, samples, sse_data

pytestmark = pytest.mark.e2e

ASK = {"do_remote_decode": True, "do_remote_prefill": False}
PATIENCE_S = 20.0


def config(name: str, role: str) -> dict[str, Any]:
    return {"name": name, "role": role, "engine": "h100-llama8b", "model": "tiny-llama", "speed": 1000}


class Served:
    """A child process and a client of its workers."""

    def __init__(self, process: asyncio.subprocess.Process, workers: list[dict[str, Any]]) -> None:
        self.process = process
        self.workers = workers
        self.url = {worker["name"]: worker["url"] for worker in workers}

    async def end(self) -> int:
        """Close its standard input and wait."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        async with asyncio.timeout(PATIENCE_S):
            return await self.process.wait()


@asynccontextmanager
async def served(*configs: dict[str, Any]) -> AsyncIterator[Served]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "loadtest.worker", "--config-json", json.dumps(configs)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE_S):
            line = await process.stdout.readline()
        yield Served(process, json.loads(line)["workers"])
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def test_two_workers_hand_kv_over_and_end_with_their_parent() -> None:
    async with (
        served(config("p", "prefill"), config("d", "decode")) as child,
        httpx.AsyncClient(timeout=PATIENCE_S) as client,
    ):
        assert [(worker["name"], worker["role"]) for worker in child.workers] == [
            ("p", "prefill"),
            ("d", "decode"),
        ]
        body = chat("x" * 4000, max_tokens=50, ignore_eos=True)
        first = await client.post(child.url["p"] + CHAT, json=body | {"max_tokens": 1, "kv_transfer_params": ASK})
        params = first.json()["kv_transfer_params"]
        assert params["remote_port"] == child.workers[0]["port"]
        options = {"stream": True, "stream_options": {"include_usage": True}}
        second = await client.post(child.url["d"] + CHAT, json=body | options | {"kv_transfer_params": params})
        *events, done = sse_data(second.content)
        assert done == "[DONE]"
        assert json.loads(events[-1])["usage"]["completion_tokens"] == 50
        found = samples((await client.get(child.url["d"] + "/metrics")).text)
        assert found["vllm:external_prefix_cache_hits_total"] == 1006
        assert found["vllm:nixl_num_failed_transfers_total"] == 0
        again = await client.post(child.url["d"] + CHAT, json=body | {"kv_transfer_params": params})
        assert again.status_code == 200
        found = samples((await client.get(child.url["d"] + "/metrics")).text)
        assert found["vllm:nixl_num_failed_transfers_total"] == 1
        await kv_is_free(client, child.url["p"])
        assert await child.end() == 0


async def test_a_worker_that_refuses_comes_back_on_its_port() -> None:
    async with (
        served(config("a", "both"), config("b", "both")) as child,
        httpx.AsyncClient(timeout=PATIENCE_S) as client,
    ):
        assert (await client.get(child.url["a"] + "/health")).status_code == 200
        faults = child.url["b"] + "/emulator/faults?worker=a"
        assert (await client.put(faults, json={"kind": "refuse"})).status_code == 200
        with pytest.raises(httpx.ConnectError):
            await client.get(child.url["a"] + "/health")
        assert (await client.delete(faults)).status_code == 200
        assert (await client.get(child.url["a"] + "/health")).status_code == 200
        assert await child.end() == 0


async def kv_is_free(client: httpx.AsyncClient, url: str) -> None:
    """The release is sent without waiting for it, so it may come a little after the answer."""
    async with asyncio.timeout(PATIENCE_S):
        while samples((await client.get(url + "/metrics")).text)["vllm:kv_cache_usage_perc"]:
            pass


async def test_client_that_closes_its_connection_frees_the_kv() -> None:
    async with served(config("w", "both") | {"speed": 1}) as child, httpx.AsyncClient() as client:
        body = chat(max_tokens=100_000, ignore_eos=True, stream=True)
        async with (
            client.stream("POST", child.url["w"] + CHAT, json=body) as reply,
            aclosing(reply.aiter_bytes()) as chunks,
        ):
            await anext(chunks)
            found = samples((await client.get(child.url["w"] + "/metrics")).text)
            assert found["vllm:num_requests_running"] == 1
        await kv_is_free(client, child.url["w"])
        assert await child.end() == 0


async def test_answer_in_flight_ends_with_an_error_when_the_parent_goes() -> None:
    async with (
        served(config("w", "both") | {"speed": 1}) as child,
        httpx.AsyncClient(timeout=PATIENCE_S) as client,
    ):
        body = chat(max_tokens=100_000, ignore_eos=True, stream=True)
        async with (
            client.stream("POST", child.url["w"] + CHAT, json=body) as reply,
            aclosing(reply.aiter_bytes()) as chunks,
        ):
            received = await anext(chunks)
            ending = asyncio.create_task(child.end())
            received += b"".join([chunk async for chunk in chunks])
        *_, error, done = sse_data(received)
        assert json.loads(error)["error"]["code"] == 500
        assert done == "[DONE]"
        assert await ending == 0


async def test_address_that_is_taken_is_told_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        wanted = config("w", "both") | {"port": taken.getsockname()[1]}
        returncode, errors = await failing([wanted])
    assert returncode == 1
    assert len(errors.splitlines()) == 1
    assert b"Address already in use" in errors


async def test_holder_that_is_not_there_or_talks_nonsense_is_a_failed_claim() -> None:
    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"220 smtp ready\r\n")
        writer.close()

    async with await asyncio.start_server(babble, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        remote = RemoteKv(host="127.0.0.1", port=port, engine_id="e", request_id="r")
        assert await HttpKvPeers().claim(remote) is None
    peers = HttpKvPeers()
    assert await peers.claim(remote) is None
    peers.release(remote)
    await peers.drain()


async def test_unusable_configuration_is_told_with_the_usage() -> None:
    returncode, errors = await failing([{"name": "x"}])
    assert returncode == 2
    assert b"missing required field" in errors


async def failing(configs: list[dict[str, Any]]) -> tuple[int | None, bytes]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "loadtest.worker", "--config-json", json.dumps(configs)),
        stdin=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    _, errors = await process.communicate()
    return process.returncode, errors
