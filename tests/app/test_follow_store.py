"""Following a policy store: a good bundle takes over between two requests; a bad one is refused, the old serves on."""

import asyncio
import json
import shutil
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from structlog.testing import capture_logs

from gateway.api.auth import key_hash
from gateway.app import Gateway, open_gateway
from gateway.reload import keep_following
from gateway.settings import SettingsError, load_settings
from gateway.settings_routing import RoutingSettings
from gateway.wire.journal import CallName, read_pairs
from loadtest.replay import replay
from policy_store.bundle import PATH_PART, Bundle
from policy_store.faults import BundleFault
from policy_store.store import FileStore
from tests.api.asgi_client import AsgiClient
from tests.core.factories import facts, routed
from tests.policy_store.bundle_factories import always, forge

LOCAL, REMOTE = always("local"), always("remote")
OTHER = always("remote", provenance={"learned": "later"})
LONG_CHAT = json.dumps({"model": "llama", "messages": [{"role": "user", "content": "hello " * 5000}]}).encode()


def worker(name: str, **fields: Any) -> dict[str, Any]:
    return {"id": name, "url": f"http://127.0.0.1:9/{name}", "models": ["llama"], **fields}


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    """Three bundles; nothing is active."""
    opened = FileStore(tmp_path / "store")
    for each in (LOCAL, REMOTE, OTHER):
        opened.add(each)
    return opened


class Following:
    """A gateway that follows a store, looked at when the test says so."""

    def __init__(self, gateway: Gateway, admin: httpx.AsyncClient, file: Path) -> None:
        self.gateway = gateway
        self.admin = admin
        self.file = file

    @property
    def version(self) -> str:
        """Of the policy that decides."""
        return self.gateway.router.policy.version

    async def look(self) -> str:
        """One look at the store, and the version that decides then."""
        await self.gateway.reloader.follow_store()
        return self.version

    async def refusals(self) -> dict[str, float]:
        """How often bundles were refused, by reason; without those that never were."""
        transport = httpx.ASGITransport(self.gateway.asgi)
        async with httpx.AsyncClient(transport=transport, base_url="http://gw") as client:
            lines = (await client.get("/metrics")).text.splitlines()
        counted = [line.split() for line in lines if line.startswith("tidegate_policy_refused_total")]
        assert len(counted) == len(BundleFault)
        return {name.split('"')[1]: float(value) for name, value in counted if float(value)}

    def put(self, **changes: Any) -> None:
        """Change the settings file."""
        self.file.write_text(yaml.safe_dump(yaml.safe_load(self.file.read_text()) | changes))


@asynccontextmanager
async def following(
    store: FileStore, *, headers: dict[str, str] | None = None, **sections: Any
) -> AsyncIterator[Following]:
    file = store.root.parent / "tidegate.yaml"
    routing = {"policy": "learned", "store": str(store.root), "store_poll_s": 3600}
    tree = {"workers": [worker("w0"), worker("p0", role="prefill")], "routing": routing, **sections}
    file.write_text(yaml.safe_dump(tree))

    def read() -> Any:
        return load_settings(file)

    transport = httpx.MockTransport(lambda asked: httpx.Response(200 if asked.url.path.endswith("/health") else 404))
    async with (
        open_gateway(read(), reread=read, transport=transport, instance="gw") as gateway,
        httpx.AsyncClient(
            transport=httpx.ASGITransport(gateway.admin), base_url="http://localhost", headers=headers
        ) as admin,
    ):
        yield Following(gateway, admin, file)


def truncate(directory: Path) -> None:
    raw = (directory / PATH_PART).read_bytes()
    (directory / PATH_PART).write_bytes(raw[: len(raw) // 2])


def put_nan(directory: Path) -> None:
    raw = (directory / PATH_PART).read_bytes()
    forge(directory, files={PATH_PART: raw.replace(b"9.0", b"NaN", 1)})


def other_features(directory: Path) -> None:
    forge(directory, features=("isl_tokens", "tenant"))


def point_to_anything(store: FileStore, version: str) -> None:
    """Move the pointer as somebody would who does not check."""
    pointer = {"version": version, "earlier": [], "at": "2026-01-01T00:00:00+00:00"}
    (store.root / "channels").mkdir(exist_ok=True)
    (store.root / "channels" / "stable.json").write_text(json.dumps(pointer))


# -- good bundles ----------------------------------------------------------------------------------------------------


async def test_the_active_bundle_decides_from_the_start_and_every_move_is_followed(store: FileStore) -> None:
    store.activate(LOCAL.version)
    async with following(store) as it:
        assert it.version == LOCAL.version
        held = routed(it.gateway.router.submit(facts("held", model="llama"), 0.0))
        store.activate(REMOTE.version)
        assert it.version == LOCAL.version
        assert await it.look() == REMOTE.version
        store.rollback()
        assert await it.look() == LOCAL.version
        store.switch_off()
        assert await it.look() == "built-in"
        assert it.gateway.router.policy.path.name == "dynamo"
        store.rollback()
        assert await it.look() == LOCAL.version
        assert it.gateway.router.ledger.uses(held.decode_worker)
        assert await it.refusals() == {}


async def test_an_empty_store_is_no_fault_and_the_first_activation_is_followed(store: FileStore) -> None:
    async with following(store) as it:
        assert it.gateway.router.policy.path.name == "dynamo"
        assert await it.refusals() == {}
        store.activate(LOCAL.version)
        assert await it.look() == LOCAL.version


async def test_a_pointer_that_stayed_is_not_followed_again(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.activate(LOCAL.version)
    async with following(store) as it:
        before = it.gateway.router.policy
        monkeypatch.setattr(FileStore, "read", lambda *_: pytest.fail("the bundle was read again"))
        assert await it.look() == LOCAL.version
        assert it.gateway.router.policy is before


async def test_a_gateway_of_another_rule_takes_no_notice_of_the_store(store: FileStore) -> None:
    store.activate(LOCAL.version)
    async with following(store, routing={"policy": "remote", "store": str(store.root)}) as it:
        assert await it.look() == "built-in"
        assert it.gateway.router.policy.path.name == "remote"


async def test_the_polling_looks_again_even_after_a_look_that_went_wrong(store: FileStore) -> None:
    looks: asyncio.Queue[int] = asyncio.Queue()

    class Reloader:
        settings = load_settings(overrides=["routing.store_poll_s=0.0001"])
        looked = 0

        async def follow_store(self) -> None:
            self.looked += 1
            looks.put_nowait(self.looked)
            if self.looked == 1:
                raise RuntimeError("by surprise")

    with capture_logs() as logs:
        polling = asyncio.create_task(keep_following(Reloader()))  # type: ignore[arg-type]
        async with asyncio.timeout(10):
            assert [await looks.get() for _ in range(3)] == [1, 2, 3]
        polling.cancel()
        await asyncio.gather(polling, return_exceptions=True)
    assert [line["event"] for line in logs] == ["policy.look_failed"]


async def test_a_swap_is_in_the_journal_and_its_replay_decides_the_same_wherever_the_store_points_by_then(
    store: FileStore, tmp_path: Path
) -> None:
    journal = tmp_path / "journal.jsonl"
    store.activate(LOCAL.version)
    async with following(store, telemetry={"journal": str(journal)}) as it:
        for move in (store.switch_off, store.rollback, lambda: store.activate(REMOTE.version)):
            move()
            await it.look()
            await AsgiClient(it.gateway.asgi).start(LONG_CHAT).task
    with journal.open("rb") as lines:
        calls = list(read_pairs(lines))
    assert sum(call.name == CallName.ADOPT for call, _ in calls) == 3
    answers = [json.loads(answer) for call, answer in calls if call.name == CallName.SUBMIT]
    versions = [answer["policy_version"] for answer in answers if answer.get("attempt") == 1]
    assert versions == ["built-in", LOCAL.version, REMOTE.version]
    assert replay(journal).mismatches == []


# -- bad bundles -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (truncate, BundleFault.DIGEST),
        (put_nan, BundleFault.NOT_FINITE),
        (other_features, BundleFault.FEATURES),
        (shutil.rmtree, BundleFault.UNREADABLE),
    ],
)
async def test_a_bad_bundle_is_refused_once_with_its_reason_and_the_old_policy_serves_on(
    store: FileStore, spoil: Callable[[Path], None], fault: BundleFault
) -> None:
    store.activate(LOCAL.version)
    async with following(store) as it:
        before = it.gateway.router.policy
        spoil(store.directory(REMOTE.version))
        manifest = store.root / "bundles" / REMOTE.version / "manifest.json"
        version = json.loads(manifest.read_bytes())["version"] if manifest.exists() else REMOTE.version
        if version != REMOTE.version:
            (store.root / "bundles" / REMOTE.version).rename(store.root / "bundles" / version)
        point_to_anything(store, version)
        with capture_logs() as logs:
            for _ in range(3):
                assert await it.look() == LOCAL.version
        assert it.gateway.router.policy is before
        (line,) = [line for line in logs if line["event"] == "policy.refused"]
        assert (line["reason"], line["serving"], line["log_level"]) == (fault, LOCAL.version, "error")
        assert version in line["error"]
        assert await it.refusals() == {fault: 1.0}
        shown = (await it.admin.get("/policy")).json()
        assert (shown["version"], shown["refused"]) == (LOCAL.version, line["error"])
        store.activate(OTHER.version)
        assert await it.look() == OTHER.version
        assert (await it.admin.get("/policy")).json()["refused"] is None


@pytest.mark.parametrize("content", [b"", b"{", b'{"version": "../../../etc", "at": ""}'])
async def test_a_pointer_that_is_none_is_refused_and_the_old_policy_serves_on(store: FileStore, content: bytes) -> None:
    store.activate(LOCAL.version)
    async with following(store) as it:
        (store.root / "channels" / "stable.json").write_bytes(content)
        assert [await it.look(), await it.look()] == [LOCAL.version] * 2
        assert await it.refusals() == {"pointer": 1.0}


@pytest.mark.parametrize("part", [".", "channels"])
async def test_a_store_that_goes_away_is_refused_and_followed_when_it_is_back(store: FileStore, part: str) -> None:
    store.activate(LOCAL.version)
    away = store.root.parent / "away"
    async with following(store) as it:
        (store.root / part).resolve().rename(away)
        assert [await it.look(), await it.look()] == [LOCAL.version] * 2
        assert await it.refusals() == {"pointer": 1.0}
        away.rename((store.root / part).resolve())
        store.activate(REMOTE.version)
        assert await it.look() == REMOTE.version


async def test_a_gateway_comes_up_by_the_built_in_rule_where_the_active_bundle_is_bad(store: FileStore) -> None:
    store.activate(LOCAL.version)
    truncate(store.directory(LOCAL.version))
    with capture_logs() as logs:
        async with following(store) as it:
            assert (it.gateway.router.policy.path.name, it.version) == ("dynamo", "built-in")
            assert await it.refusals() == {"digest": 1.0}
            assert await it.look() == "built-in"
            store.add(LOCAL)
            store.activate(LOCAL.version)
            assert await it.look() == LOCAL.version
    refused = [line for line in logs if line["event"] == "policy.refused"]
    assert [(line["reason"], line["serving"]) for line in refused] == [("digest", "built-in")]


async def test_a_gateway_comes_up_where_there_is_no_store(tmp_path: Path) -> None:
    async with following(FileStore(tmp_path / "nowhere")) as it:
        assert it.gateway.router.policy.path.name == "dynamo"
        assert await it.refusals() == {"pointer": 1.0}


# -- beside reloads and operators ------------------------------------------------------------------------------------


async def test_a_reload_does_not_fail_for_a_store_that_went_bad_by_itself(store: FileStore) -> None:
    store.activate(LOCAL.version)
    async with following(store) as it:
        truncate(store.directory(LOCAL.version))
        it.put(health={"open_s": 3.0})
        await it.gateway.reloader.reload()
        assert it.version == LOCAL.version
        assert it.gateway.router.health.policy.open_s == 3.0
        assert await it.refusals() == {"digest": 1.0}


async def test_a_reload_follows_a_pointer_that_has_moved(store: FileStore) -> None:
    store.activate(LOCAL.version)
    async with following(store) as it:
        store.activate(REMOTE.version)
        assert (await it.gateway.reloader.reload()).policy_version == REMOTE.version


async def test_settings_that_begin_to_follow_a_bad_store_are_refused(store: FileStore) -> None:
    store.activate(LOCAL.version)
    truncate(store.directory(LOCAL.version))
    routing = {"policy": "learned", "store": str(store.root)}
    async with following(store, routing={"policy": "local"}) as it:
        it.put(routing=routing)
        with pytest.raises(SettingsError, match="truncated"):
            await it.gateway.reloader.reload()
        with pytest.raises(SettingsError, match="truncated"):
            await it.gateway.reloader.put_routing(RoutingSettings.model_validate(routing))
        assert it.gateway.router.policy.path.name == "local"
        assert await it.refusals() == {}


async def test_the_settings_are_a_kill_switch_too(store: FileStore) -> None:
    store.activate(LOCAL.version)
    async with following(store) as it:
        it.put(routing={"policy": "dynamo", "store": str(store.root)})
        await it.gateway.reloader.reload()
        store.activate(REMOTE.version)
        assert await it.look() == "built-in"
        it.put(routing={"policy": "learned", "store": str(store.root)})
        await it.gateway.reloader.reload()
        assert it.version == REMOTE.version


async def test_a_store_that_hangs_does_not_keep_an_operator_from_switching_it_off(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.activate(LOCAL.version)
    async with following(store) as it:
        begun, back = threading.Event(), threading.Event()
        read = FileStore.read

        def hang(self: FileStore, version: str) -> Bundle:
            begun.set()
            back.wait()
            return read(self, version)

        monkeypatch.setattr(FileStore, "read", hang)
        point_to_anything(store, REMOTE.version)
        looking = asyncio.create_task(it.look())
        await asyncio.to_thread(begun.wait)
        await it.gateway.reloader.put_routing(RoutingSettings(policy="local"))
        assert it.gateway.router.policy.path.name == "local"
        back.set()
        assert await looking == "built-in"
        assert it.gateway.router.policy.path.name == "local"


async def test_operators_move_the_pointer_by_the_admin_application(store: FileStore) -> None:
    async with following(store) as it:
        answer = await it.admin.post("/policy/activate", json={"version": LOCAL.version})
        assert (answer.status_code, answer.json()["version"], answer.json()["name"]) == (200, LOCAL.version, "table")
        await it.admin.post("/policy/activate", json={"version": REMOTE.version})
        assert it.version == store.active() == REMOTE.version
        assert (await it.admin.post("/policy/rollback")).json()["version"] == LOCAL.version
        assert (await it.admin.post("/policy/off")).json()["name"] == "dynamo"
        assert (await it.admin.post("/policy/rollback")).json()["version"] == LOCAL.version
        assert it.version == store.active() == LOCAL.version


async def test_what_an_operator_cannot_have_is_said_and_changes_nothing(store: FileStore) -> None:
    store.activate(LOCAL.version)
    truncate(store.directory(REMOTE.version))
    async with following(store) as it:
        asked = [
            ("activate", {"version": "0" * 12}, 404, "bundle_not_found"),
            ("activate", {"version": REMOTE.version}, 400, "invalid_bundle"),
            ("activate", {}, 400, "invalid_value"),
            ("rollback", None, 409, "policy_store"),
        ]
        for route, body, status, code in asked:
            answer = await it.admin.post(f"/policy/{route}", json=body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), answer.text
        assert it.version == store.active() == LOCAL.version
        assert await it.refusals() == {}


async def test_without_a_store_there_is_nothing_to_move(store: FileStore) -> None:
    async with following(store, routing={"policy": "local"}) as it:
        answer = await it.admin.post("/policy/rollback")
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "policy_store")
        assert "routing.store is not set" in answer.json()["error"]["message"]


async def test_a_store_that_cannot_be_written_is_said(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, raw: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("policy_store.store.put_file", full)
    async with following(store) as it:
        answer = await it.admin.post("/policy/activate", json={"version": LOCAL.version})
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "policy_store")
        assert "No space left" in answer.json()["error"]["message"]


async def test_the_pointer_is_moved_by_keys_of_scope_admin_alone(store: FileStore) -> None:
    scopes = {"app": ["data"], "ops": ["admin"]}
    keys = [{"name": name, "sha256": key_hash(name), "scopes": opens} for name, opens in scopes.items()]
    async with following(store, auth={"keys": keys}) as it:
        statuses = {}
        for name in scopes:
            headers = {"authorization": f"Bearer {name}"}
            answer = await it.admin.post("/policy/activate", json={"version": LOCAL.version}, headers=headers)
            statuses[name] = answer.status_code
        assert statuses == {"app": 403, "ops": 200}
