"""The gateway decides as any other host of the core would: a recorded run, replayed call for call."""

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner

from gateway.app import open_gateway
from gateway.core.events import Finished
from gateway.core.path.rules import AlwaysLocal
from gateway.core.policy import Policy
from gateway.core.types import Role
from gateway.policies import build_policy
from gateway.settings import Settings, load_settings
from gateway.settings_routing import DynamoSettings, RoutingSettings
from gateway.wire.journal import CallName, JournalCall, JournalError, read_pairs
from loadtest.replay import replay, replay_command
from loadtest.worker.config import WorkerConfig
from loadtest.worker.server import BoundWorker, serve_workers
from tests.api.asgi_client import AsgiClient

pytestmark = pytest.mark.e2e

MODEL = "emulated-llm"
REQUESTS = 60
AT_ONCE = 6
LONG_PROMPT = "a long prompt that a prefill worker should compute " * 60
OTHER_ROUTING = RoutingSettings(
    policy="dynamo", dynamo=DynamoSettings(eff_isl_threshold=250, eff_isl_ratio_threshold=1.0)
)
"""What the second half of the run is decided by."""
ROLES = {"prefill-0": Role.PREFILL, "decode-0": Role.DECODE, "decode-1": Role.DECODE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A run's journal, and the settings that it was made with."""

    journal: Path
    config: Path
    settings: Settings

    def calls(self) -> list[tuple[JournalCall, dict[str, Any] | None]]:
        """Every call with its decoded answer."""
        with self.journal.open("rb") as lines:
            return [(call, json.loads(result)) for call, result in read_pairs(lines)]

    def tampered(self, into: Path, call: int, *, line: int, old: bytes, new: bytes) -> Path:
        """A copy in which one line (0 the call, 1 its answer) of a call was changed."""
        lines = self.journal.read_bytes().splitlines(keepends=True)
        assert old in lines[2 * call + line]
        lines[2 * call + line] = lines[2 * call + line].replace(old, new)
        path = into / "tampered.jsonl"
        path.write_bytes(b"".join(lines))
        return path


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """A run over both paths, with a worker that fails, clients that leave, and mistakes."""
    folder = tmp_path_factory.mktemp("parity")
    return asyncio.run(record(folder))


async def record(folder: Path) -> Recording:
    configs = [
        WorkerConfig(name=name, role=role, engine="h100-llama8b", model=MODEL, speed=20.0)
        for name, role in ROLES.items()
    ]
    async with workers(configs) as served, failing_worker() as failing_url:
        urls = {worker.name: (worker.url, worker.role) for worker in served} | {"flaky": (failing_url, Role.BOTH)}
        config = folder / "tidegate.yaml"
        config.write_text(yaml.safe_dump(settings_tree(urls, folder / "journal.jsonl")))
        settings = load_settings(config)
        async with open_gateway(settings) as gateway:
            turns = asyncio.Semaphore(AT_ONCE)
            async with asyncio.timeout(30):
                half = REQUESTS // 2
                await asyncio.gather(*(one_request(gateway.asgi, number, turns) for number in range(half)))
                await gateway.reloader.put_routing(OTHER_ROUTING)
                await asyncio.gather(*(one_request(gateway.asgi, number, turns) for number in range(half, REQUESTS)))
            assert len(gateway.router.ledger) == 0
    return Recording(journal=folder / "journal.jsonl", config=config, settings=settings)


def settings_tree(urls: dict[str, tuple[str, Role]], journal: Path) -> dict[str, Any]:
    return {
        "workers": [{"id": name, "url": url, "role": role.value} for name, (url, role) in urls.items()],
        "routing": {"policy": "dynamo", "dynamo": {"eff_isl_threshold": 300, "eff_isl_ratio_threshold": 1.0}},
        "fleet": {"probe_interval_s": 0.05, "scrape_interval_s": 0.02},
        "health": {"consecutive_failures": 2, "open_s": 0.05},
        "upstream": {"retry_ratio": 1.0},
        "telemetry": {"journal": str(journal)},
    }


@contextlib.asynccontextmanager
async def workers(configs: Sequence[WorkerConfig]) -> AsyncIterator[list[BoundWorker]]:
    stop = asyncio.Event()
    ready: asyncio.Future[list[BoundWorker]] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve_workers(configs, stop=stop, on_ready=ready.set_result))
    try:
        yield await ready
    finally:
        stop.set()
        await serving


@contextlib.asynccontextmanager
async def failing_worker() -> AsyncIterator[str]:
    """A worker that is well by its probes, and fails every request: in turn with 500 and by hanging up."""
    failures = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal failures
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"POST"):
            failures += 1
            if failures % 2:
                writer.write(b"HTTP/1.1 500 Oh\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        else:
            page = json.dumps({"data": [{"id": MODEL}]}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(page), page))
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def one_request(app: Any, number: int, turns: asyncio.Semaphore) -> None:
    """Request `number` of a mix that repeats."""
    prompt = f"{number % 9} {LONG_PROMPT if number % 2 else 'a short prompt that fills a few blocks of sixteen ' * 4}"
    body: dict[str, Any] = {
        "model": "nobody" if number % 20 == 7 else MODEL,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": 10_000 if number % 10 == 3 else 8 + number % 5,
        "stream": number % 3 == 0 or number % 10 == 3,
        "ignore_eos": True,
    }
    if number % 20 == 11:
        body["temperature"] = -1
    headers = [(b"content-type", b"application/json"), (b"x-request-id", b"parity-%d" % number)]
    if number % 4 == 0:
        headers.append((b"x-session-id", b"%d" % (number % 3)))
    async with turns:
        client = AsgiClient(app, headers=headers).start(json.dumps(body).encode())
        if number % 10 == 3:
            await client.answered.wait()
            client.leave()
        await client.task


def test_the_run_holds_what_it_should(recording: Recording) -> None:
    calls = recording.calls()
    decisions = [answer for call, answer in calls if call.name == CallName.SUBMIT and answer and "path" in answer]
    assert {decision["path"] for decision in decisions} == {"local", "remote"}
    assert any(decision["attempt"] > 1 for decision in decisions)
    assert any(decision["pinned"] for decision in decisions)
    seen = Counter(call.name for call, _ in calls)
    assert seen[CallName.ABORT] > 0
    assert seen[CallName.ADOPT] == 1
    assert seen[CallName.SUBMIT] >= REQUESTS
    finished = Counter(call.payload.outcome.kind.value for call, _ in calls if isinstance(call.payload, Finished))
    assert finished["cancelled"] == REQUESTS // 10
    assert finished["client_error"] == REQUESTS // 20
    assert finished["ok"] > REQUESTS // 2


def test_a_replay_decides_the_same_byte_for_byte(recording: Recording) -> None:
    report = replay(recording.journal, build_policy(recording.settings))
    assert report.mismatches == []
    assert report.calls == len(recording.calls()) - 1
    assert report.decisions == sum(call.name == CallName.SUBMIT for call, _ in recording.calls())


def test_a_changed_answer_is_found(recording: Recording, tmp_path: Path) -> None:
    number = first_submit(recording)
    path = recording.tampered(tmp_path, number, line=1, old=b'"attempt":1', new=b'"attempt":2')
    (found,) = replay(path, build_policy(recording.settings)).mismatches
    assert (found.call, found.name) == (number, CallName.SUBMIT)
    assert found.recorded == found.replayed.replace(b'"attempt":1', b'"attempt":2')


def test_a_changed_request_is_found(recording: Recording, tmp_path: Path) -> None:
    number = first_submit(recording)
    path = recording.tampered(tmp_path, number, line=0, old=b'"prompt_bytes":', new=b'"prompt_bytes":9')
    assert replay(path, build_policy(recording.settings)).mismatches[0].call == number


def test_another_policy_is_found(recording: Recording) -> None:
    report = replay(recording.journal, Policy(path=AlwaysLocal()))
    assert len(report.mismatches) > REQUESTS // 2


def test_a_last_call_cut_short_is_left_out(recording: Recording, tmp_path: Path) -> None:
    whole = replay(recording.journal, build_policy(recording.settings))
    path = tmp_path / "cut.jsonl"
    path.write_bytes(recording.journal.read_bytes()[:-1])
    report = replay(path, build_policy(recording.settings))
    assert (report.calls, report.mismatches) == (whole.calls - 1, [])


@pytest.mark.parametrize("pairs", [0, 1], ids=["empty", "without its router"])
def test_a_journal_must_begin_with_its_router(recording: Recording, tmp_path: Path, pairs: int) -> None:
    lines = recording.journal.read_bytes().splitlines(keepends=True)
    path = tmp_path / "headless.jsonl"
    path.write_bytes(b"".join(lines[2 : 2 + 2 * pairs]))
    with pytest.raises(JournalError, match="begin with its router"):
        replay(path, build_policy(recording.settings))


def test_the_command_says_whether_it_differs(recording: Recording, tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(replay_command)
    options = ["--config", str(recording.config)]
    same = CliRunner().invoke(app, ["--journal", str(recording.journal), *options])
    assert (same.exit_code, same.stdout.endswith(" decisions, 0 differ\n")) == (0, True)

    number = first_submit(recording)
    path = recording.tampered(tmp_path, number, line=1, old=b'"attempt":1', new=b'"attempt":2')
    other = CliRunner().invoke(app, ["--journal", str(path), *options])
    assert other.exit_code == 1
    assert f"call {number} (submit):" in other.stdout
    assert other.stdout.endswith(", 1 differ\n")


def first_submit(recording: Recording) -> int:
    """The number of the first routed call; the router's own line is number 0."""
    return next(
        number
        for number, (call, answer) in enumerate(recording.calls())
        if call.name == CallName.SUBMIT and answer is not None and answer.get("path")
    )
