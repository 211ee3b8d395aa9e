"""The admin application in front of a whole gateway with silent workers."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from gateway.api.auth import key_hash
from gateway.app import Gateway, open_gateway
from gateway.core.types import WorkerId
from gateway.settings import Settings, SettingsError
from tests.api.asgi_client import AsgiClient, settle
from tests.core.factories import facts, routed

MODEL = "llama"
CHAT = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "hello"}]}).encode()
W0 = WorkerId("w0")
HOME = "http://localhost:8081"


def worker(name: str = "w0", **fields: Any) -> dict[str, Any]:
    return {"id": name, "url": "http://127.0.0.1:9", "models": [MODEL], **fields}


def well(request: httpx.Request) -> httpx.Response:
    """Every probe is answered, with no metrics and no models."""
    return httpx.Response(200 if request.url.path == "/health" else 404)


@asynccontextmanager
async def admin(
    *, base_url: str = HOME, headers: dict[str, str] | None = None, **sections: Any
) -> AsyncIterator[tuple[Gateway, httpx.AsyncClient]]:
    tree = {"workers": [worker()], **sections}
    async with (
        open_gateway(Settings(**tree), transport=httpx.MockTransport(well), instance="gw") as gateway,
        httpx.AsyncClient(transport=httpx.ASGITransport(gateway.admin), base_url=base_url, headers=headers) as client,
    ):
        yield gateway, client


def hold(gateway: Gateway) -> str:
    """Take a reservation at w0, as a request in flight does: its decision id."""
    return routed(gateway.router.submit(facts("held", model=MODEL), 0.0)).decision_id


def keys(**scopes: list[str]) -> dict[str, Any]:
    return {"keys": [{"name": name, "sha256": key_hash(name), "scopes": opens} for name, opens in scopes.items()]}


# -- workers ---------------------------------------------------------------------------------------------------------


async def test_workers_are_shown_as_configured_and_as_they_are() -> None:
    async with admin(workers=[worker(), worker("w1", models=None, role="prefill")]) as (_, client):
        known, unknown = (await client.get("/workers")).json()
    assert known == {
        "id": "w0",
        "url": "http://127.0.0.1:9",
        "remote_url": None,
        "role": "both",
        "models": [MODEL],
        "named_by_requests": False,
        "kv_block_tokens": None,
        "kv_total_blocks": None,
        "max_batched_tokens": None,
        "caches_prefixes": True,
        "state": "closed",
        "breaker": "closed",
        "draining": False,
        "inflight_requests": 0,
        "inflight_tokens": 0,
        "queue_depth": None,
        "kv_used_ratio": None,
        "sample_age_s": None,
    }
    assert (unknown["models"], unknown["state"], unknown["breaker"]) == (None, "unknown", None)


async def test_a_worker_that_is_added_takes_requests() -> None:
    async with admin(workers=[]) as (gateway, client):
        answer = await client.post("/workers", json=worker("new", url="http://127.0.0.1:9/base"))
        assert (answer.status_code, answer.json()["id"]) == (201, "new")
        assert [state.spec.worker_id for state in gateway.router.fleet] == ["new"]
        assert str(gateway.registry.origins[WorkerId("new")]) == "http://127.0.0.1:9/base"
        again = await client.post("/workers", json=worker("new"))
        assert (again.status_code, again.json()["error"]["code"]) == (409, "worker_exists")


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"id": "x"}, "url", "Field required"),
        (worker("../etc"), "id", "match pattern"),
        (worker(nonsense=1), "nonsense", "not permitted"),
        (worker(url="http://host:99999"), None, "workers.w0.url"),
    ],
)
async def test_a_worker_that_is_none_is_refused_by_its_field(body: dict[str, Any], param: str, words: str) -> None:
    async with admin(workers=[]) as (gateway, client):
        answer = await client.post("/workers", json=body)
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        assert error["param"] == param
        assert words in error["message"]
        assert gateway.registry.members == {}


async def test_a_drained_worker_gets_nothing_new_and_stays() -> None:
    async with admin() as (gateway, client):
        answer = await client.post("/workers/w0/drain")
        assert (answer.status_code, answer.json()["state"], answer.json()["breaker"]) == (200, "draining", "closed")
        request = AsgiClient(gateway.asgi).start(CHAT)
        await request.task
        assert request.status == 503


async def test_a_busy_worker_leaves_when_its_last_request_ends() -> None:
    async with admin() as (gateway, client):
        decision_id = hold(gateway)
        answer = await client.delete("/workers/w0")
        assert (answer.status_code, answer.json()) == (202, {"id": "w0", "status": "draining"})
        assert (await client.get("/workers")).json()[0]["inflight_requests"] == 1
        gateway.router.abort(decision_id, 1.0)  # type: ignore[arg-type] # a DecisionId is a string
        gateway.registry.settle()
        assert (await client.get("/workers")).json() == []


async def test_an_idle_worker_leaves_at_once_and_a_busy_one_by_force() -> None:
    async with admin(workers=[worker(), worker("w1")]) as (gateway, client):
        hold(gateway)
        busy = next(each["id"] for each in (await client.get("/workers")).json() if each["inflight_requests"])
        idle = "w1" if busy == "w0" else "w0"
        assert (await client.delete(f"/workers/{idle}")).json()["status"] == "removed"
        assert (await client.delete(f"/workers/{busy}", params={"force": True})).json()["status"] == "removed"
        assert len(gateway.router.fleet) == 0


@pytest.mark.parametrize(("method", "path"), [("POST", "/workers/nobody/drain"), ("DELETE", "/workers/nobody")])
async def test_an_unknown_worker_is_404(method: str, path: str) -> None:
    async with admin() as (_, client):
        answer = await client.request(method, path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "worker_not_found")


# -- policy and settings ---------------------------------------------------------------------------------------------


async def test_a_policy_is_swapped_while_requests_are_in_flight() -> None:
    async with admin() as (gateway, client):
        hold(gateway)
        assert (await client.get("/policy")).json()["name"] == "dynamo"
        answer = await client.put("/policy", json={"policy": "local", "conversation": {"headers": ["x-conversation"]}})
        assert (answer.status_code, answer.json()["name"]) == (200, "local")
        assert answer.json()["description"]["routing"]["policy"] == "local"
        assert gateway.router.policy.path.name == "local"
        assert gateway.live.conversation_names is not None
        assert gateway.live.conversation_names.headers == ("x-conversation",)
        assert (await client.get("/settings")).json()["routing"]["policy"] == "local"
        assert len(gateway.router.ledger) == 1


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        ({"policy": "magic"}, "invalid_value", "policy"),
        ({"policy": "learned"}, "invalid_value", "needs bundle or store"),
        ({"policy": "learned", "bundle": "/no/such/bundle"}, "invalid_settings", "/no/such/bundle"),
        ({"policy": "learned", "store": "/no/such/store"}, "invalid_settings", "/no/such/store"),
        ({"decode_weights": {"nonsense": 1.0}}, "invalid_settings", "nonsense"),
    ],
)
async def test_a_policy_that_cannot_be_built_changes_nothing(body: dict[str, Any], code: str, words: str) -> None:
    async with admin() as (gateway, client):
        before = gateway.router.policy
        answer = await client.put("/policy", json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)
        assert words in answer.json()["error"]["message"]
        assert gateway.router.policy is before
        assert (await client.get("/policy")).json()["name"] == "dynamo"


async def test_the_settings_are_shown_without_secrets() -> None:
    sections = {"upstream": {"api_key": "sk-secret"}, "auth": keys(ops=["admin"])}
    async with admin(headers={"authorization": "Bearer ops"}, **sections) as (_, client):
        text = (await client.get("/settings")).text
    assert "sk-secret" not in text
    assert key_hash("ops") not in text
    assert json.loads(text)["auth"]["keys"][0]["sha256"] == f"{key_hash('ops')[:8]}..."


# -- decisions -------------------------------------------------------------------------------------------------------


async def test_decisions_are_listed_newest_first_and_explained() -> None:
    async with admin(upstream={"max_attempts": 1}) as (gateway, client):
        for _ in range(3):
            await AsgiClient(gateway.asgi).start(CHAT).task
        listed = (await client.get("/decisions", params={"limit": 2})).json()["data"]
        assert [record["decision"]["decision_id"] for record in listed] == ["gw-3", "gw-2"]
        record = (await client.get("/decisions/gw-1")).json()
    assert record["decision"]["decode_worker"] == "w0"
    words = record["explanation"]
    assert words.startswith("The path was local: decode on w0. Policy dynamo (built-in) chose it because ")
    assert "Decode scores: w0 " in words
    assert "It ended upstream_error with status 502" in words


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/decisions/gw-99", 404, "decision_not_found"),
        ("/decisions?limit=0", 400, "invalid_value"),
        ("/decisions?limit=many", 400, "invalid_value"),
        ("/nowhere", 404, "unknown_url"),
    ],
)
async def test_what_is_not_there_is_said_in_openais_shape(path: str, status: int, code: str) -> None:
    async with admin() as (_, client):
        answer = await client.get(path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


async def test_the_application_describes_itself() -> None:
    async with admin() as (_, client):
        paths = (await client.get("/openapi.json")).json()["paths"]
        assert {"/workers", "/workers/{worker_id}/drain", "/policy", "/settings/reload", "/decisions"} <= paths.keys()
        assert (await client.get("/docs")).status_code == 200


# -- who may call ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("key", "status"), [("ops", 200), ("app", 403), ("wrong", 401)])
async def test_with_keys_the_admin_application_needs_one_of_its_own(key: str, status: int) -> None:
    sections = {"auth": keys(ops=["admin"], app=["data"]), "admin": {"host": "0.0.0.0"}}
    async with admin(base_url="http://gateway", headers={"x-api-key": key}, **sections) as (_, client):
        assert (await client.get("/workers")).status_code == status


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "gateway"])
async def test_without_keys_it_is_not_opened_to_others(host: str) -> None:
    with pytest.raises(SettingsError, match=r"admin\.host"):
        async with admin(admin={"host": host}):
            pass
    async with admin(admin={"host": host, "port": None}):
        pass


@pytest.mark.parametrize(
    ("base_url", "headers", "status"),
    [
        ("http://127.0.0.1:8081", {}, 200),
        ("http://[::1]:8081", {}, 200),
        (HOME, {"origin": HOME}, 200),
        (HOME, {"origin": "http://evil.example"}, 403),
        (HOME, {"origin": "null"}, 403),
        (HOME, {"origin": "http://localhost:3000"}, 403),
        ("http://rebound.example:8081", {}, 403),
        (HOME, {"host": ""}, 403),
        (HOME, {"host": "[::1"}, 403),
    ],
)
async def test_without_keys_no_web_page_gets_through(base_url: str, headers: dict[str, str], status: int) -> None:
    async with admin(base_url=base_url, headers=headers) as (gateway, client):
        assert (await client.post("/workers/w0/drain")).status_code == status
        assert gateway.registry.is_draining(W0) is (status == 200)


async def test_with_keys_the_data_routes_need_one_and_probes_do_not() -> None:
    async with admin(auth=keys(app=["data"])) as (gateway, _):
        transport = httpx.ASGITransport(gateway.asgi)
        async with httpx.AsyncClient(transport=transport, base_url="http://gw") as client:
            assert (await client.get("/v1/models")).status_code == 401
            assert (await client.get("/v1/models", headers={"authorization": "Bearer app"})).status_code == 200
            assert (await client.get("/readyz")).status_code == 200
        refused = AsgiClient(gateway.asgi).start(CHAT)
        await refused.task
        assert refused.status == 401
        assert len(gateway.router.ledger) == 0


async def test_readiness_says_that_the_gateway_drains() -> None:
    async with admin() as (gateway, _):
        gateway.live.draining = True
        async with httpx.AsyncClient(transport=httpx.ASGITransport(gateway.asgi), base_url="http://gw") as client:
            answer = await client.get("/readyz")
            assert (answer.status_code, answer.json()["reason"]) == (503, "draining")
            assert (await client.get("/livez")).status_code == 200
    await settle(lambda: asyncio.all_tasks() == {asyncio.current_task()})
