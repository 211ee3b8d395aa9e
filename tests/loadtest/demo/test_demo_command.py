import sys
from pathlib import Path

import pytest

from gateway.core.types import SloTarget
from loadtest.demo import cli

SLO = SloTarget(name="run", ttft_s=2.0, tpot_s=0.04)


def test_without_matplotlib_the_runs_are_shown_and_the_plot_is_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert cli._plotted({}, SLO, tmp_path / "result.png", "A demo") == "No plot: pip install '.[loadtest]'"
    assert list(tmp_path.iterdir()) == []
