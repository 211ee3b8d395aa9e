"""KV that is lost between the legs, and the rule that a hand-over is used once."""

import asyncio
from itertools import islice

import pytest

from tests.faults.fault_rig import CHAT, DECODE, PREFILL, TOKENS, Ending, Rig, body_for, ids_preferring, until

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

BOTH_FORMS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
FAILS_WITHOUT_KV = pytest.mark.parametrize("rig", [{"kv_load_failure_policy": "fail"}], indirect=True, ids=["fail"])


async def prefills(rig: Rig) -> list[int]:
    """How many prefill legs each prefill worker has run to the end."""
    return [(await rig.fleet.ended(worker))["length"] for worker in PREFILL]


async def sources(rig: Rig, worker: str) -> set[str]:
    found = (await rig.fleet.samples(worker)).by("vllm:prompt_tokens_by_source_total", "source")
    return {source for (source,) in found}


@BOTH_FORMS
async def test_without_faults_the_kv_is_fetched_once(rig: Rig, stream: bool) -> None:
    gate = await rig.gate("remote")
    await rig.is_right(await gate.ask(CHAT, body_for(CHAT, stream=stream)))
    await gate.ended(Ending(path="remote", prefill="p0", worker="d0"))
    assert await prefills(rig) == [1, 0]
    assert "external_kv_transfer" in await sources(rig, "d0")
    assert await rig.fleet.failed_transfers() == 0


@BOTH_FORMS
async def test_a_decode_worker_that_recomputes_lost_kv_answers_right(rig: Rig, stream: bool) -> None:
    gate = await rig.gate("remote")
    await rig.fleet.fault("p0", "die_between_legs")
    await rig.is_right(await gate.ask(CHAT, body_for(CHAT, stream=stream)))
    await gate.ended(Ending(path="remote", prefill="p0", worker="d0"))
    assert await prefills(rig) == [1, 0]
    assert await sources(rig, "d0") == {"local_compute"}
    assert await rig.fleet.failed_transfers() == 1


@FAILS_WITHOUT_KV
async def test_a_decode_worker_that_fails_without_its_kv_leads_to_a_new_prefill(rig: Rig) -> None:
    gate = await rig.gate("remote")
    await rig.fleet.fault("p0", "die_between_legs", count=1)
    await rig.is_right(await gate.ask(CHAT, body_for(CHAT)))
    await gate.ended(
        Ending(
            path="remote",
            prefill="p1",
            worker="d1",
            attempt=2,
            retries={"server_error": 1},
            errors={("d0", "server_error"): 1},
        )
    )
    assert await prefills(rig) == [1, 1]
    assert await rig.fleet.failed_transfers() == 1
    assert "external_kv_transfer" in await sources(rig, "d1")


@FAILS_WITHOUT_KV
async def test_a_stream_that_fails_without_its_kv_tells_the_workers_error(rig: Rig) -> None:
    """The worker has sent its head by then, so the client has seen something."""
    gate = await rig.gate("remote")
    await rig.fleet.fault("p0", "die_between_legs", count=1)
    reply = await gate.ask(CHAT, body_for(CHAT, stream=True))
    assert (reply.status, reply.whole) == (200, True)
    assert reply.error(stream=True)["message"] == "Internal server error"
    await gate.ended(
        Ending(
            outcome="upstream_error",
            path="remote",
            prefill="p0",
            worker="d0",
            errors={("d0", "server_error"): 1},
        )
    )
    assert await prefills(rig) == [1, 0]


@FAILS_WITHOUT_KV
@pytest.mark.parametrize("decode", [("d0",), DECODE], ids=["one", "two"])
async def test_when_all_kv_is_lost_a_decode_worker_prefills_by_itself(rig: Rig, decode: tuple[str, ...]) -> None:
    gate = await rig.gate("remote", workers=(*PREFILL[: len(decode)], *decode))
    for worker in PREFILL:
        await rig.fleet.fault(worker, "die_between_legs")
    reply = await gate.ask(CHAT, body_for(CHAT))
    await rig.is_right(reply)
    assert reply.headers["x-tidegate-path"] == "local"
    await gate.ended(
        Ending(
            path="local",
            worker=decode[-1],
            attempt=len(decode) + 1,
            retries={"server_error": len(decode)},
            errors={(worker, "server_error"): 1 for worker in decode},
        )
    )
    assert await prefills(rig) == [1, len(decode) - 1]
    assert await rig.fleet.failed_transfers() == len(decode)


@FAILS_WITHOUT_KV
async def test_when_the_last_attempt_loses_its_kv_the_workers_error_is_the_answer(rig: Rig) -> None:
    gate = await rig.gate("remote", upstream={"max_attempts": 2})
    for worker in PREFILL:
        await rig.fleet.fault(worker, "die_between_legs")
    reply = await gate.ask(CHAT, body_for(CHAT))
    assert (reply.status, reply.whole) == (500, True)
    assert reply.error(stream=False)["message"] == "Internal server error"
    await gate.ended(
        Ending(
            outcome="upstream_error",
            status=500,
            path="remote",
            prefill="p1",
            worker="d1",
            attempt=2,
            retries={"server_error": 1},
            errors={("d0", "server_error"): 1, ("d1", "server_error"): 1},
        )
    )
    assert await prefills(rig) == [1, 1]
    assert await rig.fleet.failed_transfers() == 2


async def test_a_prefill_whose_decode_worker_goes_down_is_stopped_and_made_for_another(rig: Rig) -> None:
    often = {"probe_interval_s": 0.05, "probe_timeout_s": 30.0, "scrape_interval_s": 3600.0}
    gate = await rig.gate("remote", fleet=often)
    await rig.fleet.fault("p0", "hang", count=1)
    asking = asyncio.create_task(gate.ask(CHAT, body_for(CHAT)))

    async def has_the_call() -> bool:
        return await rig.fleet.fired("p0") == 1

    await until(has_the_call, what="p0 has the call")
    await rig.fleet.fault("d0", "refuse")
    await rig.is_right(await asking)
    # The route that is given up still counts as a request at p0 while the new one is chosen (ADR 0005).
    await gate.ended(Ending(path="remote", prefill="p1", worker="d1", attempt=2, retries={"connect": 1}))
    assert await prefills(rig) == [0, 1]


async def test_no_hand_over_is_used_twice_however_many_attempts_are_under_way(rig: Rig) -> None:
    gate = await rig.gate("remote")
    await rig.fleet.fault("d0", "die_before_first_byte", count=2)
    await rig.fleet.fault("d1", "status", status=503, count=2)
    await rig.fleet.fault("p1", "garbage", count=2)
    ids = list(islice(ids_preferring("p0", "p1", "d0", "d1"), 12))
    requests = (
        gate.ask(CHAT, body_for(CHAT, stream=number % 2 == 0), request_id) for number, request_id in enumerate(ids)
    )
    for reply in await asyncio.gather(*requests):
        await rig.is_right(reply)
    records = await gate.records(len(ids))
    assert {record.request_id for record in records} == set(ids)
    assert {record.outcome.kind for record in records} == {"ok"}
    samples = await gate.samples()
    assert samples.by("tidegate_requests_total", "outcome") == {("ok",): len(ids)}
    retries = sum(record.decision.attempt - 1 for record in records if record.decision)
    assert samples.sum("tidegate_retries_total") == retries == 6
    sent = samples.by("tidegate_worker_selected_total", "role")[("prefill",)]
    assert sum(await prefills(rig)) == sent - 2
    assert await rig.fleet.failed_transfers() == 0
    output = {worker: (await rig.fleet.samples(worker)).sum("vllm:generation_tokens_total") for worker in DECODE}
    assert sum(output.values()) == len(ids) * TOKENS
    assert len(gate.gateway.router.ledger) == 0
