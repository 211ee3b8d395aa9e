"""What a client sees of each fault, and that nothing stays behind in the engine."""

import asyncio
import json
from typing import Any

import pytest

from loadtest.worker.control import FAULTS_PATH
from loadtest.worker.faults import Fault, FaultKind
from loadtest.worker.pd import HttpKvPeers, RemoteKv
from loadtest.worker.sabotage import GARBAGE, MISSING_BYTES
from tests.loadtest.worker.fault_lab import workers
from tests.loadtest.worker.worker_lab import CHAT, chat, completion, sse_data

pytestmark = pytest.mark.e2e

ASK = {"do_remote_decode": True, "do_remote_prefill": False}
TEN = chat(max_tokens=10, ignore_eos=True)
STREAM = TEN | {"stream": True}
PREFILL = chat("x" * 4000, max_tokens=1, kv_transfer_params=ASK)


def unchunked(body: bytes) -> bytes:
    """What came of a chunked body; its last, empty chunk need not be there."""
    parts = []
    while body:
        size, _, rest = body.partition(b"\r\n")
        if int(size, 16) == 0:
            break
        parts.append(rest[: int(size, 16)])
        body = rest[int(size, 16) + 2 :]
    return b"".join(parts)


def words_of(events: list[str]) -> int:
    """Output tokens in a chat stream's events: each is one word."""
    deltas = [json.loads(event)["choices"][0]["delta"] for event in events if '"choices"' in event]
    return len("".join(delta.get("content") or "" for delta in deltas).split())


async def test_status_is_vllms_error_and_ends_with_its_count() -> None:
    async with workers("w") as fleet:
        await fleet.put("w", kind="status", status=429, retry_after_s=3, count=2)
        answers = [await fleet.ask("w", CHAT, TEN) for _ in range(3)]
        assert [answer.status for answer in answers] == [429, 429, 200]
        assert answers[0].head["retry-after"] == "3"
        error = answers[0].json()["error"]
        assert (error["type"], error["code"]) == ("TooManyRequestsError", 429)
        assert await fleet.fired("w") == [2]
        await fleet.until_idle("w")


async def test_hang_reads_and_never_answers_until_the_server_stops() -> None:
    async with workers("w") as fleet:
        await fleet.put("w", kind="hang")
        _, leaving = await fleet.send("w", CHAT, STREAM)
        reader, writer = await fleet.send("w", CHAT, TEN)
        while await fleet.fired("w") != [2]:
            pass
        leaving.close()
        await fleet.until_idle("w")
        assert not reader.at_eof()
    assert await reader.read() == b""
    writer.close()


async def test_slow_answers_in_the_end() -> None:
    async with workers("w") as fleet:
        await fleet.put("w", kind="slow", delay_s=0.01)
        answer = await fleet.ask("w", CHAT, TEN)
        assert answer.json()["usage"]["completion_tokens"] == 10
        assert await fleet.fired("w") == [1]


@pytest.mark.parametrize("body", [TEN, STREAM])
async def test_death_before_the_first_byte(body: Any) -> None:
    async with workers("w") as fleet:
        await fleet.put("w", kind="die_before_first_byte", count=1)
        assert (await fleet.ask("w", CHAT, body)).data == b""
        await fleet.until_idle("w")
        assert (await fleet.ask("w", CHAT, body)).status == 200


@pytest.mark.parametrize("after", [0, 1, 4, 500])
async def test_death_in_a_stream_comes_after_exactly_so_many_tokens(after: int) -> None:
    async with workers("w") as fleet:
        await fleet.put("w", kind="die_after_tokens", after_tokens=after)
        answer = await fleet.ask("w", CHAT, STREAM)
        assert answer.status == 200
        events = sse_data(unchunked(answer.body))
        assert words_of(events) == min(after, 10)
        assert "[DONE]" not in events
        assert not answer.data.endswith(b"0\r\n\r\n")
        await fleet.until_idle("w")


async def test_death_after_some_tokens_of_a_whole_answer_sends_nothing() -> None:
    async with workers("w") as fleet:
        await fleet.put("w", kind="die_after_tokens", after_tokens=3)
        assert (await fleet.ask("w", CHAT, TEN)).data == b""
        await fleet.until_idle("w")


@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/v1/responses"])
async def test_error_event_ends_a_stream_in_its_own_words(path: str) -> None:
    ask = {"model": "tiny-llama", "input": "hi", "max_output_tokens": 10} if path == "/v1/responses" else TEN
    async with workers("w") as fleet:
        await fleet.put("w", kind="error_event", after_tokens=2)
        stream = unchunked((await fleet.ask("w", path, ask | {"stream": True})).body).decode()
        *_, last = [event for event in stream.split("\n\n") if event and event != "data: [DONE]"]
        error = json.loads(last.partition("data: ")[2])
        assert "Internal server error" in last
        assert ("error" in error) if path != "/v1/responses" else error["type"] == "error"
        assert stream.endswith("data: [DONE]\n\n") == (path == CHAT)
        await fleet.until_idle("w")


async def test_error_event_passes_a_whole_answer_by() -> None:
    async with workers("w") as fleet:
        await fleet.put("w", kind="error_event")
        assert (await fleet.ask("w", CHAT, TEN)).status == 200
        assert await fleet.fired("w") == [0]


async def test_wrong_json_has_the_right_length() -> None:
    async with workers("w") as fleet:
        await fleet.put("w", kind="wrong_json")
        answer = await fleet.ask("w", CHAT, TEN)
        assert int(answer.head["content-length"]) == len(answer.body)
        with pytest.raises(json.JSONDecodeError):
            answer.json()


@pytest.mark.parametrize(
    ("kind", "surplus"), [("wrong_content_length", -MISSING_BYTES), ("short_content_length", MISSING_BYTES)]
)
async def test_content_length_differs_from_what_is_sent(kind: str, surplus: int) -> None:
    async with workers("w") as fleet:
        await fleet.put("w", kind=kind)
        answer = await fleet.ask("w", CHAT, TEN)
        assert answer.json()["usage"]["completion_tokens"] == 10
        assert len(answer.body) - int(answer.head["content-length"]) == surplus
        await fleet.until_idle("w")


async def test_garbage_is_no_http() -> None:
    async with workers("w") as fleet:
        await fleet.put("w", kind="garbage")
        assert (await fleet.ask("w", CHAT, TEN)).data == GARBAGE


async def test_drip_sends_the_same_answer_byte_by_byte() -> None:
    async with workers("w") as fleet:
        body = completion(max_tokens=1, stream=True)
        plain = await fleet.ask("w", "/v1/completions", body | {"seed": 1})
        await fleet.put("w", kind="drip", delay_s=1e-6)
        dripped = await fleet.ask("w", "/v1/completions", body | {"seed": 1})
        assert len(unchunked(dripped.body)) == len(unchunked(plain.body))
        assert dripped.body.startswith(b"1\r\nd\r\n1\r\na\r\n1\r\nt\r\n")


async def test_client_that_leaves_a_drip_ends_it() -> None:
    async with workers("w", speed=1) as fleet:
        await fleet.put("w", kind="drip", delay_s=0.001)
        reader, writer = await fleet.send("w", CHAT, chat(max_tokens=100_000, ignore_eos=True, stream=True))
        await reader.readexactly(200)
        writer.close()
        await fleet.until_idle("w")


async def test_no_kv_params_tells_null_and_frees_the_kv() -> None:
    async with workers("w") as fleet:
        await fleet.put("w", kind="no_kv_params", count=1)
        assert (await fleet.ask("w", CHAT, PREFILL)).json()["kv_transfer_params"] is None
        await fleet.until_idle("w")
        assert (await fleet.ask("w", CHAT, PREFILL)).json()["kv_transfer_params"] is not None


async def test_death_between_the_legs_loses_the_kv_of_a_good_prefill() -> None:
    async with workers("p", "d") as fleet:
        await fleet.put("p", kind="die_between_legs", count=1)
        params = (await fleet.ask("p", CHAT, PREFILL)).json()["kv_transfer_params"]
        await fleet.until_idle("p")
        claim = {"request_id": params["remote_request_id"], "engine_id": params["remote_engine_id"]}
        assert (await fleet.ask("p", "/emulator/kv_claim", claim)).data == b""
        remote = RemoteKv(host="127.0.0.1", port=fleet.bound["p"].port, **claim)
        assert await HttpKvPeers().claim(remote) is None
        decode = chat("x" * 4000, max_tokens=5, ignore_eos=True, kv_transfer_params=params)
        assert (await fleet.ask("d", CHAT, decode)).json()["usage"]["completion_tokens"] == 5
        second = (await fleet.ask("p", CHAT, PREFILL)).json()["kv_transfer_params"]
        kept = {"request_id": second["remote_request_id"], "engine_id": second["remote_engine_id"]}
        assert (await fleet.ask("p", "/emulator/kv_claim", kept)).status == 200


async def test_refusal_ends_what_is_open_and_a_sibling_lifts_it() -> None:
    async with workers("a", "b", speed=1) as fleet:
        reader, writer = await fleet.send("a", CHAT, chat(max_tokens=100_000, ignore_eos=True, stream=True))
        await reader.readuntil(b"\r\n\r\n")
        report = (await fleet.ask("b", f"{FAULTS_PATH}?worker=a", {"kind": "refuse"}, method="PUT")).json()
        assert (report["worker"], report["faults"][0]["kind"]) == ("a", "refuse")
        assert not (await reader.read()).endswith(b"0\r\n\r\n")
        writer.close()
        with pytest.raises(ConnectionRefusedError):
            await fleet.ask("a", "/health", method="GET")
        await fleet.ask("b", f"{FAULTS_PATH}?worker=a", method="DELETE")
        assert (await fleet.ask("a", CHAT, TEN)).status == 200
        await fleet.until_idle("a")


async def test_refusal_that_a_worker_is_told_itself_is_confirmed_first() -> None:
    async with workers("a") as fleet:
        report = await fleet.put("a", kind="refuse")
        assert [fault["kind"] for fault in report["faults"]] == ["refuse"]
        with pytest.raises(ConnectionRefusedError):
            await fleet.ask("a", "/health", method="GET")
        await fleet.control.clear("a")
        assert (await fleet.ask("a", "/health", method="GET")).status == 200


async def test_a_route_spares_the_others() -> None:
    async with workers("w") as fleet:
        await fleet.put("w", kind="status", status=503, route="probe")
        assert (await fleet.ask("w", "/health", method="GET")).status == 503
        assert (await fleet.ask("w", CHAT, TEN)).status == 200
        await fleet.put("w", kind="status", status=503, route="prefill")
        assert [(await fleet.ask("w", CHAT, body)).status for body in (TEN, PREFILL)] == [200, 503]
        await fleet.put("w", kind="status", status=503)
        assert (await fleet.ask("w", "/health", method="GET")).status == 200


async def test_clear_turns_every_fault_off() -> None:
    async with workers("w") as fleet:
        await fleet.control.turn_on("w", Fault(kind=FaultKind.GARBAGE))
        await fleet.put("w", kind="slow", delay_s=0.01)
        cleared = await fleet.ask("w", FAULTS_PATH, method="DELETE")
        assert cleared.json() == {"worker": "w", "faults": []}
        assert (await fleet.ask("w", CHAT, TEN)).status == 200


@pytest.mark.parametrize(
    "wrong", [{"kind": "gremlins"}, {"kind": "slow"}, {"kind": "status", "count": 0}, {"kind": "refuse", "count": 1}]
)
async def test_a_fault_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    async with workers("w") as fleet:
        assert (await fleet.ask("w", FAULTS_PATH, wrong, method="PUT")).status == 400
        assert (await fleet.ask("w", f"{FAULTS_PATH}?worker=x", {"kind": "hang"}, method="PUT")).status == 404


async def test_a_fleet_starts_with_its_faults() -> None:
    async with workers("w", faults=[{"kind": "status", "status": 500, "count": 1}]) as fleet:
        assert [(await fleet.ask("w", CHAT, TEN)).status for _ in range(2)] == [500, 200]
    async with workers("w", faults=[{"kind": "refuse"}]) as fleet:
        with pytest.raises(ConnectionRefusedError):
            await fleet.ask("w", "/health", method="GET")


async def test_calls_at_once_share_a_count() -> None:
    async with workers("w") as fleet:
        await fleet.put("w", kind="die_before_first_byte", count=3)
        answers = await asyncio.gather(*(fleet.ask("w", CHAT, TEN) for _ in range(8)))
        assert [answer.data for answer in answers].count(b"") == 3
