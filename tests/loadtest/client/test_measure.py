import json
from pathlib import Path

import pytest

from gateway.core.types import SloTarget
from loadtest.client import measure as measuring
from loadtest.client.measure import Measurement, measure, write_measurement
from loadtest.client.options import LoadOptions
from loadtest.client.records import read_records
from loadtest.traces.synthetic import uniform_mix
from tests.loadtest.client.fake_tidegate import FakeTidegate
from tests.loadtest.client.scripted_server import Answer, ScriptedServer, Seen, completion, replay, whole

pytestmark = pytest.mark.e2e

SLO = SloTarget(name="run", ttft_s=3600.0, tpot_s=3600.0)
WORK = uniform_mix(12, isl_tokens=40, osl_tokens=3, rate_rps=10.0, seed=1)


async def run(server: ScriptedServer, *, speed: float = 100.0) -> Measurement:
    return await measure(LoadOptions(url=server.url, model="m", run_id="lt", speed=speed, warm_up=1), WORK, SLO)


async def test_a_run_against_a_tidegate_reconciles() -> None:
    async with ScriptedServer(FakeTidegate(failing=frozenset({4}))) as server:
        measurement = await run(server)
    rows = {row.name: row for row in measurement.reconciliation}
    assert measurement.summary.completed == 11
    assert measurement.summary.errors == {"http_502": 1}
    assert rows["requests not ok"].client == 1
    assert [row.name for row in rows.values() if row.equal is not True] == ["TTFT sum, real s"]


async def test_a_gateway_that_lost_a_token_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "SETTLE_TRIES", 2)
    gateway = FakeTidegate()

    def losing(seen: Seen) -> Answer:
        if seen.headers.get("x-request-id") == "lt-11":
            gateway.counts['tidegate_tokens_total{type="output"}'] -= 1
        return gateway(seen)

    async with ScriptedServer(losing) as server:
        measurement = await run(server)
    assert [row.name for row in measurement.reconciliation if row.equal is False] == ["output tokens"]


@pytest.mark.parametrize("page", [whole(b"vllm:num_requests_running 3\n"), whole(b"tidegate_x 1\n", 404)])
async def test_other_servers_give_no_reconciliation(page: bytes) -> None:
    async with ScriptedServer(lambda seen: completion(seen) if seen.method == "POST" else replay((page,))) as server:
        measurement = await run(server)
    assert measurement.reconciliation == []
    assert measurement.summary.completed == 12


async def test_times_are_given_back_in_the_engines_seconds() -> None:
    async with ScriptedServer(FakeTidegate()) as server:
        measurement = await run(server, speed=50.0)
    assert [record.scheduled_s for record in measurement.records] == pytest.approx(
        [request.arrival_s for request in WORK]
    )
    assert measurement.summary.duration_s >= WORK[-1].arrival_s - WORK[0].arrival_s


async def test_files_are_written_where_asked(tmp_path: Path) -> None:
    async with ScriptedServer(FakeTidegate()) as server:
        measurement = await run(server)
    write_measurement(tmp_path / "new" / "out", measurement)
    assert read_records(tmp_path / "new" / "out" / "records.jsonl") == measurement.records
    summary = json.loads((tmp_path / "new" / "out" / "summary.json").read_text())
    assert summary["asked"] == summary["completed"] == 12
    assert set(summary["paths"]) == {"local", "remote"}
