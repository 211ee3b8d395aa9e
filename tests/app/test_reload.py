"""Reading the settings anew: all of it, or nothing."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from gateway.api.admin import RestartNeeded
from gateway.api.auth import key_hash
from gateway.app import Gateway, open_gateway
from gateway.core.types import WorkerId
from gateway.reload import changed_fields, is_reloadable
from gateway.settings import Settings, SettingsError, load_settings
from gateway.settings_routing import RoutingSettings
from gateway.wire.journal import CallName, read_pairs
from loadtest.replay import replay
from tests.api.asgi_client import AsgiClient
from tests.core.factories import facts, routed

W0 = WorkerId("w0")
LONG_CHAT = json.dumps({"model": "llama", "messages": [{"role": "user", "content": "hello " * 5000}]}).encode()


def worker(name: str, **fields: Any) -> dict[str, Any]:
    return {"id": name, "url": f"http://127.0.0.1:9/{name}", "models": ["llama"], **fields}


class File:
    """A settings file that a test rewrites."""

    def __init__(self, path: Path, **tree: Any) -> None:
        self.path = path
        self.tree: dict[str, Any] = {"workers": [worker("w0")], **tree}
        self.put()

    def put(self, **sections: Any) -> None:
        """Change some sections; None takes one away."""
        self.tree = {name: section for name, section in (self.tree | sections).items() if section is not None}
        self.path.write_text(yaml.safe_dump(self.tree))

    def read(self) -> Settings:
        return load_settings(self.path, overrides=["slo.objective=0.9"])


@pytest.fixture
def file(tmp_path: Path) -> File:
    return File(tmp_path / "tidegate.yaml")


@asynccontextmanager
async def gateway_of(file: File) -> AsyncIterator[Gateway]:
    transport = httpx.MockTransport(
        lambda request: httpx.Response(200 if request.url.path.endswith("/health") else 404)
    )
    async with open_gateway(file.read(), reread=file.read, transport=transport, instance="gw") as gateway:
        yield gateway


def hold(gateway: Gateway) -> Any:
    return routed(gateway.router.submit(facts("held", model="llama"), 0.0)).decision_id


async def test_an_unchanged_file_changes_nothing(file: File) -> None:
    async with gateway_of(file) as gateway:
        policy = gateway.router.policy
        reloaded = await gateway.reloader.reload()
        assert (reloaded.changed, reloaded.workers_put, reloaded.workers_removed) == ([], [], [])
        assert gateway.router.policy is policy


async def test_every_section_that_may_change_does_and_is_reported(file: File) -> None:
    file.put(sidecar={"allow": ["192.168.0.0/16"]})
    async with gateway_of(file) as gateway:
        file.put(
            routing={"policy": "local", "conversation": {"headers": ["x-conversation"]}},
            health={"open_s": 3.0},
            slo={"default": {"ttft_s": 1.0}},
            fleet={"sample_max_age_s": 5.0},
            aliases={"gpt": "llama"},
            auth={"keys": [{"name": "app", "sha256": key_hash("app")}]},
            sidecar={"allow": ["10.0.0.0/8"]},
            upstream={"api_key": "sk-worker"},
            workers=[worker("w0"), worker("w1")],
        )
        reloaded = await gateway.reloader.reload()
        assert set(reloaded.changed) == {
            "routing.policy",
            "routing.conversation.headers",
            "health.open_s",
            "slo.default.ttft_s",
            "fleet.sample_max_age_s",
            "aliases.gpt",
            "auth.keys",
            "sidecar.allow",
            "upstream.api_key",
            "workers",
        }
        router, live = gateway.router, gateway.live
        assert router.policy.path.name == "local"
        assert (router.health.policy.open_s, router.policy.slo.default.ttft_s) == (3.0, 1.0)
        assert (router.fleet.sample_max_age_s, router.slo.objective) == (5.0, 0.9)
        assert live.conversation_names is not None
        assert (live.aliases, live.conversation_names.headers) == ({"gpt": "llama"}, ("x-conversation",))
        assert live.upstream_authorization == b"Bearer sk-worker"
        assert live.keyring.authenticate(b"Bearer app", None) is not None
        assert gateway.registry.offer("10.0.0.7:8000") is not None
        assert WorkerId("w1") in gateway.registry.members


async def test_workers_of_the_file_join_change_and_leave(file: File) -> None:
    file.put(workers=[worker("w0"), worker("w1"), worker("w2")])
    async with gateway_of(file) as gateway:
        decision_id = hold(gateway)
        held = gateway.router.ledger.get(decision_id)
        assert held is not None
        busy = held.decision.decode_worker
        others = [name for name in ("w0", "w1", "w2") if name != busy]
        moved = worker(busy, url="http://127.0.0.1:9/moved")
        changed = worker(others[0], max_batched_tokens=512)
        file.put(workers=[moved, changed, worker("w3")])
        reloaded = await gateway.reloader.reload()
        assert (reloaded.workers_put, reloaded.workers_removed) == ([busy, others[0], "w3"], [others[1]])
        assert gateway.router.fleet[WorkerId(others[0])].spec.max_batched_tokens == 512
        assert WorkerId(others[1]) not in gateway.registry.members
        assert str(gateway.registry.origins[busy]).endswith(busy)
        gateway.router.abort(decision_id, 1.0)
        gateway.registry.settle()
        assert str(gateway.registry.origins[busy]).endswith("moved")


async def test_endpoints_are_workers_of_a_reload_too(file: File) -> None:
    async with gateway_of(file) as gateway:
        graph = {"id": "graph", "models": ["m"], "local_url": "http://a", "remote_url": "http://b"}
        file.put(endpoints=[graph])
        assert (await gateway.reloader.reload()).workers_put == ["graph"]
        file.put(endpoints=[graph | {"remote_url": "http://c"}])
        await gateway.reloader.reload()
        assert str(gateway.registry.remote_origins[WorkerId("graph")]) == "http://c"


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"routing": {"policy": "magic"}}, "routing.policy"),
        ({"routing": {"policy": "learned", "bundle": "/no/such"}}, "/no/such"),
        ({"workers": [worker("w0", url="http://h:99999")]}, "workers.w0.url"),
        ({"sidecar": {"allow": ["10.0.0.1/8"]}}, "sidecar.allow"),
        ({"nonsense": {}}, "nonsense"),
    ],
)
async def test_a_file_with_a_mistake_changes_nothing(file: File, sections: dict[str, Any], words: str) -> None:
    async with gateway_of(file) as gateway:
        policy, settings = gateway.router.policy, gateway.reloader.settings
        file.put(aliases={"gpt": "llama"}, health={"open_s": 1.0}, **sections)
        with pytest.raises(SettingsError, match=words):
            await gateway.reloader.reload()
        assert gateway.router.policy is policy
        assert gateway.reloader.settings is settings
        assert gateway.live.aliases == {}
        assert list(gateway.registry.members) == ["w0"]


async def test_a_file_that_is_gone_changes_nothing(file: File) -> None:
    async with gateway_of(file) as gateway:
        file.path.unlink()
        with pytest.raises(SettingsError, match="cannot read"):
            await gateway.reloader.reload()
        assert list(gateway.registry.members) == ["w0"]


async def test_what_needs_a_restart_is_named_and_nothing_else_is_done_meanwhile(file: File) -> None:
    async with gateway_of(file) as gateway:
        file.put(
            server={"port": 9},
            upstream={"max_attempts": 1, "decode": {"connect_timeout_s": 9.0}},
            sidecar={"max_prefillers": 3},
            routing={"seed": 7},
            aliases={"gpt": "llama"},
        )
        with pytest.raises(RestartNeeded) as refused:
            await gateway.reloader.reload()
        assert set(refused.value.fields) == {
            "server.port",
            "upstream.max_attempts",
            "upstream.decode.connect_timeout_s",
            "sidecar.max_prefillers",
            "routing.seed",
        }
        assert gateway.live.aliases == {}


async def test_the_sidecar_mode_is_switched_by_a_restart_alone(file: File) -> None:
    async with gateway_of(file) as gateway:
        file.put(sidecar={"allow": ["10.0.0.0/8"]})
        with pytest.raises(RestartNeeded, match=r"sidecar\.allow"):
            await gateway.reloader.reload()


async def test_taking_all_keys_away_does_not_open_the_admin_application_to_others(file: File) -> None:
    file.put(admin={"host": "0.0.0.0"}, auth={"keys": [{"name": "a", "sha256": key_hash("a")}]})
    async with gateway_of(file) as gateway:
        file.put(auth=None)
        with pytest.raises(SettingsError, match=r"admin\.host"):
            await gateway.reloader.reload()
        assert gateway.live.keyring


async def test_what_an_operator_did_stays_unless_the_file_changed_it(file: File) -> None:
    async with gateway_of(file) as gateway:
        await gateway.reloader.put_routing(RoutingSettings(policy="remote", seed=9))
        gateway.registry.drain(W0)
        file.put(health={"open_s": 3.0})
        await gateway.reloader.reload()
        assert gateway.router.policy.path.name == "remote"
        assert gateway.router.health.policy.open_s == 3.0
        assert gateway.reloader.settings.routing.seed == 0
        assert gateway.registry.is_draining(W0)
        file.put(routing={"policy": "local"})
        await gateway.reloader.reload()
        assert gateway.router.policy.path.name == "local"


async def test_a_reload_by_the_admin_application_answers_what_changed_or_why_not(file: File) -> None:
    async with (
        gateway_of(file) as gateway,
        httpx.AsyncClient(transport=httpx.ASGITransport(gateway.admin), base_url="http://localhost") as client,
    ):
        file.put(routing={"policy": "local"})
        answer = await client.post("/settings/reload")
        assert (answer.status_code, answer.json()["changed"]) == (200, ["routing.policy"])
        file.put(server={"port": 9})
        answer = await client.post("/settings/reload")
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "restart_needed")
        assert "server.port" in answer.json()["error"]["message"]
        file.put(server=None, routing={"policy": "magic"})
        answer = await client.post("/settings/reload")
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_settings")


async def test_a_policy_swap_is_in_the_journal_and_its_replay_decides_the_same(file: File, tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    file.put(telemetry={"journal": str(journal)}, workers=[worker("w0"), worker("p0", role="prefill")])
    policies = ("remote", "local", "remote")
    async with gateway_of(file) as gateway:
        for policy in policies:
            file.put(routing={"policy": policy})
            await gateway.reloader.reload()
            await AsgiClient(gateway.asgi).start(LONG_CHAT).task
    with journal.open("rb") as lines:
        calls = list(read_pairs(lines))
    assert sum(call.name == CallName.ADOPT for call, _ in calls) == 3
    answers = [json.loads(answer) for call, answer in calls if call.name == CallName.SUBMIT]
    first_tries = [answer["policy"] for answer in answers if answer.get("attempt") == 1]
    assert first_tries == list(policies)
    assert replay(journal).mismatches == []


def test_a_list_counts_as_one_field_and_a_mapping_by_its_keys() -> None:
    before = Settings(aliases={"a": "x", "b": "y"})
    after = Settings(aliases={"a": "z", "c": "y"}, workers=[worker("w0")])
    assert set(changed_fields(before, after)) == {"workers", "aliases.a", "aliases.b", "aliases.c"}


@pytest.mark.parametrize(
    ("name", "reloadable"),
    [
        ("routing.dynamo.eff_isl_threshold", True),
        ("routing.seed", False),
        ("fleet.sample_max_age_s", True),
        ("fleet.probe_interval_s", False),
        ("upstream.api_key", True),
        ("upstream.max_attempts", False),
        ("telemetry.log_level", False),
        ("admin.port", False),
        ("sidecar.allow", True),
        ("sidecar.header", False),
    ],
)
def test_what_may_change_is_a_closed_list(name: str, reloadable: bool) -> None:
    assert is_reloadable(name) is reloadable
