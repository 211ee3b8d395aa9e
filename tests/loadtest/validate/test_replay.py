import gzip
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from loadtest.validate import replay
from loadtest.validate.replay import Comparison, Pace, comparison_table, pace_words
from loadtest.validate.replay_runs import KV_ROUTER, ROUND_ROBIN, Latencies, Setup

IN_TURN = Setup(prefill=2, decode=2, router=ROUND_ROBIN)
BY_COST = Setup(prefill=0, decode=8, router=KV_ROUTER)


def comparison(ours_ms: float, *, setup: Setup = IN_TURN, dynamo_ms: tuple[float, ...] = (100.0,)) -> Comparison:
    return Comparison(setup=setup, metric="ttft", share=0.5, dynamo_ms=dynamo_ms, ours_ms=(ours_ms,))


@pytest.mark.parametrize(("ours_ms", "holds"), [(99.1, True), (100.9, True), (98.9, False), (101.1, False)])
def test_in_turn_the_bound_is_one_percent(ours_ms: float, holds: bool) -> None:
    assert comparison(ours_ms).holds is holds


@pytest.mark.parametrize(("ours_ms", "holds"), [(81.0, True), (119.0, True), (79.0, False), (121.0, False)])
def test_by_cost_the_bound_is_how_far_dynamos_own_runs_lie_apart(ours_ms: float, holds: bool) -> None:
    assert comparison(ours_ms, setup=BY_COST, dynamo_ms=(90.0, 100.0, 110.0)).holds is holds


def test_means_are_compared() -> None:
    one = Comparison(setup=BY_COST, metric="tpot", share=0.9, dynamo_ms=(10.0, 30.0), ours_ms=(21.0, 23.0))
    assert one.error == pytest.approx(0.1)
    assert one.bound == 1.0


def test_a_pace_is_how_many_times_as_fast_ours_was() -> None:
    found = Pace(dynamo_s=(4.0, 9.0, 6.0), ours_s=(2.0, 3.0, 1.0))
    assert found.ratios == (2.0, 3.0, 6.0)
    assert "Dynamo 6.00 s, ours 2.00 s; ours is 2.00 / 3.00 / 6.00 times as fast" in pace_words(found)


def test_the_table_has_a_row_a_comparison() -> None:
    assert comparison_table((comparison(100.0), comparison(120.0))).row_count == 2


def command(*arguments: str) -> tuple[int, str]:
    app = typer.Typer()
    app.command()(replay.main)
    result = CliRunner().invoke(app, ["--trace", "t", "--python", "p", *arguments])
    return result.exit_code, result.output


@pytest.mark.parametrize(("ours_ms", "status", "word"), [(100.5, 0, "yes"), (102.0, 1, "NO")])
def test_the_command_fails_where_a_bound_is_missed(
    monkeypatch: pytest.MonkeyPatch, ours_ms: float, status: int, word: str
) -> None:
    monkeypatch.setattr(replay, "compare", lambda trace, python, on_run: (comparison(100.0), comparison(ours_ms)))
    found, printed = command()
    assert found == status
    assert "TTFT P50" in printed
    assert word in printed


@pytest.mark.parametrize(("dynamo_s", "status"), [((2.0, 2.0, 9.0), 0), ((9.0, 1.9, 1.9), 1)])
def test_the_pace_fails_where_its_median_is_under_twice(
    monkeypatch: pytest.MonkeyPatch, dynamo_s: tuple[float, ...], status: int
) -> None:
    monkeypatch.setattr(replay, "pace", lambda trace, python: Pace(dynamo_s=dynamo_s, ours_s=(1.0, 1.0, 1.0)))
    assert command("--pace")[0] == status


def test_every_fleet_is_compared_in_turn_and_by_cost(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl.gz"
    trace.write_bytes(gzip.compress(b'{"timestamp": 0, "input_length": 700, "output_length": 2, "hash_ids": [0, 1]}\n'))
    seeds: list[int] = []

    def run_dynamo(python: Path, plain: Path, setup: Setup) -> Latencies:
        assert plain.read_bytes().startswith(b'{"timestamp"')
        return Latencies(took_s=1.0, ttft_ms=[100.0], tpot_ms=[10.0])

    def run_ours(plain: Path, setup: Setup, *, seed: int) -> Latencies:
        seeds.append(seed)
        return Latencies(took_s=1.0, ttft_ms=[101.0], tpot_ms=[10.0])

    monkeypatch.setattr(replay, "run_dynamo", run_dynamo)
    monkeypatch.setattr(replay, "run_ours", run_ours)
    said: list[str] = []
    found = replay.compare(trace, Path("python"), on_run=said.append)
    assert said == [
        *(f"{fleet}, round_robin" for fleet in ("2P2D", "4P4D", "8 aggregated")),
        *(f"{fleet}, kv_router" for fleet in ("2P2D", "4P4D", "8 aggregated")),
    ]
    # Two metrics at three percentiles each.
    assert len(found) == 6 * 6
    assert {len(each.dynamo_ms) for each in found if each.setup.router == KV_ROUTER} == {replay.DYNAMO_RUNS}
    assert seeds == [0, 0, 0] + [0, 1, 2] * 3
