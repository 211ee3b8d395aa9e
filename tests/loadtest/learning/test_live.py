import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path as FilePath

import pytest

from gateway.core.path.rules import AlwaysLocal, AlwaysRemote, DynamoMode, DynamoRule
from gateway.core.path.table import KMeans, Scaler, TablePolicy
from gateway.core.types import Path, Reason, SloTarget
from loadtest.client.options import LoadOptions
from loadtest.fleet.fleet import FleetSpec, running_fleet
from loadtest.fleet.pools import Pools
from loadtest.learning.live import LiveEnvironment, LiveGateway, LogTail
from loadtest.traces.loaders import load_trace
from policy_store.learn.clusters import ClusterPlan
from policy_store.learn.course import Phase
from policy_store.learn.dolphin import Dolphin, DolphinPlan
from policy_store.learn.regimes import RegimeMethod, RegimePlan
from policy_store.learn.scan import ScanPlan

SPEED = 8.0
SLO = SloTarget(name="run", ttft_s=2.0, tpot_s=0.04)
TABLE = TablePolicy(
    scaler=Scaler(mean=(0.0,) * 4, std=(1.0,) * 4),
    clusters=KMeans(centroids=((0.0,) * 4,)),
    actions=(Path.LOCAL,),
    baseline=AlwaysRemote(),
)


def test_a_growing_log_is_read_line_by_line(tmp_path: FilePath) -> None:
    file = tmp_path / "log.jsonl"
    file.write_bytes(b"before\n")
    tail = LogTail(file)
    assert tail.lines() == []
    with file.open("ab") as log:
        log.write(b"one\ntw")
        log.flush()
        assert tail.lines() == [b"one\n"]
        log.write(b"o\n")
    assert tail.lines() == [b"two\n"]


def test_a_log_that_is_not_there_yet_or_begins_anew_is_read_from_its_start(tmp_path: FilePath) -> None:
    file = tmp_path / "log.jsonl"
    tail = LogTail(file)
    assert tail.lines() == []
    file.write_bytes(b"first and long\n")
    assert tail.lines() == [b"first and long\n"]
    file.write_bytes(b"new\n")
    assert tail.lines() == [b"new\n"]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveGateway]:
    directory = tmp_path_factory.mktemp("live")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        admin_port = probe.getsockname()[1]
    log = directory / "decisions.jsonl"
    spec = FleetSpec(
        pools=Pools(prefill=1, decode=1),
        engine="h100-llama8b",
        speed=SPEED,
        settings={"admin": {"port": admin_port}, "telemetry": {"decision_log": str(log)}},
    )
    with running_fleet(spec) as fleet:
        yield LiveGateway(
            load=LoadOptions(url=fleet.openai_url, model=spec.model, run_id="learn", speed=SPEED),
            admin_url=f"http://127.0.0.1:{admin_port}",
            decision_log=log,
            bundles=directory / "bundles",
            slo=SLO,
        )


def live(gateway: LiveGateway, run_id: str) -> LiveEnvironment:
    """A run of its own over the same gateway."""
    gateway.bundles.mkdir(exist_ok=True)
    requests = load_trace("synthetic:azure-conv", limit=60, seed=2, rate_scale=0.8)
    return LiveEnvironment(replace(gateway, load=replace(gateway.load, run_id=run_id)), requests)


@pytest.mark.e2e
def test_a_live_gateway_serves_by_one_policy_after_the_other(gateway: LiveGateway) -> None:
    with live(gateway, "turns") as env:
        rows = [*env.serve(AlwaysRemote(), 20), *env.serve(TABLE, 20), *env.serve(AlwaysLocal(), 40)]
        assert env.served == 80
    assert [row.order for row in rows] == list(range(len(rows)))
    assert len(rows) >= 40
    chosen = {order: row for order, row in enumerate(rows) if row.reason is not Reason.RULE_UNDER_ONE_BLOCK}
    assert {row.path for order, row in chosen.items() if order < 20} == {Path.REMOTE}
    tables = [row for order, row in chosen.items() if 20 <= order < 40]
    assert {(row.path, row.reason, row.cell) for row in tables} == {(Path.LOCAL, Reason.CLUSTER, 0)}
    assert all(row.ok and row.attained is not None and row.decode_requests is not None for row in rows)
    # In engine seconds, an answer takes as long as on the engine, and not an eighth of it.
    assert sum(row.tpot_s or 0.0 for row in rows) / len(rows) > 0.004


@pytest.mark.e2e
def test_what_is_under_way_can_be_waited_for(gateway: LiveGateway) -> None:
    with live(gateway, "waits") as env:
        rows = [*env.serve(AlwaysRemote(), 15), *env.finish()]
        assert [row.order for row in rows] == list(range(15))
        assert env.finish() == []
        assert len(env.take_lags()) == 15
        assert env.take_lags() == []


@pytest.mark.e2e
@pytest.mark.parametrize("regimes", [None, RegimePlan(method=RegimeMethod.QUANTILES, backlog_levels=1)])
def test_the_learner_runs_against_a_live_gateway(gateway: LiveGateway, regimes: RegimePlan | None) -> None:
    plan = DolphinPlan(
        n_fit=40,
        clusters=ClusterPlan(k=2, n_init=1),
        regimes=regimes,
        scan=ScanPlan(n_scan=10, block_len=5, passes=1, effect=None, min_turn=20, max_turn=20, min_own=1),
        run_block=20,
    )
    baseline = DynamoRule(mode=DynamoMode.ISL_OR_LOAD, prefill_busy_threshold=1.0)
    with live(gateway, "table" if regimes is None else "regimes") as env:
        dolphin = Dolphin(env, baseline, plan)
        learned = dolphin.learn(220)
    assert dolphin.phase is Phase.RUN
    assert dolphin.verdicts
    assert learned.table.per_cluster == (1 if regimes is None else 2)
    assert sum(cell.requests for cell in learned.cells) > 0
