"""`tidegate policy` moves the pointer of a store while a gateway that follows it serves traffic."""

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.telemetry.decisions import read_decision_log
from loadtest.fleet.fleet import DEFAULT_MODEL, FleetSpec, RunningFleet, running_fleet
from loadtest.fleet.pools import parse_pools
from policy_store.bundle import PATH_PART
from policy_store.store import FileStore
from tests.policy_store.bundle_factories import always

pytestmark = pytest.mark.e2e

PATIENCE_S = 120.0
CLIENTS = 4
PROMPT = "the quick brown fox jumps over the lazy dog " * 20


def policy(store: FileStore, *arguments: str) -> str:
    """Run `tidegate policy` to its end, and return what it printed."""
    command = [sys.executable, "-m", "gateway", "policy", *arguments, "--store", str(store.root)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE_S).stdout


class Load:
    """What clients saw who ask all the time."""

    def __init__(self, url: str) -> None:
        self.url = f"{url}/completions"
        self.over = threading.Event()
        self.answers: Counter[str] = Counter()
        self._lock = threading.Lock()

    def ask_until_over(self, client_number: int) -> None:
        asked = 0
        with httpx.Client(timeout=PATIENCE_S, trust_env=False) as client:
            while not self.over.is_set():
                asked += 1
                body = {"model": DEFAULT_MODEL, "prompt": f"{client_number} {asked} {PROMPT}", "max_tokens": 8}
                answer = self._streamed(client, body) if asked % 2 else self._whole(client, body)
                with self._lock:
                    self.answers[answer] += 1

    def _whole(self, client: httpx.Client, body: dict[str, Any]) -> str:
        response = client.post(self.url, json=body)
        return "ok" if response.status_code == 200 and response.json()["choices"][0]["text"] else response.text

    def _streamed(self, client: httpx.Client, body: dict[str, Any]) -> str:
        with client.stream("POST", self.url, json={**body, "stream": True}) as response:
            text = response.read().decode()
        return "ok" if response.status_code == 200 and text.endswith("data: [DONE]\n\n") else text


@contextmanager
def under_load(fleet: RunningFleet) -> Iterator[Load]:
    load = Load(fleet.openai_url)
    with ThreadPoolExecutor(CLIENTS) as pool:
        clients = [pool.submit(load.ask_until_over, number) for number in range(CLIENTS)]
        try:
            yield load
        finally:
            load.over.set()
        for client in clients:
            client.result()


def until(condition: Callable[[], object], *, what: str) -> None:
    """Ask again until it holds."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, f"still not so after {PATIENCE_S:g} s: {what}"
        time.sleep(0.02)


def test_bundles_are_swapped_under_load_without_a_failed_request(tmp_path: Path) -> None:
    store, log = FileStore(tmp_path / "store"), tmp_path / "decisions.jsonl"
    local, remote, bad = always("local"), always("remote"), always("remote", provenance={"made": "badly"})
    for each in (local, remote, bad):
        store.add(each)
    store.activate(local.version)
    spec = FleetSpec(
        pools=parse_pools("2P2D"),
        engine="h100-llama8b",
        speed=20.0,
        settings={
            "routing": {"policy": "learned", "store": str(store.root), "store_poll_s": 0.05},
            "telemetry": {"decision_log": str(log)},
        },
    )
    with running_fleet(spec) as fleet:

        def shows(line: str) -> Callable[[], bool]:
            return lambda: line in httpx.get(f"{fleet.url}/metrics", trust_env=False).text

        def decides(name: str, version: str) -> None:
            line = f'tidegate_policy_info{{policy="{name}",version="{version}"}} 1.0'
            until(shows(line), what=f"{version} decides")
            served = load.answers.total()
            until(lambda: load.answers.total() > served + 2 * CLIENTS, what=f"requests are served by {version}")

        with under_load(fleet) as load:
            decides("table", local.version)
            for _ in range(2):
                policy(store, "activate", remote.version)
                decides("table", remote.version)
                policy(store, "rollback")
                decides("table", local.version)
            policy(store, "off")
            decides("dynamo", "built-in")
            policy(store, "rollback")
            decides("table", local.version)

            (store.directory(bad.version) / PATH_PART).write_bytes(b'{"kind": "table"')
            pointer = {"version": bad.version, "earlier": [local.version], "at": "by hand"}
            (store.root / "channels" / "stable.json").write_text(json.dumps(pointer))
            until(shows('tidegate_policy_refused_total{reason="digest"} 1.0'), what="the bad bundle is refused")
            decides("table", local.version)
            policy(store, "activate", remote.version)
            decides("table", remote.version)
        assert load.answers.keys() == {"ok"}, load.answers

    records = list(read_decision_log(log))
    assert len(records) == load.answers.total()
    assert {record.outcome.kind for record in records} == {"ok"}
    decisions = [record.decision for record in records if record.decision is not None]
    assert len(decisions) == len(records)
    by_version = {
        version: {str(each.path) for each in decisions if each.policy_version == version}
        for version in {each.policy_version for each in decisions}
    }
    assert by_version.keys() == {local.version, remote.version, "built-in"}
    assert (by_version[local.version], by_version[remote.version]) == ({"local"}, {"remote"})
