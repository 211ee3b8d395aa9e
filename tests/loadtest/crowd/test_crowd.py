"""A crowd on loopback: every stream is counted by what became of it."""

import asyncio
import json
from dataclasses import replace

import pytest

from loadtest.client.options import LoadOptions
from loadtest.crowd import crowd
from loadtest.crowd.crowd import CrowdOptions, CrowdResult, run_crowd
from tests.loadtest.client.scripted_server import Answer, ScriptedServer, Seen, completion, whole

pytestmark = pytest.mark.e2e

STREAMS = 4


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowd, "START_WITHIN_S", 0.0)


async def refusal(_: Seen) -> Answer:
    yield whole(b"{}", 503)


async def silence(_: Seen) -> Answer:
    await asyncio.sleep(3600)
    yield None


def one_token_less(request: Seen) -> Answer:
    asked = request.json | {"max_tokens": request.json["max_tokens"] - 1}
    return completion(replace(request, body=json.dumps(asked).encode()))


async def run(server: ScriptedServer, *, leave_ratio: float = 0.0) -> CrowdResult:
    options = CrowdOptions(
        load=LoadOptions(url=server.url, model="m", run_id="crowd"),
        streams=STREAMS,
        duration_s=0.1,
        leave_ratio=leave_ratio,
        leave_within_s=0.01,
        input_tokens=8,
        output_tokens=3,
    )
    return await run_crowd(options)


async def test_places_begin_anew_until_time_is_up() -> None:
    async with ScriptedServer(completion) as server:
        result = await run(server)
    assert result.outcomes == {"ok": result.started}
    assert 0 < result.peak_concurrent <= min(STREAMS, result.started)
    assert len(server.seen) == result.started


async def test_streams_with_another_number_of_tokens_are_counted() -> None:
    async with ScriptedServer(one_token_less) as server:
        result = await run(server)
    assert result.short == result.started


async def test_clients_that_leave_are_no_failures() -> None:
    async with ScriptedServer(silence) as server:
        result = await run(server, leave_ratio=1.0)
    assert result.outcomes == {"left": result.started}


async def test_a_place_rests_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowd, "FAILED_PAUSE_S", 0.2)
    async with ScriptedServer(refusal) as server:
        result = await run(server)
    assert result.outcomes == {"http_503": result.started}
    assert result.started <= STREAMS
