"""What the gateway changes of a request, it changes anew for every attempt: alias, key, id, sidecar header."""

from typing import Any

import pytest

from gateway.api.auth import key_hash
from tests.faults.fault_rig import CHAT, DECODE, MODEL, PREFILL, Ending, Gate, Rig, body_for
from tests.faults.tap import Sent, Tap, tapped

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

CLIENT_KEY = "tg-clients-own"
KEYS = {"auth": {"keys": [{"name": "client", "sha256": key_hash(CLIENT_KEY)}]}}
ALIASES = {"aliases": {"gpt": MODEL}}
POLICIES = pytest.mark.parametrize("policy", ["local", "remote"])


async def tap_all(rig: Rig) -> dict[str, Tap]:
    return {
        worker: await rig.stack.enter_async_context(tapped(rig.fleet.bound[worker])) for worker in (*PREFILL, *DECODE)
    }


async def tapped_gate(rig: Rig, policy: str, taps: dict[str, Tap], **settings: Any) -> Gate:
    return await rig.gate(policy, urls={worker: tap.url for worker, tap in taps.items()}, **settings)


def sent_by(taps: dict[str, Tap]) -> dict[str, list[Sent]]:
    return {worker: tap.requests() for worker, tap in taps.items() if tap.requests()}


def second_attempt(policy: str) -> Ending:
    remote = policy == "remote"
    return Ending(
        path=policy,
        prefill="p0" if remote else None,
        worker="d1",
        attempt=2,
        retries={"broken": 1},
        errors={("d0", "broken"): 1},
        blamed=frozenset({"d0"}),
        holding=frozenset({"p0"}) if remote else frozenset(),
    )


@POLICIES
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_every_attempt_carries_the_workers_key_and_the_models_name(rig: Rig, policy: str, stream: bool) -> None:
    taps = await tap_all(rig)
    gate = await tapped_gate(rig, policy, taps, upstream={"api_key": "workers-own"}, **KEYS, **ALIASES)
    await rig.fleet.fault("d0", "die_before_first_byte")
    body = body_for(CHAT, stream=stream, model="gpt", user="someone")
    reply = await gate.ask(CHAT, body, authorization=f"Bearer {CLIENT_KEY}", x_api_key=CLIENT_KEY, x_tenant="blue")
    await rig.is_right(reply)
    sent = sent_by(taps)
    assert {worker: len(requests) for worker, requests in sent.items()} == (
        {"p0": 2, "d0": 1, "d1": 1} if policy == "remote" else {"d0": 1, "d1": 1}
    )
    for request in (request for requests in sent.values() for request in requests):
        assert request.values("authorization") == ["Bearer workers-own"]
        assert request.values("x-api-key") == []
        assert request.values("x-tenant") == ["blue"]
        assert (request.target, request.body["model"], request.body["user"]) == (CHAT, MODEL, "someone")
        assert CLIENT_KEY not in str(request)
    ids = [request.values("x-request-id") for requests in sent.values() for request in requests]
    assert {attempt.rpartition("-gw-")[2] for (attempt,) in ids} == {"1", "2"}
    record = await gate.ended(second_attempt(policy))
    assert record.model == "gpt"
    assert record.decision is not None
    assert record.decision.model == MODEL
    counted = (await gate.samples()).by("tidegate_requests_total", "model", "served_model")
    assert counted == {("gpt", MODEL): 1}


@POLICIES
async def test_a_clients_own_authorization_goes_with_every_attempt_where_it_is_not_the_gateways(
    rig: Rig, policy: str
) -> None:
    taps = await tap_all(rig)
    gate = await tapped_gate(rig, policy, taps)
    await rig.fleet.fault("d0", "die_before_first_byte")
    await rig.is_right(await gate.ask(CHAT, body_for(CHAT), authorization="Bearer for-the-worker"))
    sent = [request for requests in sent_by(taps).values() for request in requests]
    assert len(sent) == (4 if policy == "remote" else 2)
    assert all(request.values("authorization") == ["Bearer for-the-worker"] for request in sent)
    await gate.ended(second_attempt(policy))


async def test_a_key_of_the_gateway_goes_nowhere(rig: Rig) -> None:
    taps = await tap_all(rig)
    gate = await tapped_gate(rig, "remote", taps, **KEYS)
    await rig.fleet.fault("d0", "die_before_first_byte")
    await rig.is_right(await gate.ask(CHAT, body_for(CHAT), authorization=f"Bearer {CLIENT_KEY}"))
    sent = [request for requests in sent_by(taps).values() for request in requests]
    assert len(sent) == 4
    assert all(request.values("authorization") == [] for request in sent)
    assert all(CLIENT_KEY not in str(request) for request in sent)
    await gate.ended(second_attempt("remote"))


async def test_a_retry_uses_the_prefill_worker_that_the_request_names(rig: Rig) -> None:
    taps = await tap_all(rig)
    gate = await tapped_gate(rig, "remote", taps, workers=("p0", *DECODE), sidecar={"allow": ["127.0.0.1"]}, **ALIASES)
    await rig.fleet.fault("d0", "die_before_first_byte")
    named = {"x_prefiller_host_port": f"{taps['p1'].host_port}, {taps['p0'].host_port}"}
    await rig.is_right(await gate.ask(CHAT, body_for(CHAT, model="gpt"), **named))
    sent = sent_by(taps)
    assert {worker: len(requests) for worker, requests in sent.items()} == {"p1": 2, "d0": 1, "d1": 1}
    assert all(request.values("x-prefiller-host-port") == [] for requests in sent.values() for request in requests)
    (record,) = await gate.records(1)
    assert record.decision is not None
    assert (record.decision.path, record.decision.attempt) == ("remote", 2)
    assert record.decision.prefill_worker == f"prefiller-127.0.0.1-{taps['p1'].port}"
    await gate.nothing_left(holding={"p1"})


async def test_no_other_prefill_worker_stands_in_for_a_named_one(rig: Rig) -> None:
    taps = await tap_all(rig)
    gate = await tapped_gate(rig, "remote", taps, workers=("p0", *DECODE), sidecar={"allow": ["127.0.0.1"]})
    await rig.fleet.fault("p1", "refuse")
    await rig.is_right(await gate.ask(CHAT, body_for(CHAT), x_prefiller_host_port=taps["p1"].host_port))
    sent = sent_by(taps)
    (served,) = sent.keys() & {*DECODE}
    assert sent.keys() <= {"p1", served}
    assert all(request.values("x-prefiller-host-port") == [] for requests in sent.values() for request in requests)
    assert "kv_transfer_params" not in sent[served][0].body
    (record,) = await gate.records(1)
    assert record.decision is not None
    assert (record.decision.path, record.decision.attempt) == ("local", 2)
    await gate.nothing_left()
