import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from policy_store.learn.output_length import command
from policy_store.learn.output_length.datasets import SOURCES
from policy_store.learn.output_length.judge import Calibration, Ranking
from policy_store.learn.output_length.report import Verdict
from policy_store.learn.output_length.rows import LengthRows

pytest.importorskip("xgboost")


def ranked(accuracy: float) -> Ranking:
    return Ranking(accuracy=accuracy, low=accuracy - 0.05, high=accuracy + 0.05, pairs=10)


VERDICT = Verdict(
    data_set="arena_hard",
    model="gpt-4-0314",
    rows=500,
    split="classes",
    length_alone=0.52,
    paper=ranked(0.5),
    by_class=ranked(0.8),
    by_length=ranked(0.7),
    ablation={},
    classes=0.8,
    calibration=Calibration(long_error=0.01, mean_ratio=1.0, decile_ratios=(1.0,) * 10),
)


@pytest.fixture
def app() -> typer.Typer:
    made = typer.Typer()
    made.command()(command.main)
    return made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / SOURCES["arena_hard"].file
    path.parent.mkdir(parents=True)
    line = {"set": "v2.0", "cluster": "coding", "prompt": "Write code", "out_tok": {"gpt-4-0314": 5}}
    path.write_bytes(gzip.compress(json.dumps(line).encode()))
    return tmp_path


def judged(monkeypatch: pytest.MonkeyPatch, verdict: Verdict) -> None:
    def judge(name: str, rows: LengthRows, *, repeats: int, ablate: bool) -> list[Verdict]:
        return [verdict]

    monkeypatch.setattr(command, "judge", judge)


def test_a_bound_that_is_kept_exits_well(app: typer.Typer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judged(monkeypatch, VERDICT)
    figures = folder / "figures.json"
    ran = CliRunner().invoke(app, ["--data", str(folder), "--no-ablate", "--json", str(figures)])
    assert ran.exit_code == 0
    assert "not there" in ran.output  # the other data sets are named
    assert json.loads(figures.read_text())["verdicts"][0]["by_class"]["accuracy"] == 0.8


def test_a_bound_that_is_missed_is_marked_and_exits_with_1(
    app: typer.Typer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged(monkeypatch, replace(VERDICT, by_class=ranked(0.7)))
    ran = CliRunner().invoke(app, ["--data", str(folder), "--no-ablate", "--data-set", "arena_hard"])
    assert ran.exit_code == 1
    assert "SHORT" in ran.output


def test_where_thirds_stand_in_the_expected_length_is_judged() -> None:
    assert VERDICT.met
    assert not replace(VERDICT, split="thirds").met


@pytest.mark.parametrize("arguments", [["--data-set", "humaneval"], ["--data-set", "magagent"]])
def test_what_is_not_there_is_refused(app: typer.Typer, folder: Path, arguments: list[str]) -> None:
    assert CliRunner().invoke(app, ["--data", str(folder), *arguments]).exit_code == 2
