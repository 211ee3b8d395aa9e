"""`python -m loadtest.plane`: what it exits with."""

from pathlib import Path

import pytest

from loadtest.plane import cli
from loadtest.plane.measuring import LoadError, Say
from loadtest.plane.results import Report
from loadtest.plane.session import Options
from tests.loadtest.plane.plane_lab import OURS, good_report, stream_memory

CORES = ["--proxy-core", "0", "--load-core", "0"]


def run(monkeypatch: pytest.MonkeyPatch, report: Report | Exception, *arguments: str) -> tuple[int, list[Options]]:
    """Exit status, and what was asked for."""
    asked: list[Options] = []

    def play(options: Options, say: Say) -> Report:
        asked.append(options)
        say("playing")
        if isinstance(report, Exception):
            raise report
        return report

    monkeypatch.setattr(cli, "play", play)
    monkeypatch.setattr(cli, "require_cores", lambda *_: None)
    monkeypatch.setattr(cli.signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit) as left:
        cli.main([*CORES, *arguments])
    assert isinstance(left.value.code, int)
    return left.value.code, asked


def test_all_claims_hold(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    status, (options,) = run(monkeypatch, good_report())
    assert status == 0
    assert (options.rounds, options.fleets, options.ours) == (5, ("single", "pd"), ("auto", "asgi"))
    told = capsys.readouterr().out
    assert told.endswith("7/7 claims hold\n")
    assert "| tidegate auto |" in told


def test_a_claim_that_misses_is_status_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    status, _ = run(monkeypatch, good_report(memory=[stream_memory(OURS, 17.0)]))
    assert status == 1
    assert "MISS memory of each of 2,000 streams, KB: 17.0" in capsys.readouterr().out


def test_a_part_that_failed_is_status_2(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    status, _ = run(monkeypatch, LoadError("plain: refused"))
    assert status == 2
    assert "plain: refused" in capsys.readouterr().err


def test_without_the_sources_it_is_skipped_by_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(cli, "require_cores", lambda *_: None)
    monkeypatch.setattr(cli.signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit) as left:
        cli.main([*CORES, "--bench", str(tmp_path / "nowhere")])
    assert left.value.code == 0
    told = capsys.readouterr().out
    assert told.startswith("skipped: ")
    assert "nowhere/mock.c" in told or "gcc" in told


def test_what_is_chosen_is_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    chosen = ["--ours", "asgi", "--fleet", "pd", "--scenarios", "plain,hand-over", "--against", "", "--json", str(file)]
    _, (options,) = run(monkeypatch, good_report(), *chosen)
    assert (options.ours, options.fleets, options.against) == (("asgi",), ("pd",), ())
    assert options.scenarios == ("plain", "hand-over")
    assert b'"cpu_us"' in file.read_bytes()


@pytest.mark.parametrize("wrong", [["--ours", "threads"], ["--scenarios", "plain,swim"], ["--rounds", "0"]])
def test_what_there_is_not_is_refused(
    monkeypatch: pytest.MonkeyPatch, wrong: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    status, asked = run(monkeypatch, good_report(), *wrong)
    assert (status, asked) == (2, [])
    assert wrong[1].split(",")[-1] in capsys.readouterr().err
