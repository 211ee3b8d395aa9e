"""Clients that come and leave, in front of workers that answer by a script; no gateway between them."""

import asyncio
from collections.abc import Iterator

import msgspec
import pytest

from gateway.core.types import Role
from loadtest.client.http import Collected, HttpClient, Origin
from loadtest.plane import cancel, scripted
from loadtest.plane.cancel import Client, body, draw, leave_all
from loadtest.plane.departures import fates
from loadtest.plane.proxies import Worker
from loadtest.plane.scripted import EVENTS, Seen, scripted_pair


def test_clients_are_of_all_kinds_and_the_same_for_a_seed() -> None:
    drawn = draw(40, seed=3)
    assert drawn == draw(40, seed=3)
    assert drawn != draw(40, seed=4)
    assert {(one.is_remote, one.streams) for one in drawn} == {(a, b) for a in (False, True) for b in (False, True)}
    assert len({one.mark for one in drawn}) == 40


def test_a_prompt_begins_with_its_mark_and_is_long_where_it_goes_remote() -> None:
    near, far = (msgspec.json.decode(body("c7", is_remote=is_remote, streams=False)) for is_remote in (False, True))
    assert near["messages"][0]["content"] == "c7 a"
    assert len(far["messages"][0]["content"]) > 400


def test_marks_are_found_in_an_answer() -> None:
    pieces = b"".join(scripted.stream_pieces("c7"))
    assert cancel._marks(pieces) == ["c7"] * EVENTS
    assert cancel._marks(scripted.whole("c8")) == ["c8"]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Workers that take their time only where nobody waits for it."""
    for name in ("PREFILL_S", "FIRST_EVENT_S", "EVENT_S", "WHOLE_S"):
        monkeypatch.setattr(scripted, name, 0.0)
    return None


async def ask(worker: Worker, *, streams: bool = False) -> Collected:
    client, answer = HttpClient(Origin.of(worker.url)), Collected()
    await client.send("POST", "/v1/chat/completions", answer, body=body("c1", is_remote=False, streams=streams))
    client.close()
    return answer


@pytest.mark.e2e
@pytest.mark.usefixtures("quick")
async def test_workers_answer_by_their_role() -> None:
    seen = Seen()
    async with scripted_pair(seen) as (prefill, decode):
        first = msgspec.json.decode((await ask(prefill)).body)
        second = msgspec.json.decode((await ask(decode)).body)
        stream = bytes((await ask(decode, streams=True)).body)
    assert first["kv_transfer_params"]["do_remote_prefill"] is True
    assert second["choices"][0]["message"]["content"] == "c1"
    assert stream.count(b'"content":"c1 "') == EVENTS
    assert stream.endswith(b"data: [DONE]\n\n")
    assert [call.role for call in seen.calls["c1"]] == [Role.PREFILL, Role.DECODE, Role.DECODE]
    assert all(call.answered_s is not None for call in seen.calls["c1"])


@pytest.mark.e2e
async def test_workers_answer_questions_about_them() -> None:
    async with scripted_pair(Seen()) as (prefill, _):
        client = HttpClient(Origin.of(prefill.url))
        status, page = await client.get("/v1/models")
        client.close()
    assert (status, msgspec.json.decode(page)["data"]) == (200, [])


@pytest.mark.e2e
async def test_a_client_that_leaves_is_seen_by_its_worker() -> None:
    seen = Seen()
    async with scripted_pair(seen) as (_, decode):
        client = HttpClient(Origin.of(decode.url))
        stays = Client(mark="c1", is_remote=False, streams=False, starts_s=0.0, stays_s=0.05)
        departures = await leave_all(client, [stays])
        for _ in range(1000):
            if seen.calls["c1"][0].lost_s is not None:
                break
            await asyncio.sleep(0.001)
    (fate,) = fates(departures, seen.calls)
    assert fate.legs == "decode"
    assert fate.abort_s is not None


@pytest.mark.e2e
@pytest.mark.usefixtures("quick")
async def test_a_client_whose_answer_is_whole_has_not_left() -> None:
    async with scripted_pair(Seen()) as (_, decode):
        client = HttpClient(Origin.of(decode.url))
        stays = Client(mark="c1", is_remote=False, streams=True, starts_s=0.0, stays_s=60.0)
        assert await leave_all(client, [stays]) == []
        client.close()


@pytest.mark.e2e
@pytest.mark.usefixtures("quick")
async def test_answers_are_right_or_another_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scripted_pair(Seen()) as (_, decode):
        client = HttpClient(Origin.of(decode.url))
        assert await cancel._answered_right(client, 4) == 4
        monkeypatch.setattr(
            scripted, "whole", lambda _: b"HTTP/1.1 200 OK\r\ncontent-length: 14\r\n\r\n" + b'"content":"a9"'
        )
        assert await cancel._answered_right(client, 4) == 2  # the streamed ones
        client.close()
