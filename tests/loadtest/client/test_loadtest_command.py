import asyncio
import json
import signal
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from loadtest.client.cli import loadtest
from tests.loadtest.client.fake_tidegate import FakeTidegate
from tests.loadtest.client.scripted_server import (
    Answer,
    ScriptedServer,
    Seen,
    chunk,
    content,
    replay,
    stream_head,
    whole,
)

pytestmark = pytest.mark.e2e

COMMAND = (sys.executable, "-c", "import typer; from loadtest.client.cli import loadtest; typer.run(loadtest)")


async def start(*arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *COMMAND, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env={"COLUMNS": "120"}
    )


async def end(process: asyncio.subprocess.Process) -> tuple[int, str]:
    async with asyncio.timeout(60):
        out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, (out + err).decode()


async def test_a_run_prints_its_summary_and_reconciliation(tmp_path: Path) -> None:
    async with ScriptedServer(FakeTidegate()) as server:
        status, printed = await end(
            await start("--url", server.url, "--requests", "30", "--speed", "200", "--out", str(tmp_path))
        )
    assert status == 0, printed
    assert "30/30 requests completed" in printed
    assert "All times are the engine's: 200 times the clock's." in printed
    assert "SLO met (TTFT ≤ 2 s, TPOT ≤ 40 ms)" in printed
    assert "requests ok, remote" in printed
    assert " NO " not in printed
    assert {json.loads(seen.body)["model"] for seen in server.seen if seen.method == "POST"} == {"llama"}
    assert len((tmp_path / "records.jsonl").read_text().splitlines()) == 30


async def test_sessions_are_played_in_closed_loop_and_reported_as_conversations() -> None:
    async with ScriptedServer(FakeTidegate()) as server:
        trace = ("--trace", "synthetic:miniswe", "--requests", "30", "--speed", "200")
        status, printed = await end(await start("--url", server.url, *trace))
    assert status == 0, printed
    assert "30/30 requests completed" in printed
    assert "time to first visible token" in printed
    assert "TPOT of the last turn" in printed


async def test_one_failure_is_exit_status_one() -> None:
    async with ScriptedServer(FakeTidegate(failing=frozenset({2}))) as server:
        status, printed = await end(await start("--url", server.url, "--requests", "8", "--speed", "200"))
    assert status == 1
    assert "7/8 requests completed" in printed
    assert "failures: http_502 1" in printed


async def test_interrupting_still_writes_what_there_is(tmp_path: Path) -> None:
    begun = asyncio.Event()

    async def hang(seen: Seen) -> Answer:
        del seen
        begun.set()
        yield stream_head() + chunk(content())
        await asyncio.Event().wait()

    async with ScriptedServer(
        lambda seen: hang(seen) if seen.method == "POST" else replay((whole(b"", 404),))
    ) as server:
        process = await start("--url", server.url, "--model", "m", "--requests", "5", "--out", str(tmp_path))
        await begun.wait()
        process.send_signal(signal.SIGINT)
        status, printed = await end(process)
    assert status == 1
    assert "0/5 requests completed" in printed
    assert "cancelled" in (tmp_path / "records.jsonl").read_text()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--trace", "mooncake:nowhere.jsonl"), "nowhere.jsonl"),
        (("--slo", "ttft=fast"), "not an SLO"),
        (("--url", "http://127.0.0.1:1/v1"), "Connect"),
    ],
)
def test_what_cannot_start_is_a_usage_error(arguments: tuple[str, ...], complaint: str) -> None:
    app = typer.Typer()
    app.command()(loadtest)
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert complaint in result.output
