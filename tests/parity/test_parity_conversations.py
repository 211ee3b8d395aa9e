"""ConServe over real sockets: one transfer per conversation, some that wait; and a replay decides the same."""

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gateway.app import Gateway, open_gateway
from gateway.core.types import Role
from gateway.policies import build_policy
from gateway.settings import Settings
from gateway.wire.journal import CallName, read_pairs
from loadtest.replay import replay
from loadtest.worker.config import WorkerConfig
from tests.api.asgi_client import AsgiClient
from tests.parity.test_parity import MODEL, workers

pytestmark = pytest.mark.e2e

ROLES = {"prefill-0": Role.PREFILL, "decode-0": Role.DECODE, "decode-1": Role.DECODE}
CONVERSATIONS, TURNS = 8, 3
SYSTEM = "You are a helpful agent with many tools, each of which is described here at length. " * 20


def settings_of(urls: dict[str, str], journal: Path) -> Settings:
    rules = {"mode": "conserve", "headroom_tokens": 250_000, "evict_after_s": None}
    return Settings.model_validate(
        {
            "workers": [{"id": name, "url": url, "role": ROLES[name].value} for name, url in urls.items()],
            "routing": {"conversation": rules},
            "fleet": {"probe_interval_s": 0.05, "scrape_interval_s": 0.02},
            "telemetry": {"journal": str(journal)},
        }
    )


async def known(gateway: Gateway) -> None:
    """Every worker is up, and has told how large its KV cache is."""
    while sum(state.kv_capacity_tokens is not None for state in gateway.router.fleet) < len(ROLES):  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def converse(app: Any, name: int) -> list[tuple[bytes | None, bytes | None]]:
    """A plain client that resends its history: it names nothing. Path and worker of its answers, turn by turn."""
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"Task {name}"}]
    told = []
    for turn in range(TURNS):
        body = {"model": MODEL, "messages": messages, "max_tokens": 6, "ignore_eos": True}
        headers = [(b"content-type", b"application/json")]
        if turn == TURNS - 1:
            headers.append((b"x-dynamo-session-final", b"true"))
        client = AsgiClient(app, headers=headers).start(json.dumps(body).encode())
        await client.task
        assert client.status == 200, client.body
        told.append((client.header(b"x-tidegate-path"), client.header(b"x-tidegate-worker")))
        answer = json.loads(client.body)["choices"][0]["message"]["content"]
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": f"Go on, {turn}"}]
    return told


async def test_conversations_move_once_and_wait_for_room_and_a_replay_decides_the_same(tmp_path: Path) -> None:
    configs = [
        WorkerConfig(name=name, role=role, engine="h100-llama8b", model=MODEL, speed=20.0)
        for name, role in ROLES.items()
    ]
    journal = tmp_path / "journal.jsonl"
    async with workers(configs) as served:
        settings = settings_of({worker.name: worker.url for worker in served}, journal)
        async with open_gateway(settings) as gateway:
            async with asyncio.timeout(60):
                await known(gateway)
                told = await asyncio.gather(*(converse(gateway.asgi, name) for name in range(CONVERSATIONS)))
            assert len(gateway.router.ledger) == 0
            assert len(gateway.router.waiting) == 0
            assert not len(gateway.router.conversations.book)
    for answers in told:
        assert [path for path, _ in answers] == [b"remote", *[b"local"] * (TURNS - 1)]
        assert len({worker for _, worker in answers}) == 1
    report = replay(journal, build_policy(settings))
    assert report.mismatches == []
    with journal.open("rb") as lines:
        calls = [(call, json.loads(answer)) for call, answer in read_pairs(lines)]
    waited = [answer for call, answer in calls if call.name == CallName.SUBMIT and "ticket" in answer]
    released = [one for call, answer in calls if call.name == CallName.RELEASE for one in answer]
    assert len(waited) == len(released) > 0
    turns = Counter(answer["turn"] for call, answer in calls if call.name == CallName.SUBMIT and "turn" in answer)
    turns += Counter(decision["turn"] for _, decision in released)
    assert turns == {"first": CONVERSATIONS, "next": CONVERSATIONS * (TURNS - 1)}
