from pathlib import Path

import pytest
from matplotlib.image import imread

from loadtest.experiment.cells import cell_runs
from loadtest.experiment.figures import draw_latencies, draw_loads, draw_timeline
from loadtest.experiment.rows import Row
from loadtest.experiment.run import Outcome, run_cell, watch_cell
from tests.loadtest.experiment.experiment_lab import first_run, plan


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    slos = {"chat": "ttft=2s,tpot=40ms", "batch": "ttft=9s"}
    return [run_cell(run) for run in cell_runs(plan(slos=slos))]


@pytest.fixture(scope="module")
def rows(outcomes: list[Outcome]) -> list[Row]:
    return [outcome.row for outcome in outcomes]


def test_there_is_a_picture_for_each_workload_fleet_and_slo(tmp_path: Path, rows: list[Row]) -> None:
    pictures = draw_loads(rows, tmp_path)
    assert [picture.name for picture in pictures] == ["load-talk-pair-chat.png", "load-talk-pair-batch.png"]
    assert all(imread(picture).shape[1] > 1000 for picture in pictures)


def test_latencies_have_a_row_of_panels_per_load(tmp_path: Path, outcomes: list[Outcome]) -> None:
    records = {outcome.row.key: outcome.records for outcome in outcomes}
    chat = [outcome.row for outcome in outcomes if outcome.row.slo == "chat"]
    (two,) = draw_latencies(chat, records.__getitem__, tmp_path)
    tall = imread(two).shape[0]
    (one,) = draw_latencies([row for row in chat if row.load == 1.0], records.__getitem__, tmp_path)
    assert tall > imread(one).shape[0] > 300


def test_a_run_is_drawn_over_time_and_written_as_a_trace(tmp_path: Path) -> None:
    picture, trace = draw_timeline(watch_cell(first_run())[1], first_run().label, tmp_path)
    assert picture.name == "talk-pair-remote-x1-chat-s0.png"
    assert imread(picture).shape[1] > 1000
    assert trace.stat().st_size > 1000
