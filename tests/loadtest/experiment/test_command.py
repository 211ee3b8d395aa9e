import subprocess
import sys
from pathlib import Path

import pytest
import typer
import yaml
from typer.testing import CliRunner, Result

from loadtest.experiment.command import EXAMPLES, experiment_command
from loadtest.experiment.plan import parse_plan
from loadtest.experiment.rows import read_rows
from tests.loadtest.experiment.experiment_lab import TREE

APP = typer.Typer(pretty_exceptions_enable=False)
APP.command()(experiment_command)


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(APP, [str(argument) for argument in arguments], env={"COLUMNS": "100"})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump({**TREE, "loads": [1.0]}))
    return path


def test_an_experiment_becomes_a_table_and_plots_and_goes_on_where_it_was(tmp_path: Path, file: Path) -> None:
    out = tmp_path / "out"
    label = "talk/pair/local/x1/chat/s1"
    done = invoke(file, "--out", out, "--jobs", 1, "--timeline", label)
    assert done.exit_code == 0, done.output
    assert "talk on pair, SLO chat" in done.output
    assert len(read_rows((out / "results.jsonl").read_bytes())) == 4
    assert sorted(path.name for path in (out / "plots").iterdir()) == [
        "latency-talk-pair-chat.png",
        "load-talk-pair-chat.png",
    ]
    assert (out / "timelines" / "talk-pair-local-x1-chat-s1.trace.json").exists()
    refused = invoke(file, "--out", out)
    assert refused.exit_code == 2
    assert "holds results" in refused.output
    again = invoke(file, "--out", out, "--resume", "--no-plots")
    assert again.exit_code == 0
    assert "4 of 4 runs were there already" in again.output


def test_a_mistake_in_the_file_is_told_with_its_field(tmp_path: Path) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(yaml.safe_dump({**TREE, "seeds": 0}))
    refused = invoke(file, "--out", tmp_path / "out")
    assert refused.exit_code == 2
    assert "seeds: at least one seed is needed" in refused.output


def test_an_unknown_run_is_not_drawn(tmp_path: Path, file: Path) -> None:
    refused = invoke(file, "--out", tmp_path / "out", "--timeline", "nothing")
    assert refused.exit_code == 2
    assert "there is no run 'nothing'" in refused.output


def test_shipped_examples_are_plans_on_synthetic_traces() -> None:
    names = [example.name for example in EXAMPLES.iterdir() if example.name.endswith(".yaml")]
    assert len(names) >= 2
    for name in names:
        plan = parse_plan(yaml.safe_load((EXAMPLES / name).read_bytes()))
        assert plan.name == name.removesuffix(".yaml")
        assert all(workload.trace.startswith("synthetic:") for workload in plan.workloads.values())


def test_the_command_line_does_not_wait_for_what_only_experiments_need() -> None:
    code = (
        "import sys, loadtest.experiment.command;"
        "print(*[name for name in ('joblib', 'scipy', 'matplotlib', 'ray', 'pyarrow') if name in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.split() == []
