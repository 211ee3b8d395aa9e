"""A recorded run with predicted output lengths, and with swaps between predictors, replays byte for byte."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.app import Gateway, open_gateway
from gateway.core.types import RequestFacts, Role
from gateway.settings import Settings
from gateway.settings_routing import RoutingSettings
from gateway.wire.journal import CallName, read_pairs
from loadtest.replay import replay
from loadtest.worker.config import WorkerConfig
from loadtest.worker.server import BoundWorker, serve_workers
from policy_store.bundle import new_bundle
from policy_store.store import FileStore
from tests.api.asgi_client import AsgiClient
from tests.policy_store.bundle_factories import bundle, table
from tests.policy_store.output_length_factories import foretelling, predictor_files

pytestmark = pytest.mark.e2e

MODEL = "emulated-llm"
ROUNDS = 8
"""Requests under each policy."""


@contextlib.asynccontextmanager
async def worker() -> AsyncIterator[BoundWorker]:
    stop = asyncio.Event()
    ready: asyncio.Future[list[BoundWorker]] = asyncio.get_running_loop().create_future()
    config = WorkerConfig(name="w0", role=Role.BOTH, engine="h100-llama8b", model=MODEL, speed=20.0)
    serving = asyncio.create_task(serve_workers([config], stop=stop, on_ready=ready.set_result))
    try:
        (bound,) = await ready
        yield bound
    finally:
        stop.set()
        await serving


async def converse(gateway: Gateway, first: int) -> None:
    """Requests of several lengths, with and without earlier answers; the workers' counts teach the calibration."""

    async def one(number: int) -> None:
        turns = [{"role": "user", "content": " ".join(f"word{place}" for place in range(9 * number % 300))}]
        if number % 2:
            turns += [{"role": "assistant", "content": "so " * number}, {"role": "user", "content": "go on"}]
        body = {"model": MODEL, "messages": turns, "max_tokens": 6000 if number % 4 else 5, "stream": bool(number % 2)}
        client = AsgiClient(gateway.asgi, headers=[(b"content-type", b"application/json")])
        await client.start(json.dumps(body).encode()).task
        assert client.status == 200

    await asyncio.gather(*map(one, range(first, first + ROUNDS)))


async def record(folder: Path) -> Path:
    store, journal = FileStore(folder / "store"), folder / "journal.jsonl"
    other = new_bundle(table(), output_length=predictor_files(data="other", leaves=(1.5, 2.5)))
    for made in (foretelling(), other, bundle()):
        store.add(made)
    store.activate(foretelling().version)
    routing = RoutingSettings(policy="learned", store=store.root, store_poll_s=3600)
    async with worker() as bound, asyncio.timeout(60):
        settings = Settings(
            workers=[{"id": bound.name, "url": bound.url}], routing=routing, telemetry={"journal": journal}
        )
        async with open_gateway(settings, instance="gw") as gateway:
            await converse(gateway, 0)
            for place, version in enumerate((other.version, bundle().version, foretelling().version), start=1):
                store.activate(version)
                await gateway.reloader.follow_store()
                await converse(gateway, place * ROUNDS)
            await gateway.reloader.put_routing(routing.model_copy(update={"output_length": False}))
            await converse(gateway, 4 * ROUNDS)
    return journal


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return asyncio.run(record(tmp_path_factory.mktemp("parity")))


def test_every_answer_is_the_same_and_a_prediction_where_there_was_a_predictor(journal: Path) -> None:
    report = replay(journal)
    assert report.mismatches == []
    with journal.open("rb") as lines:
        calls = [
            (call.payload, json.loads(answer)) for call, answer in read_pairs(lines) if call.name == CallName.SUBMIT
        ]
    assert report.decisions == len(calls) == 5 * ROUNDS
    predicted = [answer["osl_predicted"] for _, answer in calls]
    assert predicted == [True] * 2 * ROUNDS + [False] * ROUNDS + [True] * ROUNDS + [False] * ROUNDS
    read = [isinstance(facts, RequestFacts) and facts.output_features is not None for facts, _ in calls]
    assert read == predicted
    assert len({answer["features"]["osl_tokens"] for _, answer in calls}) > ROUNDS


def test_without_the_predictor_the_same_calls_give_other_answers(journal: Path, tmp_path: Path) -> None:
    lines = journal.read_bytes().splitlines(keepends=True)
    # Features of a predictor that is not the policy's say nothing, so that the mean stands.
    with journal.open("rb") as whole:
        place = next(number for number, (call, _) in enumerate(read_pairs(whole)) if call.name == CallName.SUBMIT)
    line = lines[2 * place]
    at = line.index(b'"predictor":"') + len(b'"predictor":"')
    lines[2 * place] = line[:at] + b"0" * 12 + line[at + 12 :]
    path = tmp_path / "tampered.jsonl"
    path.write_bytes(b"".join(lines))
    first = replay(path).mismatches[0]
    assert first.call == place
    assert json.loads(first.replayed)["osl_predicted"] is False
