"""`tidegate fleet`: what cannot be started is said in one message."""

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from loadtest.fleet.cli import fleet
from loadtest.fleet.fleet import RunningFleet


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Result:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "dumb")
    app = typer.Typer()
    app.command()(fleet)
    return CliRunner().invoke(app, arguments)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--pools", "2X"], "pools are written like 2P2D or 4A"),
        (["--pools", "2P0D"], "could decode"),
        (["--engine", "abacus"], "no engine is called 'abacus'"),
        (["--config", "/no/such/file.yaml"], "/no/such/file.yaml"),
    ],
)
def test_a_fleet_that_cannot_be_is_one_message(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    result = run(monkeypatch, *arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize(("content", "words"), [("[1, 2]", "mapping of sections"), ("a: {", "expected")])
def test_a_wrong_settings_file_is_one_message(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str, words: str
) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(content)
    result = run(monkeypatch, "--config", str(file))
    assert result.exit_code == 2
    assert words in result.stderr


@pytest.mark.parametrize("content", ["", "routing:\n", "# nothing but a comment\n"])
def test_an_empty_settings_file_is_as_good_as_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str
) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(content)
    result = run(monkeypatch, "--config", str(file), "--policy", "local", "--engine", "abacus")
    assert "no engine is called 'abacus'" in result.stderr


def test_all_urls_are_on_one_line() -> None:
    workers = [{"name": "decode-0", "url": "http://127.0.0.1:2"}]
    running = RunningFleet(url="http://127.0.0.1:1", workers=workers, directory=Path())
    assert running.as_json() == (
        '{"url": "http://127.0.0.1:1/v1", "metrics": "http://127.0.0.1:1/metrics",'
        ' "workers": {"decode-0": "http://127.0.0.1:2"}}'
    )
