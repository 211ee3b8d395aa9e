"""A balancer and its sessions on loopback: in turn, past those that refuse, and never the same request twice."""

import socket
from dataclasses import replace

import msgspec
import pytest

from loadtest.replicas import sessions
from loadtest.replicas.balancer import Balancer, NobodyThere
from loadtest.replicas.plan import Plan
from loadtest.replicas.sessions import Crowd
from tests.loadtest.client.scripted_server import (
    Answer,
    ScriptedServer,
    Seen,
    chunk,
    completion,
    content,
    replay,
    stream_head,
    whole,
)

pytestmark = pytest.mark.e2e

BODY = msgspec.json.encode({"max_tokens": 2, "messages": [{"role": "user", "content": "hello"}]})
HOME = "x-tidegate-worker: decode-0"
PLAN = Plan(sessions=1, turns=(3, 3), think_s=(0.0, 0.0), ramp_s=0.0, output_tokens=(2, 2))


def named(worker: str = "decode-0") -> ScriptedServer:
    return ScriptedServer(lambda seen: completion(seen, f"x-tidegate-worker: {worker}"))


def nobody() -> str:
    """A URL that refuses connections."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


def cut(_: Seen) -> Answer:
    return replay((stream_head(HOME), chunk(content("half ")), None))


async def refusal(_: Seen) -> Answer:
    yield whole(b'{"error": {"message": "too much"}}', 503)


async def play(balancer: Balancer, plan: Plan = PLAN) -> Crowd:
    """One session from its beginning to its end."""
    crowd = Crowd(balancer, plan, model="m")
    crowd.end()
    session = sessions._Session(0, plan, "m")
    await crowd._play(session)
    balancer.close()
    return crowd


async def test_requests_go_out_in_turn() -> None:
    async with named() as one, named("decode-1") as other:
        balancer = Balancer({"a": one.url, "b": other.url})
        found = [await balancer.send(number, {}, BODY) for number in range(4)]
        balancer.close()
    assert [(each.replica, each.worker) for each in found] == [("a", "decode-0"), ("b", "decode-1")] * 2
    assert {(each.error, each.text) for each in found} == {(None, "cat cat ")}


async def test_one_that_refuses_is_passed_over_until_it_is_taken_in() -> None:
    async with named() as there:
        balancer = Balancer({"a": nobody(), "b": there.url})
        found = [await balancer.send(number, {}, BODY) for number in (0, 0)]
        balancer.take_in("a")
        found.append(await balancer.send(0, {}, BODY))
        balancer.close()
    assert [each.replica for each in found] == ["b"] * 3
    assert len(there.seen) == 3


async def test_nobody_there_is_told() -> None:
    with pytest.raises(NobodyThere):
        await Balancer({"a": nobody()}).send(0, {}, BODY)


async def test_a_stream_that_broke_off_is_sent_to_nobody_else() -> None:
    async with ScriptedServer(cut) as one, named() as other:
        balancer = Balancer({"a": one.url, "b": other.url})
        found = await balancer.send(0, {}, BODY)
        balancer.close()
    assert (found.replica, found.worker) == ("a", "decode-0")
    assert found.error is not None
    assert found.error.startswith("disconnected")
    assert other.seen == []


async def test_an_error_is_told_in_the_gateways_words() -> None:
    async with ScriptedServer(refusal) as one:
        balancer = Balancer({"a": one.url})
        found = await balancer.send(0, {}, BODY)
        balancer.close()
    assert found.error == "http_503: too much"


async def test_a_session_resends_its_history_under_its_name_by_way_of_every_replica() -> None:
    async with named() as one, named() as other:
        crowd = await play(Balancer({"a": one.url, "b": other.url}))
    seen = sorted((*one.seen, *other.seen), key=lambda each: len(each.body))
    assert {len(one.seen), len(other.seen)} == {1, 2}
    assert len({each.headers["x-session-id"] for each in seen}) == 1
    histories = [each.json["messages"] for each in seen]
    assert [len(each) for each in histories] == [1, 3, 5]
    assert histories[2][:3] == histories[1]
    assert histories[2][3] == {"role": "assistant", "content": "cat cat "}
    assert [each.pinned_to for each in crowd.tried] == [None, "decode-0", "decode-0"]
    (played,) = crowd.played
    assert (played.turns, played.is_whole) == (3, True)


async def test_a_turn_that_broke_off_is_tried_again_at_the_next_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "RETRY_PAUSE_S", 0.0)
    async with ScriptedServer(cut) as one, named() as other:
        crowd = await play(Balancer({"b": other.url, "a": one.url}), replace(PLAN, turns=(1, 1)))
    assert [(each.replica, each.turn, each.error is None) for each in crowd.tried] == [("a", 1, False), ("b", 1, True)]
    assert crowd.played[0].is_whole


async def test_a_session_that_fails_too_often_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "RETRY_PAUSE_S", 0.0)
    async with ScriptedServer(refusal) as one:
        crowd = await play(Balancer({"a": one.url}))
    assert len(crowd.tried) == sessions.TRIES
    (played,) = crowd.played
    assert (played.turns, played.is_whole) == (0, False)


async def test_sessions_follow_each_other_until_the_end_is_called() -> None:
    crowd: Crowd

    async def until_the_fourth(seen: Seen) -> Answer:
        if len(crowd.played) >= 3:
            crowd.end()
        async for piece in completion(seen, HOME):
            yield piece

    async with ScriptedServer(until_the_fourth) as one:
        balancer = Balancer({"a": one.url})
        crowd = Crowd(balancer, replace(PLAN, sessions=2), model="m")
        await crowd.run()
        balancer.close()
    assert crowd.peak == 2
    assert len(crowd.played) >= 4
    assert all(each.is_whole for each in crowd.played)
