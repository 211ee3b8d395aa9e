"""A client that leaves: the worker is told, nothing stays behind, and nobody is blamed."""

import asyncio
from typing import Any

import pytest

from tests.faults.fault_rig import CHAT, LONG_S, Ending, Gate, Rig, body_for, ids_preferring, until

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

BOTH_FORMS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
POLICIES = pytest.mark.parametrize("policy", ["local", "remote"])
ENDLESS: dict[str, Any] = {"max_tokens": 50_000}
WAITING: dict[str, dict[str, Any]] = {
    "hang": {"kind": "hang"},
    "slow": {"kind": "slow", "delay_s": LONG_S},
    "drip": {"kind": "drip", "delay_s": LONG_S},
}


async def leave_before_a_byte(gate: Gate, worker: str, body: dict[str, Any]) -> None:
    """Ask, and leave once the worker has the call."""
    asking = asyncio.create_task(gate.ask(CHAT, body))

    async def has_the_call() -> bool:
        return await gate.fleet.fired(worker) == 1

    await until(has_the_call, what=f"{worker} has the call")
    assert not asking.done()
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


async def leave_after_bytes(gate: Gate, body: dict[str, Any], count: int) -> bytes:
    """Ask, and leave after so many bytes of the answer's body."""
    headers = {"x-request-id": next(ids_preferring("p0", "d0"))}
    received = b""
    async with gate.client.stream("POST", gate.url + CHAT, json=body, headers=headers) as response:
        assert response.status_code == 200
        async for piece in response.aiter_raw():
            received += piece
            if len(received) >= count:
                break
    return received


async def is_cancelled(gate: Gate, policy: str, *, holding: frozenset[str] = frozenset()) -> None:
    await until(lambda: gate.gateway.decisions.written == 1, what="the request has ended")
    stats = gate.gateway.pool.stats()
    assert stats.open == stats.idle, "a worker's connection is still in use"
    prefill = "p0" if policy == "remote" else None
    await gate.ended(
        Ending(outcome="cancelled", status=499, path=policy, prefill=prefill, worker="d0", holding=holding)
    )


@BOTH_FORMS
@POLICIES
@pytest.mark.parametrize("name", ["hang", "slow"])
async def test_before_the_first_byte_of_the_decode_worker(rig: Rig, name: str, policy: str, stream: bool) -> None:
    gate = await rig.gate(policy)
    await rig.fleet.fault("d0", **WAITING[name])
    await leave_before_a_byte(gate, "d0", body_for(CHAT, stream=stream))
    # What was prefilled waits for a decode worker that never came to fetch it.
    await is_cancelled(gate, policy, holding=frozenset({"p0"}) if policy == "remote" else frozenset())


@BOTH_FORMS
@pytest.mark.parametrize("name", WAITING)
async def test_during_the_prefill_leg(rig: Rig, name: str, stream: bool) -> None:
    gate = await rig.gate("remote")
    await rig.fleet.fault("p0", **WAITING[name])
    await leave_before_a_byte(gate, "p0", body_for(CHAT, stream=stream))
    # A drip begins when the prefill is over, so its KV is there and nobody knows where.
    await is_cancelled(gate, "remote", holding=frozenset({"p0"}) if name == "drip" else frozenset())
    assert not await rig.fleet.ended("d0")


@POLICIES
async def test_between_the_head_and_the_first_byte_of_a_drip(rig: Rig, policy: str) -> None:
    gate = await rig.gate(policy)
    await rig.fleet.fault("d0", "drip", delay_s=LONG_S)
    headers = {"x-request-id": next(ids_preferring("p0", "d0"))}
    body = body_for(CHAT, stream=True, **ENDLESS)
    async with gate.client.stream("POST", gate.url + CHAT, json=body, headers=headers) as response:
        assert response.status_code == 200
    await is_cancelled(gate, policy)


@POLICIES
async def test_during_a_drip(rig: Rig, policy: str) -> None:
    gate = await rig.gate(policy)
    await rig.fleet.fault("d0", "drip", delay_s=0.002)
    asks: dict[str, Any] = {"stream_options": {"include_usage": True}}
    await leave_after_bytes(gate, body_for(CHAT, stream=True, **asks, **ENDLESS), 20)
    await is_cancelled(gate, policy)
    assert await rig.fleet.ended("d0") == {"abort": 1}


@POLICIES
async def test_after_the_first_bytes_of_a_slow_stream(rig: Rig, policy: str) -> None:
    gate = await rig.gate(policy)
    await rig.fleet.fault("d0", "slow", delay_s=0.1)
    received = await leave_after_bytes(gate, body_for(CHAT, stream=True, **ENDLESS), 600)
    assert received.startswith(b"data: {")
    await is_cancelled(gate, policy)
    assert await rig.fleet.ended("d0") == {"abort": 1}


@POLICIES
async def test_before_a_whole_answer_is_made(rig: Rig, policy: str) -> None:
    gate = await rig.gate(policy)
    await rig.fleet.fault("d0", "slow", delay_s=0.01)
    asking = asyncio.create_task(gate.ask(CHAT, body_for(CHAT, **ENDLESS)))

    async def runs() -> bool:
        return (await rig.fleet.samples("d0")).sum("vllm:num_requests_running") == 1

    await until(runs, what="d0 works on it")
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await is_cancelled(gate, policy)
    assert await rig.fleet.ended("d0") == {"abort": 1}


async def test_while_a_second_attempt_is_under_way(rig: Rig) -> None:
    gate = await rig.gate("local")
    await rig.fleet.fault("d0", "die_before_first_byte")
    await rig.fleet.fault("d1", "hang")
    await leave_before_a_byte(gate, "d1", body_for(CHAT))
    await gate.ended(
        Ending(
            outcome="cancelled",
            status=499,
            path="local",
            worker="d1",
            attempt=2,
            retries={"broken": 1},
            errors={("d0", "broken"): 1},
            blamed=frozenset({"d0"}),
        )
    )
