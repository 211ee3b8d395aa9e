from dataclasses import replace

import pytest
import typer
from typer.testing import CliRunner

from loadtest.simulator import soak as soak_module
from loadtest.simulator.soak import Soak, main, soak, soak_table

CLEAN = Soak(requests=9, events=80, records=9, well=9, reservations=0, busy_engines=0, cpu_s=1.0)


def test_a_run_loses_nothing() -> None:
    found = soak(150, seed=1)
    assert found.holds
    assert (found.requests, found.records, found.well) == (150, 150, 150)
    assert found.events > 150


@pytest.mark.parametrize(
    "change",
    [{"records": 8}, {"well": 8}, {"reservations": 1}, {"busy_engines": 1}],
    ids=lambda change: next(iter(change)),
)
def test_whatever_is_lost_or_left_is_a_failure(change: dict[str, int]) -> None:
    assert CLEAN.holds
    assert not replace(CLEAN, **change).holds  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "arguments", "status"),
    [
        (CLEAN, ["--events", "80"], 0),
        (CLEAN, ["--events", "81"], 1),
        (CLEAN, [], 1),
        (replace(CLEAN, records=8), ["--events", "80"], 1),
    ],
)
def test_the_command_says_how_it_went(
    monkeypatch: pytest.MonkeyPatch, found: Soak, arguments: list[str], status: int
) -> None:
    monkeypatch.setattr(soak_module, "soak", lambda requests, seed: found)
    app = typer.Typer()
    app.command()(main)
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == status
    assert "requests with a record" in result.output
    assert soak_table(found).row_count == 7
