"""Prefill on one worker, decode on another, as vLLM's NIXL connector does it."""

from typing import Any

import pytest

from loadtest.worker.bodies import KvTransferParams
from loadtest.worker.pd import CLAIM_PATH, ClaimRefusal, HeldKv, remote_kv
from tests.loadtest.worker import vllm_recordings as recorded
from tests.loadtest.worker.worker_lab import (
    CHAT,
    COMPLETIONS,
    MODEL,
    Emulated,
    Lab,
    Reply,
    chat,
    completion,
    settle,
)

ASK = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None}
PROMPT = "x" * 4000
PROMPT_TOKENS = 1006


def prefill_leg(**fields: Any) -> dict[str, Any]:
    return chat(PROMPT, max_tokens=1, kv_transfer_params=ASK) | fields


def decode_leg(params: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return chat(PROMPT, max_tokens=8, ignore_eos=True, kv_transfer_params=params) | fields


async def prefill(lab: Lab, worker: Emulated) -> dict[str, Any]:
    reply = await lab.post(worker, CHAT, prefill_leg())
    params: dict[str, Any] = reply.json()["kv_transfer_params"]
    return params


def held_ratio(worker: Emulated) -> float:
    return worker.host.snapshot().kv_used_ratio


async def test_prefill_leg_holds_its_kv_and_says_where(lab: Lab) -> None:
    worker = lab.worker()
    reply = await lab.post(worker, CHAT, prefill_leg(), x_request_id="r1")
    params = reply.json()["kv_transfer_params"]
    assert reply.json()["choices"][0]["finish_reason"] == "length"
    assert held_ratio(worker) > 0
    assert params["remote_num_tokens"] == PROMPT_TOKENS
    assert len(params["remote_block_ids"][0]) == -(-PROMPT_TOKENS // 32)
    assert params["remote_request_id"].startswith("chatcmpl-r1-")
    assert (params["remote_host"], params["remote_port"]) == ("worker", 9000)


async def test_decode_leg_loads_the_kv_and_frees_it_at_the_holder(lab: Lab) -> None:
    p, d = lab.worker(), lab.worker()
    params = await prefill(lab, p)
    reply = await lab.post(d, CHAT, decode_leg(params))
    await settle()
    assert reply.status == 200
    assert reply.json()["kv_transfer_params"] is None
    assert reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert d.host.snapshot().remote_kv_tokens == PROMPT_TOKENS
    assert held_ratio(p) == held_ratio(d) == 0
    assert len(lab.released) == 1


async def test_holder_frees_its_blocks_before_the_answer_ends(lab: Lab) -> None:
    p, d = lab.worker(), lab.worker()
    params = await prefill(lab, p)
    exchange = lab.begin(d, CHAT, decode_leg(params, max_tokens=200))
    await lab.until(lambda: d.host.snapshot().generated_tokens == 2)
    assert held_ratio(p) == 0
    assert not exchange.task.done()
    await lab.run(exchange.task)


@pytest.mark.parametrize("stream", [False, True])
async def test_first_token_does_not_wait_for_a_prefill_at_the_decode_worker(lab: Lab, stream: bool) -> None:
    p, d, alone = lab.worker(), lab.worker(), lab.worker()
    params = await prefill(lab, p)
    times = []
    for worker, body in ((d, decode_leg(params, stream=stream)), (alone, chat(PROMPT, max_tokens=8))):
        start_s = lab.clock.now_s()
        exchange = lab.begin(worker, CHAT, body)
        await lab.until(lambda worker=worker: worker.host.snapshot().generated_tokens >= 1)
        times.append(lab.clock.now_s() - start_s)
        await lab.run(exchange.task)
    assert times[0] < times[1]


def spoilt(params: dict[str, Any], how: str) -> dict[str, Any]:
    changes: dict[str, dict[str, Any]] = {
        "other engine": {"remote_engine_id": "00000000-0000-0000-0000-000000000000"},
        "unknown request": {"remote_request_id": "chatcmpl-never"},
        "nobody there": {"remote_port": 1},
    }
    return params | changes[how]


@pytest.mark.parametrize("how", ["other engine", "unknown request", "nobody there"])
async def test_lost_kv_is_computed_here_by_default(lab: Lab, how: str) -> None:
    p, d = lab.worker(), lab.worker()
    params = spoilt(await prefill(lab, p), how)
    reply = await lab.post(d, CHAT, decode_leg(params))
    assert reply.status == 200
    assert reply.json()["usage"]["completion_tokens"] == 8
    assert reply.json()["usage"]["prompt_tokens_details"]["created_cache_tokens"] == 992
    found = await lab.metrics(d)
    assert found["vllm:external_prefix_cache_hits_total"] == 0
    assert found["vllm:nixl_num_failed_transfers_total"] == 1
    assert lab.released == []
    assert held_ratio(p) > 0


@pytest.mark.parametrize("how", ["other engine", "unknown request", "nobody there"])
async def test_lost_kv_is_an_error_where_the_policy_says_so(lab: Lab, how: str) -> None:
    p, d = lab.worker(), lab.worker(kv_load_failure_policy="fail")
    params = spoilt(await prefill(lab, p), how)
    whole = await lab.post(d, CHAT, decode_leg(params))
    error = {"message": "Internal server error", "type": "InternalServerError", "param": None, "code": 500}
    assert whole.status == 500
    assert whole.json() == {"error": error}
    stream = await lab.post(d, CHAT, decode_leg(params, stream=True))
    assert stream.status == 200
    assert stream.events() == [{"error": error}]
    assert (await lab.metrics(d))['vllm:request_success_total{finished_reason="error"}'] == 2


async def test_params_are_good_for_one_decode_leg(lab: Lab) -> None:
    p, d, other = lab.worker(), lab.worker(), lab.worker(kv_load_failure_policy="fail")
    params = await prefill(lab, p)
    first = lab.begin(d, CHAT, decode_leg(params))
    await settle()
    second = await lab.post(other, CHAT, decode_leg(params))
    assert second.status == 500
    assert (await lab.run(first.task)).status == 200
    third = await lab.post(other, CHAT, decode_leg(params))
    assert third.status == 500
    assert len(lab.released) == 1


async def test_claim_says_whether_the_kv_is_gone_or_taken(lab: Lab) -> None:
    worker = lab.worker()
    params = await prefill(lab, worker)
    body = {"request_id": params["remote_request_id"], "engine_id": params["remote_engine_id"]}
    replies = [await lab.post(worker, CLAIM_PATH, body) for _ in range(2)]
    replies.append(await lab.post(worker, CLAIM_PATH, body | {"request_id": "never"}))
    assert [reply.status for reply in replies] == [200, 409, 404]
    assert replies[0].json() == {"tokens": PROMPT_TOKENS}


async def test_lease_ends_a_hold_that_nobody_fetches(lab: Lab) -> None:
    p, d = lab.worker(hold_lease_s=5.0), lab.worker(kv_load_failure_policy="fail")
    params = await prefill(lab, p)
    await lab.time_passes(4.9)
    assert held_ratio(p) > 0
    await lab.time_passes(0.2)
    assert held_ratio(p) == 0
    assert (await lab.post(d, CHAT, decode_leg(params))).status == 500
    assert (await lab.metrics(p))["vllm:nixl_num_kv_expired_reqs_total"] == 1


async def test_client_that_leaves_during_the_transfer_frees_both_sides(lab: Lab) -> None:
    p, d = lab.worker(), lab.worker()
    params = await prefill(lab, p)
    exchange = lab.begin(d, CHAT, decode_leg(params))
    await lab.until(lambda: d.host.snapshot().waiting == 1 and held_ratio(d) > 0)
    assert held_ratio(p) > 0
    exchange.leave()
    await settle()
    assert held_ratio(p) == held_ratio(d) == 0
    assert len(lab.released) == 1


async def test_client_that_leaves_during_the_claim_frees_the_holder(lab: Lab) -> None:
    p, d = lab.worker(), lab.worker()
    params = await prefill(lab, p)
    exchange = lab.begin(d, CHAT, decode_leg(params))
    exchange.leave()
    await settle()
    assert exchange.task.done()
    assert held_ratio(p) == held_ratio(d) == 0


async def test_cancelled_prefill_leg_holds_nothing(lab: Lab) -> None:
    worker = lab.worker()
    exchange = lab.begin(worker, CHAT, prefill_leg())
    await lab.until(lambda: worker.host.snapshot().running == 1)
    exchange.leave()
    await settle()
    await lab.until(lambda: held_ratio(worker) == 0)


async def test_roles_are_not_enforced(lab: Lab) -> None:
    p, d = lab.worker(role="decode"), lab.worker(role="prefill")
    reply = await lab.post(d, CHAT, decode_leg(await prefill(lab, p)))
    assert reply.status == 200
    assert (await lab.post(d, CHAT, chat(max_tokens=3))).status == 200
    assert d.host.snapshot().remote_kv_tokens == PROMPT_TOKENS


async def test_answer_that_ended_by_itself_hands_nothing_over(lab: Lab) -> None:
    worker = lab.worker()
    reply = await lab.post(worker, CHAT, prefill_leg(max_tokens=4000, seed=4))
    assert reply.json()["choices"][0]["finish_reason"] == "stop"
    assert reply.json()["kv_transfer_params"] is None
    assert held_ratio(worker) == 0


async def test_only_the_first_of_several_choices_takes_the_remote_kv(lab: Lab) -> None:
    p, d = lab.worker(), lab.worker()
    reply = await lab.post(d, CHAT, decode_leg(await prefill(lab, p), n=2))
    assert reply.status == 200
    assert reply.json()["usage"]["completion_tokens"] == 16
    assert d.host.snapshot().remote_kv_tokens == PROMPT_TOKENS
    assert held_ratio(p) == held_ratio(d) == 0


async def test_kv_that_the_decode_worker_has_is_not_loaded_again(lab: Lab) -> None:
    p, d = lab.worker(), lab.worker()
    await lab.post(d, CHAT, chat(PROMPT, max_tokens=1))
    reply = await lab.post(d, CHAT, decode_leg(await prefill(lab, p)))
    assert reply.json()["usage"]["prompt_tokens_details"] == {
        "cached_tokens": 992,
        "created_cache_tokens": 0,
        "multimodal_tokens": None,
    }
    found = await lab.metrics(d)
    assert found["vllm:external_prefix_cache_hits_total"] == PROMPT_TOKENS - 992
    source = 'vllm:prompt_tokens_by_source_total{source="%s"}'
    assert found[source % "local_compute"] == PROMPT_TOKENS
    assert found[source % "local_cache_hit"] == 992
    assert found[source % "external_kv_transfer"] == PROMPT_TOKENS - 992


async def test_completions_hand_over_too(lab: Lab) -> None:
    p, d = lab.worker(), lab.worker()
    first = await lab.post(p, COMPLETIONS, completion(PROMPT, max_tokens=1, kv_transfer_params=ASK))
    params = first.json()["kv_transfer_params"]
    reply = await lab.post(d, COMPLETIONS, completion(PROMPT, kv_transfer_params=params))
    assert reply.status == 200
    assert d.host.snapshot().remote_kv_tokens == 1000


@pytest.mark.parametrize(
    "missing",
    ["remote_block_ids", "remote_engine_id", "remote_request_id", "remote_host", "remote_port"],
)
def test_incomplete_params_are_passed_over(missing: str) -> None:
    whole: dict[str, Any] = {
        "do_remote_prefill": True,
        "remote_block_ids": [[1]],
        "remote_engine_id": "e",
        "remote_request_id": "r",
        "remote_host": "h",
        "remote_port": 1,
    }
    assert remote_kv(KvTransferParams(**whole)) is not None
    assert remote_kv(KvTransferParams(**whole | {missing: None})) is None


def test_leases_end_in_the_order_in_which_they_began() -> None:
    held = HeldKv(engine_id="e", lease_s=10.0)
    held.hold("a", tokens=1, now_s=0.0)
    held.hold("b", tokens=2, now_s=1.0)
    held.release("a")
    held.hold("c", tokens=3, now_s=2.0)
    assert held.claim("c", "e", now_s=10.9) == 3
    assert held.claim("b", "e", now_s=11.0) is ClaimRefusal.UNKNOWN
    assert held.expired == 1
    assert held.claim("c", "e", now_s=11.0) is ClaimRefusal.TAKEN


@pytest.mark.shared_data
@pytest.mark.parametrize("name", ["nixl_chat", "nixl_chat_again_local_hit", "nixl_cmpl"])
async def test_both_legs_answer_in_the_recorded_shapes(lab: Lab, name: str) -> None:
    p, d = lab.worker(max_model_len=2048), lab.worker(max_model_len=2048)
    path = CHAT if "chat" in name else COMPLETIONS
    first = await lab.post(p, path, recorded.handover(f"{name}.1.prefill.request") | {"model": MODEL})
    params = first.json()["kv_transfer_params"]
    body = recorded.handover(f"{name}.2.decode.request") | {"kv_transfer_params": params}
    second = await lab.post(d, path, body)
    for leg, reply in (("1.prefill", first), ("2.decode", second)):
        expected = recorded.shape(recorded.handover(f"{name}.{leg}.response"))
        assert recorded.shape(reply.json()) == expected


@pytest.mark.shared_data
async def test_streamed_decode_leg_sends_the_recorded_events(lab: Lab) -> None:
    p, d = lab.worker(max_model_len=2048), lab.worker(max_model_len=2048)
    name = "nixl_chat_stream"
    first = await lab.post(p, CHAT, recorded.handover(f"{name}.1.prefill.request"))
    params = first.json()["kv_transfer_params"]
    body = recorded.handover(f"{name}.2.decode.request") | {"kv_transfer_params": params, "ignore_eos": True}
    reply = await lab.post(d, CHAT, body)
    theirs = Reply(parts=[recorded.handover_stream(f"{name}.2.decode.response")])
    shapes = [recorded.distinct([recorded.shape(event) for event in each.events()]) for each in (reply, theirs)]
    assert shapes[0] == shapes[1]
    assert len(reply.events()) == len(theirs.events())


@pytest.mark.shared_data
@pytest.mark.parametrize("name", ["nixl_chat", "nixl_cmpl"])
async def test_handover_moves_the_recorded_counters(lab: Lab, name: str) -> None:
    """Where a recorded counter rose by the whole prompt, ours rises by our whole prompt; where it stood, it stands."""
    p, d = lab.worker(max_model_len=2048), lab.worker(max_model_len=2048)
    path = CHAT if "chat" in name else COMPLETIONS
    first = await lab.post(p, path, recorded.handover(f"{name}.1.prefill.request"))
    body = recorded.handover(f"{name}.2.decode.request")
    second = await lab.post(d, path, body | {"kv_transfer_params": first.json()["kv_transfer_params"]})
    deltas = recorded.handover(f"{name}.metrics_delta")
    prompt_tokens = second.json()["usage"]["prompt_tokens"]
    for worker, theirs in ((p, deltas["P"]), (d, deltas["D"])):
        ours = await lab.metrics(worker)
        watched = [key for key in ours if "prompt_tokens" in key or "prefix_cache" in key]
        moved = {_without_common_labels(key) for key in theirs if "nixl" not in key}
        assert {key for key in watched if ours[key]} == moved
        assert {ours[key] for key in moved} == {prompt_tokens}


def _without_common_labels(key: str) -> str:
    name, _, labels = key.partition("{")
    kept = [each for each in labels.rstrip("}").split(",") if not each.startswith(("engine=", "model_name="))]
    return f"{name}{{{','.join(kept)}}}" if any(kept) else name
