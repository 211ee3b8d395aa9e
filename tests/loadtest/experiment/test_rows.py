from pathlib import Path

import msgspec
import pytest

from gateway.core.types import SloTarget
from loadtest.client.measure import Measurement
from loadtest.client.records import Record
from loadtest.experiment.rows import LIVE, Coordinates, read_rows, to_row, write_rows
from loadtest.experiment.run import run_cell
from loadtest.experiment.store import write_parquet
from loadtest.report.summary import summarise
from tests.loadtest.experiment.experiment_lab import first_run

WHERE = Coordinates(experiment="e", workload="w", fleet="f", policy="p", load=1.0, slo="chat", seed=0)
SLO = SloTarget(name="chat", ttft_s=2.0, tpot_s=0.04)


def record(index: int, path: str | None) -> Record:
    return Record(
        request_id=str(index), index=index, scheduled_s=float(index), lag_s=0.001, status=200, ok=True,
        input_tokens=100, output_tokens=10, cached_tokens=40, ttft_s=1.0 + index, tpot_s=0.02, itl_p99_s=0.05,
        e2e_s=5.0, path=path, worker="d0",
    )  # fmt: skip


def test_a_live_measurement_becomes_a_row() -> None:
    records = [record(0, "local"), record(1, "remote"), record(2, None)]
    measured = Measurement(records=records, summary=summarise(records, SLO, asked=4), reconciliation=[])
    row = to_row(WHERE, measured.summary)
    assert (row.source, row.policy, row.asked, row.completed) == (LIVE, "p", 4, 3)
    assert (row.ttft_p50_s, row.tpot_p90_s, row.itl_p99_p50_s, row.lag_p99_s) == (2.0, 0.02, 0.05, 0.001)
    assert (row.remote_ratio, row.attained_ratio) == (0.5, pytest.approx(2 / 3))
    assert row.path_requests == {"local": 1, "remote": 1, "unknown": 1}


def test_a_run_without_requests_is_a_row_of_unknowns() -> None:
    row = to_row(WHERE, summarise([], SLO))
    assert (row.attained_ratio, row.ttft_p90_s, row.remote_ratio, row.goodput_per_s) == (None, None, None, 0.0)


def test_rows_are_read_as_they_were_written() -> None:
    rows = [run_cell(first_run()).row, to_row(WHERE, summarise([record(0, None)], SLO))]
    assert read_rows(write_rows(rows)) == rows


def test_parquet_holds_the_same_table(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [run_cell(first_run()).row, to_row(WHERE, summarise([], SLO))]
    write_parquet(tmp_path / "rows.parquet", rows)
    table = parquet.read_table(tmp_path / "rows.parquet")
    maps = {"path_requests", "path_attained_ratio", "worker_requests", "errors"}
    found = [
        {name: dict(value) if name in maps else value for name, value in each.items()} for each in table.to_pylist()
    ]
    assert found == [msgspec.structs.asdict(row) for row in rows]
