"""The gateway put together: it starts, serves, and is taken down again with nothing left behind."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from gateway.app import Gateway, open_gateway
from gateway.core.health import HealthState
from gateway.core.path.rules import AlwaysLocal
from gateway.core.policy import Policy
from gateway.core.types import WorkerId
from gateway.settings import Settings, SettingsError, load_settings
from gateway.telemetry.decisions import read_decision_log
from gateway.wire.journal import CallName, read_pairs
from tests.api.asgi_client import AsgiClient, settle

MODEL = "llama"
CHAT = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "hello"}]}).encode()
NOWHERE = "http://127.0.0.1:9"


def settings(*, url: str = NOWHERE, **sections: Any) -> Settings:
    """One worker that does both; `sections` are merged in."""
    return Settings(workers=[{"id": "w0", "url": url}], **sections)


def probes(healthy: bool = True) -> httpx.MockTransport:
    """Every worker answers its probes, and serves one model."""

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": MODEL, "object": "model"}]})
        return httpx.Response(200 if healthy else 503)

    return httpx.MockTransport(answer)


async def get(gateway: Gateway, path: str) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(gateway.asgi), base_url="http://gw") as client:
        return await client.get(path)


@asynccontextmanager
async def silent_worker() -> AsyncIterator[tuple[str, asyncio.Queue[bytes]]]:
    """A worker that takes requests and never answers: its URL and the first bytes of each."""
    seen: asyncio.Queue[bytes] = asyncio.Queue()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.put_nowait(await reader.read(100))
        await reader.read()
        writer.close()

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", seen


async def test_an_open_gateway_is_ready_and_lists_the_models_of_its_workers() -> None:
    async with open_gateway(settings(), transport=probes()) as gateway:
        assert (await get(gateway, "/readyz")).status_code == 200
        assert [card["id"] for card in (await get(gateway, "/v1/models")).json()["data"]] == [MODEL]


async def test_a_gateway_whose_workers_are_not_known_yet_is_alive_but_not_ready() -> None:
    async with open_gateway(settings(), transport=probes(healthy=False)) as gateway:
        assert (await get(gateway, "/livez")).status_code == 200
        answer = await get(gateway, "/readyz")
        assert answer.status_code == 503
        assert answer.json()["reason"] == "no worker that can serve requests is up"


async def test_a_gateway_whose_only_worker_is_ejected_still_tries_it_and_is_ready() -> None:
    async with open_gateway(settings(), transport=probes()) as gateway:
        worker_id = WorkerId("w0")
        while gateway.router.health.get(worker_id).state is HealthState.CLOSED:
            gateway.router.health.failed(worker_id, 0.0)
        assert (await get(gateway, "/readyz")).status_code == 200


@pytest.mark.parametrize("request_log", [True, False])
async def test_a_line_is_logged_per_request_only_where_it_is_wanted(request_log: bool) -> None:
    with capture_logs() as logs:
        async with open_gateway(settings(telemetry={"request_log": request_log}), transport=probes()) as gateway:
            client = AsgiClient(gateway.asgi).start(b"{bad")
            await client.task
    assert [line["event"] for line in logs].count("request.finished") == request_log


async def test_without_workers_requests_get_503() -> None:
    async with open_gateway(Settings(), transport=probes()) as gateway:
        client = AsgiClient(gateway.asgi).start(CHAT)
        await client.task
        assert client.status == 503


async def test_metrics_show_the_fleet_and_the_policy() -> None:
    async with open_gateway(settings(), transport=probes(), policy=Policy(path=AlwaysLocal())) as gateway:
        text = (await get(gateway, "/metrics")).text
    assert 'tidegate_workers{role="both",state="closed"} 1.0' in text
    assert 'tidegate_worker_inflight_requests{role="both",worker="w0"} 0.0' in text
    assert 'tidegate_policy_info{policy="local",version="built-in"} 1.0' in text


async def test_the_instance_names_the_decisions() -> None:
    async with open_gateway(settings(), transport=probes(), instance="east") as gateway:
        client = AsgiClient(gateway.asgi).start(CHAT)
        await client.task
        assert (client.header(b"x-tidegate-decision-id") or b"").startswith(b"east-")


async def test_gateways_without_a_name_make_different_decision_ids() -> None:
    ids = set()
    for _ in range(2):
        async with open_gateway(settings(), transport=probes()) as gateway:
            client = AsgiClient(gateway.asgi).start(CHAT)
            await client.task
            ids.add(client.header(b"x-tidegate-decision-id"))
    assert len(ids) == 2


async def test_the_body_limit_and_the_session_header_come_from_the_settings() -> None:
    chosen = settings(server={"max_body_bytes": 1024}, routing={"conversation": {"headers": ["x-conversation"]}})
    async with open_gateway(chosen, transport=probes(), instance="gw") as gateway:
        large = AsgiClient(gateway.asgi).start(b"x" * 1025)
        await large.task
        assert large.status == 413
        pinned = AsgiClient(gateway.asgi, headers=[(b"x-conversation", b"1")]).start(CHAT)
        await pinned.task
        decision_id = (pinned.header(b"x-tidegate-decision-id") or b"").decode()
        record = gateway.decisions.get(decision_id)  # type: ignore[arg-type] # a DecisionId is a string
        assert record is not None
        assert record.decision is not None
        assert record.decision.pinned


@pytest.mark.e2e
async def test_a_gateway_with_requests_in_flight_is_taken_down_cleanly() -> None:
    async with AsyncExitStack() as stack:
        url, seen = await stack.enter_async_context(silent_worker())
        gateway = await stack.enter_async_context(open_gateway(settings(url=url), transport=probes()))
        clients = [AsgiClient(gateway.asgi).start(CHAT) for _ in range(3)]
        async with asyncio.timeout(10):
            for _ in clients:
                assert (await seen.get()).startswith(b"POST /v1/chat/completions")
        assert len(gateway.router.ledger) == 3
    for client in clients:
        await client.task
        assert client.status == 503
    assert len(gateway.router.ledger) == 0
    assert gateway.pool.stats().open == 0
    await settle(lambda: asyncio.all_tasks() == {asyncio.current_task()})


async def test_a_closed_gateway_leaves_no_task_and_no_thread(tmp_path: Path) -> None:
    threads = threading.active_count()
    chosen = settings(telemetry={"decision_log": tmp_path / "decisions.jsonl"})
    async with open_gateway(chosen, transport=probes()):
        assert threading.active_count() == threads + 1
    assert threading.active_count() == threads
    await settle(lambda: asyncio.all_tasks() == {asyncio.current_task()})


async def test_every_request_gets_one_line_in_the_decision_log(tmp_path: Path) -> None:
    path = tmp_path / "new" / "decisions.jsonl"
    async with open_gateway(settings(telemetry={"decision_log": path}), transport=probes()) as gateway:
        for body in (CHAT, b"{bad", CHAT.replace(b"llama", b"nobody")):
            client = AsgiClient(gateway.asgi).start(body)
            await client.task
    routed, unread, refused = read_decision_log(path)
    assert routed.decision is not None
    assert (unread.decision, unread.refusal) == (None, None)
    assert refused.refusal is not None


async def test_the_journal_begins_with_its_router_and_holds_every_call(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    chosen = settings(telemetry={"journal": path}, routing={"seed": 7})
    async with open_gateway(chosen, transport=probes(), instance="gw") as gateway:
        client = AsgiClient(gateway.asgi).start(CHAT)
        await client.task
    with path.open("rb") as lines:
        (opened, _), *calls = read_pairs(lines)
    assert opened.name == CallName.OPEN
    assert (opened.details["seed"], opened.details["instance"]) == (7, "gw")
    names = [call.name for call, _ in calls]
    assert names.count(CallName.SUBMIT) == 2  # the worker is not there, and there is no other
    assert {CallName.OBSERVE, CallName.SUBMIT} <= set(names)


async def test_a_journal_is_never_written_over(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b"mine")
    with pytest.raises(FileExistsError):
        async with open_gateway(settings(telemetry={"journal": path}), transport=probes()):
            pass
    assert path.read_bytes() == b"mine"


async def test_a_worker_url_that_is_none_is_a_settings_error_and_leaves_no_journal(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    wrong = settings(url="http://host:99999", telemetry={"journal": path})
    with pytest.raises(SettingsError, match=r"workers\.w0\.url: .*bad port"):
        async with open_gateway(wrong, transport=probes()):
            pass
    assert not path.exists()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"routing": {"decode_weights": {"nonsense": 1.0}}}, "nonsense"),
        ({"routing": {"policy": "learned", "bundle": "/no/such/bundle"}}, "/no/such/bundle"),
    ],
)
async def test_a_policy_that_cannot_be_built_is_a_settings_error(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        async with open_gateway(settings(**wrong), transport=probes()):
            pass


@pytest.mark.parametrize(
    ("override", "field"),
    [
        ("server.port=99999", "server.port"),
        ("routing.policy=magic", "routing.policy"),
        ("upstream.max_attempts=0", "upstream.max_attempts"),
        ("nonsense.field=1", "nonsense"),
    ],
)
def test_a_wrong_setting_is_named(override: str, field: str) -> None:
    with pytest.raises(SettingsError, match=field):
        load_settings(overrides=[override])


async def test_the_clock_is_the_callers(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    times: Callable[[], float] = lambda: 77.0  # noqa: E731
    async with open_gateway(settings(telemetry={"journal": path}), transport=probes(), clock=times):
        pass
    with path.open("rb") as lines:
        assert {call.now_s for call, _ in read_pairs(lines) if call.name != CallName.OPEN} == {77.0}


async def test_a_request_without_a_key_is_refused_recorded_and_counted() -> None:
    keys = {"keys": [{"name": "team", "sha256": "0" * 64}]}
    async with open_gateway(settings(auth=keys), transport=probes()) as gateway:
        transport = httpx.ASGITransport(gateway.asgi)
        async with httpx.AsyncClient(transport=transport, base_url="http://gw") as client:
            answer = await client.post("/v1/chat/completions", content=CHAT, headers={"x-request-id": "mine"})
            page = (await client.get("/metrics")).text
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
    assert answer.headers["x-request-id"] == "mine"
    counted = [
        line for line in page.splitlines() if line.startswith("tidegate_requests_total") and "client_error" in line
    ]
    assert sum(float(line.split()[-1]) for line in counted) == 1.0
