from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import typer
from typer.testing import CliRunner

from loadtest.commands import COMMANDS
from loadtest.compare import presets
from loadtest.compare.command import compare_command
from loadtest.compare.effort import BROAD, FULL
from loadtest.compare.presets import PRESETS, QUICK_PRESETS
from loadtest.compare.session import Report
from loadtest.conserve import session
from loadtest.conserve.claims import claims
from loadtest.conserve.results import ConserveReport
from tests.loadtest.compare.compare_lab import PLACE, TINY
from tests.loadtest.conserve.conserve_lab import EXACT, arm, cell

APP = typer.Typer(pretty_exceptions_enable=False)
APP.command()(compare_command)


def test_the_command_is_one_of_tidegates() -> None:
    assert COMMANDS["compare"] is compare_command


def test_the_headline_is_all_cells_and_a_quick_one_is_no_claim() -> None:
    headline = PRESETS["headline"]
    assert len(headline.places) * len(headline.loads) == 4 * 4 * 2 * 2 * 3
    assert headline.places[0].workload == "mix"
    assert headline.effort.proves
    assert all(not preset.effort.proves for preset in QUICK_PRESETS.values())
    assert len(PRESETS["limits"].abroad) == 63


def test_cells_that_a_bound_is_about_are_looked_at_harder_than_the_rest() -> None:
    headline = PRESETS["headline"]
    by_cell = [
        (place, load, effort)
        for place in headline.places
        for effort, loads in headline.efforts(place)
        for load in loads
    ]
    assert len({(place.label, load) for place, load, _ in by_cell}) == len(by_cell) == 192
    hard = [(place.label, load) for place, load, effort in by_cell if effort is FULL]
    assert hard == [(f"mix/{pools}/h100-llama70b-tp4/standard", 1.0) for pools in ("2P2D", "1P3D")]
    assert {effort.requests for *_, effort in by_cell} == {FULL.requests, BROAD.requests}
    (everything,) = PRESETS["bounds"].efforts(PRESETS["bounds"].places[0])
    assert everything == (FULL, PRESETS["bounds"].loads)


def test_a_missed_bound_is_told_and_ends_with_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = replace(QUICK_PRESETS["headline"], places=(PLACE,), effort=TINY)
    monkeypatch.setattr(presets, "QUICK_PRESETS", {"headline": tiny})
    out, file = tmp_path / "out", tmp_path / "found.json"
    done = CliRunner().invoke(
        APP,
        f"--preset headline --quick --jobs 1 --data {tmp_path / 'none'} --out {out} --json {file}".split(),
    )
    assert done.exit_code == 1, done.output
    assert "generators that were fitted to the traces stand in" in done.output
    assert "MISS mix/2P2D/h100-llama70b-tp4/standard/100%: ttft_p90_s" in done.output
    assert "This run is no claim" in done.output
    found = msgspec.json.decode(file.read_bytes(), type=Report)
    assert [cell.label for cell in found.cells] == ["azure/1P1D/h100-llama8b/standard/100%"]
    assert (out / "report.md").read_text().startswith("# Comparison: headline")


def test_the_table_is_learned_live_alone() -> None:
    done = CliRunner().invoke(APP, ["--preset", "headline", "--table"], env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert "--table goes with --preset live" in done.output


def test_what_is_learned_live_is_learned_at_home_and_a_quick_one_is_no_claim() -> None:
    full, quick = PRESETS["live"], QUICK_PRESETS["live"]
    assert [place.label for place in full.places] == ["mix/2P2D/h100-llama70b-tp4/standard"]
    assert full.places == quick.places
    assert full.live is not None
    assert quick.live is not None
    assert full.live.rounds >= 3
    assert quick.live.budget < full.live.budget
    assert quick.is_quick


def test_conversations_are_compared_by_the_same_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [cell(arm("per turn"), arm("conserve", baseline=EXACT, ttfet_p95_s=1.5))]
    report = ConserveReport(is_claim=False, claims=claims(cells), cells=cells, weights={})
    monkeypatch.setattr(session, "run_conserve", lambda **_: report)
    out, file = tmp_path / "out", tmp_path / "found.json"
    asked = ["--preset", "conserve", "--quick", "--data", str(tmp_path), "--out", str(out), "--json", str(file)]
    done = CliRunner().invoke(APP, asked, env={"COLUMNS": "200"})
    assert done.exit_code == 1
    assert "ok   miniswe/2P2D at 80% of 'per turn': conserve: transfers per conversation: 1.000" in done.output
    assert "MISS miniswe/2P2D at 80% of 'per turn': conserve: P95 TTFET against 'per turn': +50.0%" in done.output
    assert "This run is no claim" in done.output
    assert msgspec.json.decode(file.read_bytes(), type=ConserveReport) == report
    assert (out / "report.md").read_text().startswith("# Comparison: conserve")
