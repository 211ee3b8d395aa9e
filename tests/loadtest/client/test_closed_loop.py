"""Sessions against a server: the next turn waits for the answer before it."""

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from gateway.core.types import Role, SloTarget
from loadtest.client.measure import measure, write_measurement
from loadtest.client.options import LoadOptions
from loadtest.client.runner import Progress, run_load
from loadtest.report.conversations import ConversationRecord, conversations, read_conversations
from loadtest.simulator.host import Simulation
from loadtest.simulator.records import to_records
from loadtest.traces.sessions import Session, Turn
from loadtest.traces.synthetic import uniform_mix
from loadtest.traces.workload import Workload
from tests.loadtest.client.scripted_server import Answer, ScriptedServer, Seen, completion, replay, whole
from tests.loadtest.simulator.test_dispatch import REMOTE, Fleet

pytestmark = pytest.mark.e2e

THINK_S = 0.05


def turn(tokens: int, *, is_visible: bool = True, agents: tuple[Session, ...] = ()) -> Turn:
    ids = tuple(range(tokens // 4))
    return Turn(
        input_tokens=tokens, output_tokens=3, hash_ids=ids, think_s=THINK_S, is_visible=is_visible, agents=agents
    )


def session(name: str, *turns: Turn, start_s: float = 0.0) -> Session:
    return Session(id=name, start_s=start_s, turns=turns, block_tokens=4)


TALK = session("s", turn(8, is_visible=False), turn(16), turn(24))


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer(completion) as server:
        yield server


def options(server: ScriptedServer, *, speed: float = 1.0) -> LoadOptions:
    return LoadOptions(url=server.url, model="m", run_id="lt", session_header="x-session-id", speed=speed)


@pytest.mark.parametrize("speed", [1.0, 5.0])
async def test_the_next_turn_is_due_when_its_tools_are_done(server: ScriptedServer, speed: float) -> None:
    records = await run_load(options(server, speed=speed), Workload(sessions=(TALK,)))
    assert [record.index for record in records] == [0, 1, 2]
    assert [record.input_tokens for record in records] == [8, 16, 24]
    for before, after in pairwise(records):
        assert before.e2e_s is not None
        assert after.sent_s is not None
        answered_s = before.scheduled_s + before.e2e_s
        assert answered_s + THINK_S / speed <= after.scheduled_s <= answered_s + THINK_S / speed + 0.5
        assert after.sent_s >= after.scheduled_s  # and not at its nominal time


async def test_agents_run_together_and_their_caller_waits_for_all(server: ScriptedServer) -> None:
    agents = (session("s/1", turn(8)), session("s/2", turn(12), turn(16)))
    whole_session = session("s", turn(8, agents=agents), turn(20))
    workload = Workload(sessions=(whole_session,), requests=tuple(uniform_mix(3, isl_tokens=40, osl_tokens=2,
                                                                           rate_rps=100.0, seed=1)))  # fmt: skip
    records = {record.index: record for record in await run_load(options(server), workload)}
    at_s = {(one.session, one.turn): records[one.index].scheduled_s for one in workload.flattened()}
    assert len(records) == 3 + 5
    assert at_s["s/1", 0] == pytest.approx(at_s["s/2", 0], abs=1e-3)
    assert at_s["s/2", 0] < at_s["s/2", 1] < at_s["s", 1]
    assert sorted({seen.headers.get("x-session-id", "-") for seen in server.seen}) == ["-", "s", "s/1", "s/2"]


async def test_a_session_goes_on_after_a_failure(server: ScriptedServer) -> None:
    server.script = lambda seen: (
        replay((whole(b"{}", 503),)) if seen.headers["x-request-id"] == "lt-1" else completion(seen)
    )
    told: list[Progress] = []
    records = await run_load(options(server), Workload(sessions=(TALK,)), on_progress=told.append)
    assert [record.ok for record in records] == [True, False, True]
    assert told[-1] == Progress(total=3, sent=3, done=3, failed=1)


async def test_a_run_that_is_stopped_sends_no_further_turn(server: ScriptedServer) -> None:
    stop = asyncio.Event()

    async def hanging(seen: Seen) -> Answer:
        del seen
        stop.set()
        await asyncio.Event().wait()
        yield b""

    server.script = lambda seen: hanging(seen) if seen.headers["x-request-id"] == "lt-1" else completion(seen)
    records = await run_load(options(server), Workload(sessions=(TALK,)), stop=stop)
    assert [record.error_kind for record in records] == [None, "cancelled"]


def without_times(found: list[ConversationRecord]) -> list[ConversationRecord]:
    times = {name: None for name in ConversationRecord.__struct_fields__ if name.endswith("_s")}
    return sorted((msgspec.structs.replace(one, **times) for one in found), key=lambda one: one.conversation)


async def test_a_live_run_and_a_simulated_one_give_the_same_conversations(server: ScriptedServer) -> None:
    agent = session("b/1", turn(8), turn(20))
    other = session("b", turn(12, is_visible=False, agents=(agent,)), turn(40), start_s=0.02)
    workload = Workload(sessions=(TALK, other))
    fleet = Fleet(REMOTE, {"prefill-0": Role.PREFILL, "decode-0": Role.DECODE})
    run = Simulation(fleet.engines, fleet.dispatcher, workload.driver()).run()
    simulated = conversations(workload.flattened(), to_records(run))
    server.script = lambda seen: completion(seen, "x-tidegate-path: remote", "x-tidegate-worker: decode-0")
    live = conversations(workload.flattened(), await run_load(options(server), workload))
    assert without_times(live) == without_times(simulated)
    assert [(one.turns_done, one.transfers, one.ok) for one in live] == [(3, 3, True), (4, 4, True)]
    for found in (live, simulated):
        assert all(one.ttfet_s is not None and one.e2e_s is not None for one in found)
        assert all(THINK_S < (one.ttfet_s or 0.0) < (one.e2e_s or 0.0) for one in found)


async def test_a_measurement_has_its_conversations_in_engine_time(server: ScriptedServer, tmp_path: Path) -> None:
    slo = SloTarget(name="run", ttft_s=3600.0, tpot_s=None)
    found = await measure(options(server, speed=10.0), Workload(sessions=(TALK,)), slo)
    (one,) = found.conversations
    assert (one.turns_done, found.summary.asked) == (3, 3)
    assert one.think_s >= 2 * THINK_S
    directory = tmp_path / "out"
    write_measurement(directory, found)
    assert read_conversations(directory / "conversations.jsonl") == list(found.conversations)
