"""A fault of one prefill worker: another one prefills, or the decode worker does; either way the answer is right."""

from typing import Any

import pytest

from tests.faults.fault_rig import CHAT, COMPLETIONS, LONG_S, NO_BODY, NO_HEAD, Ending, Rig, body_for

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

RETRY_DECODES_AT = "d1"
"""The route that is given up still counts as a request at d0 while the new one is chosen (ADR 0005)."""
BOTH_FORMS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
BEFORE_A_BYTE: dict[str, tuple[dict[str, Any], str]] = {
    "refuse": ({"kind": "refuse"}, "connect"),
    "hang": ({"kind": "hang"}, "timeout"),
    "too slow": ({"kind": "slow", "delay_s": LONG_S}, "timeout"),
    "500": ({"kind": "status", "status": 500}, "server_error"),
    "503": ({"kind": "status", "status": 503, "retry_after_s": 3}, "overloaded"),
    "429": ({"kind": "status", "status": 429, "retry_after_s": 3}, "overloaded"),
    "dies": ({"kind": "die_before_first_byte"}, "broken"),
    "dies after its token": ({"kind": "die_after_tokens", "after_tokens": 1}, "broken"),
    "garbage": ({"kind": "garbage"}, "protocol"),
}


def blamed(kind: str) -> frozenset[str]:
    return frozenset() if kind == "overloaded" else frozenset({"p0"})


def kept(name: str) -> frozenset[str]:
    """Its token is the end of a prefill leg, so its KV is ready and nobody knows where."""
    return frozenset({"p0"}) if name == "dies after its token" else frozenset()


@BOTH_FORMS
@pytest.mark.parametrize("name", BEFORE_A_BYTE)
async def test_another_prefill_worker_is_asked(rig: Rig, name: str, stream: bool) -> None:
    fault, kind = BEFORE_A_BYTE[name]
    gate = await rig.gate("remote", hasty={"p0": NO_HEAD} if kind == "timeout" else {})
    await rig.fleet.fault("p0", **fault)
    await rig.is_right(await gate.ask(CHAT, body_for(CHAT, stream=stream)))
    await gate.ended(
        Ending(
            path="remote",
            prefill="p1",
            worker=RETRY_DECODES_AT,
            attempt=2,
            retries={kind: 1},
            errors={("p0", kind): 1},
            blamed=blamed(kind),
            holding=kept(name),
        )
    )
    assert await rig.fleet.failed_transfers() == 0


@BOTH_FORMS
@pytest.mark.parametrize("name", [name for name in BEFORE_A_BYTE if name != "too slow"])
async def test_without_another_prefill_worker_the_path_becomes_local(rig: Rig, name: str, stream: bool) -> None:
    fault, kind = BEFORE_A_BYTE[name]
    gate = await rig.gate("remote", hasty={"p0": NO_HEAD} if kind == "timeout" else {}, workers=("p0", "d0", "d1"))
    await rig.fleet.fault("p0", **fault)
    reply = await gate.ask(CHAT, body_for(CHAT, stream=stream))
    await rig.is_right(reply)
    assert reply.headers["x-tidegate-path"] == "local"
    record = await gate.ended(
        Ending(
            path="local",
            worker=RETRY_DECODES_AT,
            attempt=2,
            retries={kind: 1},
            errors={("p0", kind): 1},
            blamed=blamed(kind),
            holding=kept(name),
        )
    )
    assert record.decision is not None
    assert record.decision.reason == "rule_no_prefiller"


ANSWERED_BADLY: dict[str, tuple[dict[str, Any], str]] = {
    "half a JSON": ({"kind": "wrong_json"}, "protocol"),
    "no parameters": ({"kind": "no_kv_params"}, "protocol"),
    "less than declared": ({"kind": "wrong_content_length"}, "broken"),
    "more than declared": ({"kind": "short_content_length"}, "protocol"),
    "drips too slowly": ({"kind": "drip", "delay_s": LONG_S}, "timeout"),
}


@BOTH_FORMS
@pytest.mark.parametrize("name", ANSWERED_BADLY)
async def test_an_answer_without_usable_parameters_leaves_the_prefill_to_the_decode_worker(
    rig: Rig, name: str, stream: bool
) -> None:
    fault, kind = ANSWERED_BADLY[name]
    gate = await rig.gate("remote", hasty={"p0": NO_BODY} if kind == "timeout" else {})
    await rig.fleet.fault("p0", **fault)
    reply = await gate.ask(CHAT, body_for(CHAT, stream=stream))
    await rig.is_right(reply)
    assert reply.headers["x-tidegate-path"] == "local"
    await gate.ended(
        Ending(
            path="local",
            worker="d0",
            errors={("p0", kind): 1},
            blamed=frozenset() if kind == "protocol" else frozenset({"p0"}),
            # Its answer told nobody where the KV is, so nobody can fetch it.
            holding=frozenset() if name == "no parameters" else frozenset({"p0"}),
        )
    )
    sources = (await rig.fleet.samples("d0")).by("vllm:prompt_tokens_by_source_total", "source")
    assert sources.keys() == {("local_compute",)}


@BOTH_FORMS
async def test_a_prefill_answer_that_drips_is_waited_for(rig: Rig, stream: bool) -> None:
    gate = await rig.gate("remote")
    await rig.fleet.fault("p0", "drip", delay_s=1e-6)
    await rig.is_right(await gate.ask(CHAT, body_for(CHAT, stream=stream)))
    await gate.ended(Ending(path="remote", prefill="p0", worker="d0"))
    sources = (await rig.fleet.samples("d0")).by("vllm:prompt_tokens_by_source_total", "source")
    assert ("external_kv_transfer",) in sources


@BOTH_FORMS
@pytest.mark.parametrize("status", [400, 404, 422])
async def test_a_refusal_of_the_prefill_worker_is_the_clients_answer(rig: Rig, status: int, stream: bool) -> None:
    gate = await rig.gate("remote")
    await rig.fleet.fault("p0", "status", status=status)
    reply = await gate.ask(CHAT, body_for(CHAT, stream=stream))
    assert (reply.status, reply.error(stream=False)["code"]) == (status, status)
    await gate.ended(Ending(outcome="client_error", status=status, path="remote", prefill="p0", worker="d0"))
    assert not await rig.fleet.ended("d0")


@BOTH_FORMS
async def test_a_stopped_prefill_worker_is_no_matter_for_completions_either(rig: Rig, stream: bool) -> None:
    gate = await rig.gate("remote", workers=("p0", "d0"))
    await rig.fleet.fault("p0", "refuse")
    await rig.is_right(await gate.ask(COMPLETIONS, body_for(COMPLETIONS, stream=stream)), COMPLETIONS)
    await gate.ended(
        Ending(
            path="local",
            worker="d0",
            attempt=2,
            retries={"connect": 1},
            errors={("p0", "connect"): 1},
            blamed=frozenset({"p0"}),
        )
    )


@BOTH_FORMS
async def test_a_slow_prefill_worker_within_the_limit_is_waited_for(rig: Rig, stream: bool) -> None:
    gate = await rig.gate("remote")
    await rig.fleet.fault("p0", "slow", delay_s=0.2)
    await rig.is_right(await gate.ask(CHAT, body_for(CHAT, stream=stream)))
    await gate.ended(Ending(path="remote", prefill="p0", worker="d0"))
