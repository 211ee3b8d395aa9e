"""A bundle with an output-length predictor changes what is expected of a request, and keeps nothing of its text."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.api.auth import key_hash
from gateway.app import Gateway, open_gateway
from gateway.core.types import Decision, DecisionId
from gateway.settings import Settings
from gateway.settings_routing import RoutingSettings
from gateway.telemetry.decisions import read_decision_log
from policy_store.bundle import Bundle, new_bundle, write_bundle
from policy_store.store import FileStore
from tests.api.asgi_client import AsgiClient
from tests.policy_store.bundle_factories import bundle, table
from tests.policy_store.output_length_factories import foretelling, predictor_files

MODEL = "llama"
SECRET = "xylophone quintessence"
MEAN_TOKENS = 256.0
"""Of a language model of which nothing was seen."""


def chat(words: str, **fields: Any) -> bytes:
    return json.dumps({"model": MODEL, "messages": [{"role": "user", "content": words}], **fields}).encode()


def learned(directory: Path, **routing: Any) -> dict[str, Any]:
    return {"policy": "learned", "bundle": str(directory), **routing}


@asynccontextmanager
async def gateway(routing: dict[str, Any], **sections: Any) -> AsyncIterator[Gateway]:
    workers = [{"id": "w0", "url": "http://127.0.0.1:9", "models": [MODEL]}]
    transport = httpx.MockTransport(lambda asked: httpx.Response(200 if asked.url.path.endswith("/health") else 404))
    settings = Settings(workers=workers, routing=routing, upstream={"max_attempts": 1}, **sections)
    async with open_gateway(settings, transport=transport, instance="gw") as opened:
        yield opened


async def decided(through: Gateway, body: bytes, *, key: str | None = None) -> Decision:
    headers = [] if key is None else [(b"authorization", f"Bearer {key}".encode())]
    client = AsgiClient(through.asgi, headers=headers).start(body)
    await client.task
    decision_id = (client.header(b"x-tidegate-decision-id") or b"").decode()
    record = through.decisions.get(DecisionId(decision_id))
    assert record is not None
    assert record.decision is not None
    return record.decision


@pytest.mark.parametrize(
    ("made", "routing", "predicted"),
    [(foretelling(), {}, True), (foretelling(), {"output_length": False}, False), (bundle(), {}, False)],
    ids=["with a predictor", "switched off", "without one"],
)
async def test_a_bundles_predictor_changes_what_is_expected(
    made: Bundle, routing: dict[str, Any], predicted: bool, tmp_path: Path
) -> None:
    async with gateway(learned(write_bundle(made, tmp_path), **routing)) as opened:
        short, long = [await decided(opened, chat("explain " * count)) for count in (2, 2000)]
        capped = await decided(opened, chat("explain " * 2000, max_tokens=9))
    assert short.policy_version == made.version
    assert [each.osl_predicted for each in (short, long, capped)] == [predicted] * 3
    assert (short.features.osl_tokens == MEAN_TOKENS) is not predicted
    assert (short.features.osl_tokens < long.features.osl_tokens) is predicted
    assert capped.features.osl_tokens == 9.0


async def test_a_prompt_is_in_no_log_and_no_journal(tmp_path: Path) -> None:
    files = {"decision_log": tmp_path / "decisions.jsonl", "journal": tmp_path / "journal.jsonl"}
    routing = learned(write_bundle(foretelling(), tmp_path))
    async with gateway(routing, telemetry=files) as opened:
        assert (await decided(opened, chat(f"explain {SECRET} to me"))).osl_predicted
    (record,) = read_decision_log(files["decision_log"])
    assert record.decision is not None
    assert b"output_features" in files["journal"].read_bytes()
    for file in files.values():
        assert not [word for word in ("explain", *SECRET.split()) if word.encode() in file.read_bytes()]


async def test_reading_follows_the_policy_in_force(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "store")
    other = new_bundle(table(), output_length=predictor_files(data="other", leaves=(1.5, 2.5)))
    made = {each: store.add(each_bundle) for each, each_bundle in (("without", bundle()), ("with", foretelling()))}
    made["other"] = store.add(other)
    store.activate(made["without"])
    async with gateway({"policy": "learned", "store": str(store.root), "store_poll_s": 3600}) as opened:
        expected = [(await decided(opened, chat("hi"))).features.osl_tokens]
        for name in ("with", "other", "without"):
            store.activate(made[name])
            await opened.reloader.follow_store()
            expected.append((await decided(opened, chat("hi"))).features.osl_tokens)
        store.activate(made["with"])
        await opened.reloader.follow_store()
        off = RoutingSettings(policy="learned", store=store.root, output_length=False)
        await opened.reloader.put_routing(off)
        assert not (await decided(opened, chat("hi"))).osl_predicted
    assert expected[0] == expected[3] == MEAN_TOKENS
    assert len(set(expected)) == 3


async def test_an_alias_is_read_under_the_models_own_name(tmp_path: Path) -> None:
    async with gateway(learned(write_bundle(foretelling(), tmp_path)), aliases={"gpt": MODEL}) as opened:
        plain = await decided(opened, chat("hi"))
        by_alias = await decided(opened, chat("hi").replace(MODEL.encode(), b"gpt"))
    assert by_alias.osl_predicted
    assert by_alias.features.osl_tokens == plain.features.osl_tokens


async def test_the_api_keys_name_is_the_tenant_and_stays_out_of_the_journal(tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    keys = {"keys": [{"name": "acme-inc", "sha256": key_hash("tg-1")}]}
    routing = learned(write_bundle(foretelling(), tmp_path))
    async with gateway(routing, auth=keys, telemetry={"journal": journal}) as opened:
        assert (await decided(opened, chat("hi"), key="tg-1")).osl_predicted
    assert b"acme" not in journal.read_bytes()
