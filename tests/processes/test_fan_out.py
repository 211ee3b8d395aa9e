"""The admin application of several processes, in front of played ones."""

import json
from typing import Any

import httpx

from gateway.commands.processes.changes import Added, Routed
from gateway.commands.processes.fan_out import FanOut
from gateway.commands.processes.identity import INNER
from gateway.commands.processes.siblings import Answer
from gateway.wire.errors import ApiError
from tests.api.asgi_client import AsgiClient
from tests.processes.processes_lab import Lab, is_silent, says

W1 = {"id": "w1", "url": "http://a:1"}


def body_of(answer: Answer | ApiError) -> Any:
    assert isinstance(answer, Answer), answer
    return json.loads(answer.body)


def status_of(answer: Answer | ApiError) -> int:
    return answer.status


# -- views -----------------------------------------------------------------------------------------------------------


async def test_a_view_comes_from_the_first_that_answers() -> None:
    lab = Lab(is_silent, says(200, "settings"), says(200, "never asked"))
    assert body_of(await lab.call("GET", "/settings?x=1")) == "settings"
    assert lab.calls == [["GET /settings?x=1"], ["GET /settings?x=1"], []]


async def test_workers_are_shown_with_what_all_have_in_flight() -> None:
    def worker(name: str, requests: int, tokens: int, state: str) -> dict[str, Any]:
        return {"id": name, "inflight_requests": requests, "inflight_tokens": tokens, "state": state}

    one = [worker("a", 1, 100, "closed"), worker("b", 0, 0, "closed")]
    two = [worker("b", 2, 20, "open"), worker("c", 9, 9, "closed")]
    lab = Lab(says(200, one), says(200, two))
    assert body_of(await lab.call("GET", "/workers")) == [worker("a", 1, 100, "closed"), worker("b", 2, 20, "closed")]


async def test_the_newest_decisions_are_those_of_all() -> None:
    def record(name: str, arrived_at_s: float, duration_s: float = 1.0) -> dict[str, Any]:
        return {"name": name, "arrived_at_s": arrived_at_s, "outcome": {"duration_s": duration_s}}

    one = {"data": [record("a", 5.0), record("b", 3.0)]}
    two = {"data": [record("c", 1.0, 4.5), record("d", 2.0)]}
    lab = Lab(says(200, one), says(200, two))
    shown = body_of(await lab.call("GET", "/decisions"))["data"]
    assert [each["name"] for each in shown] == ["a", "c", "b", "d"]
    assert shown[0] == one["data"][0]
    assert len(body_of(await lab.call("GET", "/decisions?limit=2"))["data"]) == 2


async def test_a_decision_comes_from_whoever_made_it() -> None:
    lab = Lab(says(404, {"error": 1}), says(200, {"found": 1}), is_silent)
    assert body_of(await lab.call("GET", "/decisions/x")) == {"found": 1}
    assert status_of(await Lab(says(404), says(404)).call("GET", "/decisions/x")) == 404


async def test_a_view_that_is_refused_is_refused() -> None:
    for path in ("/workers", "/decisions", "/decisions/x", "/settings"):
        assert status_of(await Lab(says(401), says(401)).call("GET", path)) == 401


# -- changes ---------------------------------------------------------------------------------------------------------


async def test_a_change_reaches_all_with_what_the_client_sent_and_the_worst_answer_counts() -> None:
    lab = Lab(says(202, "draining"), says(200, "removed"))
    answer = await lab.call("DELETE", "/workers/a%2Fb?force=true", authorization="Bearer key", host="admin:1")
    assert (answer.status, body_of(answer)) == (202, "draining")
    assert lab.calls == [["DELETE /workers/a%2Fb?force=true"]] * 2
    assert {
        (process.asked[0].headers["authorization"], process.asked[0].headers["host"]) for process in lab.processes
    } == {("Bearer key", "admin:1")}


async def test_what_one_refuses_is_refused_and_is_still_told_to_those_that_begin_later() -> None:
    lab = Lab(says(409, "exists"), says(201, W1))
    assert status_of(await lab.call("POST", "/workers", W1)) == 409
    assert lab.fan_out.changes.all() == [Added(W1)]


async def test_what_all_refuse_is_not_noted() -> None:
    lab = Lab(says(401), says(401))
    assert status_of(await lab.call("POST", "/workers", W1)) == 401
    assert lab.fan_out.changes.all() == []


async def test_one_that_is_silent_is_named() -> None:
    answer = await Lab(says(201, W1), is_silent).call("POST", "/workers", W1)
    assert isinstance(answer, ApiError)
    assert (answer.status, answer.code) == (503, "process_silent")
    assert answer.message.endswith("change: 1.")


async def test_one_that_dies_meanwhile_is_not_missed() -> None:
    def dies(_: httpx.Request) -> httpx.Response:
        lab.siblings.ended(1)
        raise httpx.ReadError("gone")

    lab = Lab(says(201, W1), dies)
    assert status_of(await lab.call("POST", "/workers", W1)) == 201


async def test_nobody_is_there() -> None:
    for method, path in (("GET", "/workers"), ("GET", "/settings"), ("POST", "/workers"), ("POST", "/policy/off")):
        answer = await Lab().call(method, path, W1)
        assert isinstance(answer, ApiError)
        assert answer.code == "no_process"


async def test_a_store_is_moved_once_and_the_others_follow() -> None:
    lab = Lab(says(200, "moved"), says(200), says(200))
    assert body_of(await lab.call("POST", "/policy/rollback")) == "moved"
    assert lab.calls == [["POST /policy/rollback"], ["*POST /follow"], ["*POST /follow"]]
    lab = Lab(says(409), says(200))
    assert status_of(await lab.call("POST", "/policy/rollback")) == 409
    assert lab.calls == [["POST /policy/rollback"], []]


async def test_another_routing_counts_processes_as_replicas_and_what_is_none_is_passed_on() -> None:
    lab = Lab(says(200, {}), says(200, {}))
    await lab.call("PUT", "/policy", {"policy": "local"})
    assert [json.loads(process.asked[0].content) for process in lab.processes] == [
        {"policy": "local", "replicas": 2}
    ] * 2
    assert lab.fan_out.changes.all() == [Routed({"policy": "local", "replicas": 2})]
    lab = Lab(says(400), says(400))
    assert status_of(await lab.call("PUT", "/policy", [1])) == 400
    assert json.loads(lab.processes[0].asked[0].content) == [1]


# -- reloads ---------------------------------------------------------------------------------------------------------

RELOADED = {"changed": ["workers"], "workers_put": ["w1"], "workers_removed": [], "policy_version": "1"}


async def test_a_reload_is_counted_and_what_it_took_over_is_forgotten() -> None:
    def well(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json=RELOADED if request.url.path == "/settings/reload" else W1)

    lab = Lab(well, well)
    await lab.call("POST", "/workers", W1)
    assert body_of(await lab.call("POST", "/settings/reload")) == RELOADED
    assert (lab.fan_out.changes.all(), lab.fan_out.reloads, lab.copies) == ([], 1, 1)


async def test_settings_that_are_refused_are_not_those_of_a_new_process() -> None:
    for answers in ((says(400), says(400)), (says(200, RELOADED), says(400))):
        lab = Lab(*answers)
        assert status_of(await lab.call("POST", "/settings/reload")) == 400
        assert lab.copies == 0
    assert (await refused_reload()).reloads == 0


async def refused_reload() -> FanOut:
    """Of a caller that may not: no process that begins later is to reload either."""
    lab = Lab(says(401), says(401))
    await lab.call("POST", "/settings/reload")
    return lab.fan_out


async def test_a_signal_that_comes_before_any_process_is_for_those_on_their_way() -> None:
    lab = Lab()
    await lab.fan_out.reload()
    assert (lab.fan_out.reloads, lab.copies) == (1, 0)


async def test_a_signal_reloads_all_in_the_parents_name() -> None:
    lab = Lab(says(200, RELOADED), says(200, RELOADED))
    await lab.fan_out.reload()
    assert lab.calls == [["*POST /reload"]] * 2
    assert (lab.fan_out.reloads, lab.copies) == (1, 1)


# -- as an application -----------------------------------------------------------------------------------------------


async def asked(lab: Lab, path: str, *headers: tuple[bytes, bytes], body: bytes = b"", **options: Any) -> AsgiClient:
    client = AsgiClient(lab.fan_out, path, headers=headers, **options).start(body)
    await client.task
    return client


async def test_a_client_cannot_speak_in_the_parents_name() -> None:
    lab = Lab(says(200, {}))
    await asked(lab, "/reload", (INNER.encode(), b"1"), (INNER.upper().encode(), b"1"))
    assert lab.calls == [["POST /reload"]]


async def test_an_answer_keeps_its_headers_but_those_of_the_connection() -> None:
    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(401, headers={"www-authenticate": "Bearer", "connection": "close"}, json={"error": 1})

    lab = Lab(answer)
    client = await asked(lab, "/settings", method="GET")
    head, content = client.sent
    assert head["status"] == 401
    names = {name for name, _ in head["headers"]}
    assert names == {b"www-authenticate", b"content-type", b"content-length"}
    assert json.loads(content["body"]) == {"error": 1}


async def test_a_body_that_is_too_large_goes_nowhere() -> None:
    lab = Lab(says(200, {}))
    client = await asked(lab, "/workers", (b"content-length", b"%d" % 2**30), (b"expect", b"100-continue"))
    assert client.sent[0]["status"] == 413
    assert lab.calls == [[]]
