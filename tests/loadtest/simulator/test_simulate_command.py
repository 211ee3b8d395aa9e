import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from loadtest.client.records import read_records
from loadtest.fleet.pools import Pools
from loadtest.simulator.cli import simulate_command
from loadtest.simulator.scenario import Scenario, simulate

SMALL = ("--engine", "h100-llama8b", "--requests", "60")


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Result:
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("TERM", "dumb")
    app = typer.Typer()
    app.command()(simulate_command)
    return CliRunner().invoke(app, arguments)


def test_one_run_is_printed_as_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(monkeypatch, *SMALL)
    assert result.exit_code == 0, result.output
    assert "60/60 requests completed" in result.stdout
    assert "SLO met (TTFT ≤ 2 s, TPOT ≤ 40 ms)" in result.stdout
    assert "requests/s, " in result.stdout
    assert "MiB at most" in result.stdout


def test_several_seeds_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(monkeypatch, *SMALL, "--seeds", "2", "--seed", "5")
    assert result.exit_code == 0, result.output
    assert "seed 5" in result.stdout
    assert "seed 6" in result.stdout


def test_json_is_a_line_a_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(monkeypatch, *SMALL, "--seeds", "2", "--json")
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["seed"] for line in lines] == [0, 1]
    for line in lines:
        assert line["summary"]["completed"] == 60
        assert line["events"] > 60
        assert line["peak_memory_mib"] > 1
        assert line["wall_s"] > 0


def test_records_are_written_as_a_live_run_writes_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    assert run(monkeypatch, *SMALL, "--seeds", "2", "--out", str(out)).exit_code == 0
    scenario = Scenario(
        trace="synthetic:mooncake", pools=Pools(prefill=2, decode=2), engine="h100-llama8b", requests=60
    )
    for seed in (0, 1):
        assert read_records(out / f"seed-{seed}.jsonl") == simulate(scenario, seed=seed).records


def test_options_reach_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    options = ("--pools", "3A", "--policy", "llmd", "--set", "routing.llmd.non_cached_tokens=1")
    result = run(monkeypatch, *SMALL, *options, "--until", "5", "--slo", "ttft=9s", "--json")
    assert result.exit_code == 0, result.output
    (line,) = map(json.loads, result.stdout.splitlines())
    assert line["simulated_s"] <= 5.0
    assert line["summary"]["slo_ttft_s"] == 9.0
    assert line["summary"]["slo_tpot_s"] is None
    assert set(line["summary"]["workers"]) <= {"worker-0", "worker-1", "worker-2"}
    assert "remote" in line["summary"]["paths"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--pools", "2X"], "pools are written like 2P2D or 4A"),
        (["--engine", "abacus"], "no engine is called 'abacus'"),
        (["--trace", "synthetic:nothing"], "unknown synthetic trace"),
        (["--trace", "mooncake:/no/such/file"], "/no/such/file"),
        (["--policy", "/no/such/bundle"], "cannot read policy bundle"),
        (["--set", "routing.dynamo.polcy=x"], "routing.dynamo.polcy"),
        (["--slo", "fast"], "not an SLO"),
        (["--policy", "learned"], "needs bundle or store"),
    ],
)
def test_what_cannot_be_is_one_message(monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str) -> None:
    result = run(monkeypatch, "--requests", "5", *arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert "Traceback" not in result.output
