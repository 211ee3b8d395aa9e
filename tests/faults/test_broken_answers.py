"""What breaks after the client's answer has begun: it is told in the way that is still open, and never looks whole."""

import json
from typing import Any

import pytest

from tests.faults.fault_rig import (
    CHAT,
    COMPLETIONS,
    LONG_S,
    MESSAGES,
    NO_BODY,
    RESPONSES,
    TOKENS,
    Ending,
    Reply,
    Rig,
    body_for,
    text_of,
)

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

ASKS_USAGE = {"stream_options": {"include_usage": True}}
POLICIES = pytest.mark.parametrize("policy", ["local", "remote"])
MID_STREAM: dict[str, tuple[dict[str, Any], str, str, str]] = {
    # fault, kind of upstream error, outcome, code that the client is told
    "dies at once": ({"kind": "die_after_tokens"}, "broken", "upstream_error", "bad_gateway"),
    "dies after a token": ({"kind": "die_after_tokens", "after_tokens": 1}, "broken", "upstream_error", "bad_gateway"),
    "dies at the end": ({"kind": "die_after_tokens", "after_tokens": 99}, "broken", "upstream_error", "bad_gateway"),
    "drips too slowly": ({"kind": "drip", "delay_s": LONG_S}, "timeout", "timeout", "gateway_timeout"),
}


def ending(policy: str, *, outcome: str, errors: dict[tuple[str, str], int], **fields: Any) -> Ending:
    """One attempt at d0, which is to blame for each of its errors."""
    prefill = "p0" if policy == "remote" else None
    fields = {"blamed": frozenset({"d0"}) if errors else frozenset()} | fields
    return Ending(outcome=outcome, path=policy, prefill=prefill, worker="d0", errors=errors, **fields)


@pytest.mark.parametrize("asks", [{}, ASKS_USAGE], ids=["usage hidden", "usage asked for"])
@POLICIES
@pytest.mark.parametrize("name", ["dies at once", "dies after a token", "dies at the end"])
async def test_a_stream_that_breaks_ends_with_an_error_event(
    rig: Rig, name: str, policy: str, asks: dict[str, Any]
) -> None:
    await check_mid_stream(rig, CHAT, name, policy, **asks)


@POLICIES
async def test_a_stream_that_stands_still_ends_with_an_error_event(rig: Rig, policy: str) -> None:
    await check_mid_stream(rig, CHAT, "drips too slowly", policy)


@pytest.mark.parametrize("name", MID_STREAM)
async def test_a_stream_of_completions_that_breaks_ends_with_an_error_event(rig: Rig, name: str) -> None:
    await check_mid_stream(rig, COMPLETIONS, name, "remote")


async def check_mid_stream(rig: Rig, path: str, name: str, policy: str, **asks: Any) -> None:
    fault, kind, outcome, code = MID_STREAM[name]
    gate = await rig.gate(policy, hasty={"d0": NO_BODY} if kind == "timeout" else {})
    await rig.fleet.fault("d0", **fault)
    reply = await gate.ask(path, body_for(path, stream=True, **asks))
    assert (reply.status, reply.whole) == (200, True)
    assert reply.error(stream=True)["code"] == code
    *answers, _ = reply.events()
    kept = "".join(text_of(choice) for answer in answers for choice in answer["choices"])
    reference = (await rig.fleet.reference(path, body_for(path))).text
    tokens = {"dies after a token": 1, "dies at the end": TOKENS}.get(name, 0)
    assert kept == reference[: 4 * tokens]
    await gate.ended(ending(policy, outcome=outcome, errors={("d0", kind): 1}))


@POLICIES
@pytest.mark.parametrize("after_tokens", [0, 3])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_an_error_event_of_the_worker_passes_and_counts_against_it(
    rig: Rig, path: str, after_tokens: int, policy: str
) -> None:
    """Behind a hand-over an error before any token may be for want of KV, so it counts against nobody."""
    gate = await rig.gate(policy)
    await rig.fleet.fault("d0", "error_event", after_tokens=after_tokens)
    reply = await gate.ask(path, body_for(path, stream=True))
    assert (reply.status, reply.whole) == (200, True)
    assert reply.error(stream=True)["message"] == "Internal server error"
    blamed = frozenset() if policy == "remote" and not after_tokens else frozenset({"d0"})
    await gate.ended(ending(policy, outcome="upstream_error", errors={("d0", "server_error"): 1}, blamed=blamed))


@POLICIES
async def test_a_whole_answer_has_no_error_event_to_be_told(rig: Rig, policy: str) -> None:
    gate = await rig.gate(policy)
    await rig.fleet.fault("d0", "error_event")
    await rig.is_right(await gate.ask(CHAT, body_for(CHAT)))
    await gate.ended(ending(policy, outcome="ok", errors={}))


# --- whole answers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES, MESSAGES])
async def test_a_whole_answer_that_is_shorter_than_declared_closes_the_clients_connection(rig: Rig, path: str) -> None:
    gate = await rig.gate("local")
    await rig.fleet.fault("d0", "wrong_content_length")
    reply = await gate.ask(path, body_for(path))
    assert (reply.status, reply.whole) == (200, False)
    await gate.ended(ending("local", outcome="upstream_error", errors={("d0", "broken"): 1}))


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
async def test_a_whole_answer_that_drips_too_slowly_closes_the_clients_connection(rig: Rig, path: str) -> None:
    gate = await rig.gate("local", hasty={"d0": NO_BODY})
    await rig.fleet.fault("d0", "drip", delay_s=20.0)
    reply = await gate.ask(path, body_for(path))
    assert (reply.status, reply.whole, reply.body) == (200, False, b"")
    await gate.ended(ending("local", outcome="timeout", errors={("d0", "timeout"): 1}))


@pytest.mark.parametrize(
    ("fault", "kind"),
    [({"kind": "wrong_content_length"}, "broken"), ({"kind": "drip", "delay_s": LONG_S}, "timeout")],
    ids=["shorter than declared", "drips too slowly"],
)
async def test_a_held_answer_that_breaks_off_is_another_workers_to_give(
    rig: Rig, fault: dict[str, Any], kind: str
) -> None:
    """Behind a prefill leg a whole answer is held to set its cached tokens right: the client has seen nothing."""
    gate = await rig.gate("remote", hasty={"d0": NO_BODY} if kind == "timeout" else {})
    await rig.fleet.fault("d0", **fault)
    await rig.is_right(await gate.ask(CHAT, body_for(CHAT)))
    await gate.ended(
        Ending(
            path="remote",
            prefill="p0",
            worker="d1",
            attempt=2,
            retries={kind: 1},
            errors={("d0", kind): 1},
            blamed=frozenset({"d0"}),
        )
    )
    assert (await rig.fleet.ended("p0"))["length"] == 2


@POLICIES
async def test_a_worker_that_dies_while_it_makes_a_whole_answer_is_replaced(rig: Rig, policy: str) -> None:
    gate = await rig.gate(policy)
    await rig.fleet.fault("d0", "die_after_tokens", after_tokens=5)
    await rig.is_right(await gate.ask(CHAT, body_for(CHAT)))
    await gate.ended(
        Ending(
            path=policy,
            prefill="p0" if policy == "remote" else None,
            worker="d1",
            attempt=2,
            retries={"broken": 1},
            errors={("d0", "broken"): 1},
            blamed=frozenset({"d0"}),
        )
    )


@POLICIES
async def test_half_a_json_with_the_right_length_is_the_workers_answer(rig: Rig, policy: str) -> None:
    """The gateway relays answers and does not judge them."""
    gate = await rig.gate(policy)
    await rig.fleet.fault("d0", "wrong_json")
    reply = await gate.ask(CHAT, body_for(CHAT))
    assert (reply.status, reply.whole) == (200, True)
    with pytest.raises(json.JSONDecodeError):
        reply.json()
    record = await gate.ended(ending(policy, outcome="ok", errors={}))
    assert record.outcome.output_tokens is None


@POLICIES
async def test_what_follows_the_declared_length_is_dropped_with_its_connection(rig: Rig, policy: str) -> None:
    gate = await rig.gate(policy)
    await rig.fleet.fault("d0", "short_content_length", count=1)
    reply = await gate.ask(CHAT, body_for(CHAT))
    full = len((await rig.fleet.reference(CHAT, body_for(CHAT))).body)
    assert (reply.status, reply.whole) == (200, True)
    assert len(reply.body) < full
    await gate.ended(ending(policy, outcome="ok", errors={}))
    assert gate.gateway.pool.stats().idle == (1 if policy == "remote" else 0)


# --- streams framed wrongly -------------------------------------------------------------------------------------------


@POLICIES
async def test_a_stream_that_breaks_behind_its_end_is_broken_but_told_nothing_more(rig: Rig, policy: str) -> None:
    gate = await rig.gate(policy)
    await rig.fleet.fault("d0", "wrong_content_length")
    reply = await gate.ask(CHAT, body_for(CHAT, stream=True))
    assert (reply.status, reply.whole) == (200, False)
    assert reply.data()[-1] == "[DONE]"
    assert all("error" not in event for event in reply.events())
    await gate.ended(ending(policy, outcome="upstream_error", errors={("d0", "broken"): 1}))


@pytest.mark.parametrize("asks", [{}, ASKS_USAGE], ids=["usage hidden", "usage asked for"])
@POLICIES
async def test_a_stream_that_lacks_its_end_but_has_its_last_token_is_right(
    rig: Rig, policy: str, asks: dict[str, Any]
) -> None:
    gate = await rig.gate(policy)
    await rig.fleet.fault("d0", "short_content_length")
    reply = await gate.ask(CHAT, body_for(CHAT, stream=True, **asks))
    assert (reply.status, reply.whole) == (200, True)
    *told, half = reply.data()
    assert not half.endswith("}")
    answers = [json.loads(data) for data in told]
    kept = "".join(text_of(choice) for answer in answers for choice in answer["choices"])
    assert kept == (await rig.fleet.reference(CHAT, body_for(CHAT))).text
    await gate.ended(ending(policy, outcome="ok", errors={}))


@POLICIES
async def test_a_drip_of_single_bytes_is_a_right_stream(rig: Rig, policy: str) -> None:
    gate = await rig.gate(policy)
    await rig.fleet.fault("d0", "drip", delay_s=1e-6)
    await rig.is_right(await gate.ask(CHAT, body_for(CHAT, stream=True)))
    await gate.ended(ending(policy, outcome="ok", errors={}))


@POLICIES
async def test_a_drip_of_single_bytes_is_a_right_whole_answer(rig: Rig, policy: str) -> None:
    gate = await rig.gate(policy)
    await rig.fleet.fault("d0", "drip", delay_s=1e-6)
    await rig.is_right(await gate.ask(CHAT, body_for(CHAT)))
    await gate.ended(ending(policy, outcome="ok", errors={}))


# --- other dialects -----------------------------------------------------------------------------------------------


def last_event(reply: Reply) -> tuple[str, dict[str, Any]]:
    """The name and the data of a stream's last event, where there is no `[DONE]`."""
    assert b"[DONE]" not in reply.body
    *_, event = reply.body.decode().strip("\n").split("\n\n")
    name, _, data = event.partition("\n")
    return name, json.loads(data.removeprefix("data: "))


@pytest.mark.parametrize("name", MID_STREAM)
async def test_a_message_stream_that_breaks_ends_with_its_own_error_event(rig: Rig, name: str) -> None:
    fault, kind, outcome, _ = MID_STREAM[name]
    gate = await rig.gate("remote", hasty={"d0": NO_BODY} if kind == "timeout" else {})
    await rig.fleet.fault("d0", **fault)
    reply = await gate.ask(MESSAGES, body_for(MESSAGES, stream=True))
    assert (reply.status, reply.whole) == (200, True)
    event, error = last_event(reply)
    assert (event, error["type"]) == ("event: error", "error")
    assert error["error"]["type"] == ("timeout_error" if kind == "timeout" else "api_error")
    assert b"message_stop" not in reply.body
    await gate.ended(ending("local", outcome=outcome, errors={("d0", kind): 1}))


@pytest.mark.parametrize("name", MID_STREAM)
async def test_a_response_stream_that_breaks_ends_with_its_own_error_event(rig: Rig, name: str) -> None:
    fault, kind, outcome, code = MID_STREAM[name]
    gate = await rig.gate("remote", hasty={"d0": NO_BODY} if kind == "timeout" else {})
    await rig.fleet.fault("d0", **fault)
    reply = await gate.ask(RESPONSES, body_for(RESPONSES, stream=True))
    assert (reply.status, reply.whole) == (200, True)
    event, error = last_event(reply)
    assert (event, error["type"], error["code"]) == ("event: error", "error", code)
    assert b"response.completed" not in reply.body
    await gate.ended(ending("local", outcome=outcome, errors={("d0", kind): 1}))


@pytest.mark.parametrize("path", [MESSAGES, RESPONSES])
async def test_a_stream_that_is_well_framed_and_yet_not_whole_ends_with_an_error_event(rig: Rig, path: str) -> None:
    """The declared length leaves out the event that would have told the end."""
    gate = await rig.gate("local")
    await rig.fleet.fault("d0", "short_content_length")
    reply = await gate.ask(path, body_for(path, stream=True))
    assert (reply.status, reply.whole) == (200, True)
    event, error = last_event(reply)
    assert (event, error["type"]) == ("event: error", "error")
    assert b"message_stop" not in reply.body
    await gate.ended(ending("local", outcome="upstream_error", errors={("d0", "broken"): 1}))


@pytest.mark.parametrize("path", [MESSAGES, RESPONSES])
async def test_an_error_event_of_another_dialect_counts_the_same(rig: Rig, path: str) -> None:
    gate = await rig.gate("remote")
    await rig.fleet.fault("d0", "error_event", after_tokens=2)
    reply = await gate.ask(path, body_for(path, stream=True))
    assert (reply.status, reply.whole) == (200, True)
    assert b"Internal server error" in reply.body
    await gate.ended(ending("local", outcome="upstream_error", errors={("d0", "server_error"): 1}))


@pytest.mark.parametrize("path", [MESSAGES, RESPONSES])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_another_worker_answers_in_another_dialect_too(rig: Rig, path: str, stream: bool) -> None:
    gate = await rig.gate("remote")
    await rig.fleet.fault("d0", "garbage")
    reply = await gate.ask(path, body_for(path, stream=stream))
    assert (reply.status, reply.whole) == (200, True)
    assert (b"message_stop" in reply.body or b"response.completed" in reply.body) == stream
    await gate.ended(
        Ending(
            path="local",
            worker="d1",
            attempt=2,
            retries={"protocol": 1},
            errors={("d0", "protocol"): 1},
            blamed=frozenset({"d0"}),
        )
    )


@pytest.mark.parametrize("path", [MESSAGES, RESPONSES])
async def test_when_nobody_can_answer_the_error_has_the_dialects_shape(rig: Rig, path: str) -> None:
    gate = await rig.gate("local", workers=("d0",))
    await rig.fleet.fault("d0", "garbage")
    reply = await gate.ask(path, body_for(path, stream=True))
    assert (reply.status, reply.whole) == (502, True)
    document = reply.json()
    if path == MESSAGES:
        assert (document["type"], document["error"]["type"]) == ("error", "api_error")
    else:
        assert reply.error(stream=False)["code"] == "bad_gateway"
    await gate.ended(ending("local", outcome="upstream_error", status=502, errors={("d0", "protocol"): 1}))
