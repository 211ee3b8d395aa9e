"""Child processes that never outlive their parent."""

from pathlib import Path

import pytest

from loadtest.fleet import processes
from loadtest.fleet.processes import FleetError, first_line, running, wait_until_ready

pytestmark = pytest.mark.e2e

WAITS = "import sys; print('{\"ready\": 1}', flush=True); sys.stdin.read()"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('{}', flush=True)\n"
    "while True: time.sleep(1)"
)


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where the child's code goes; it is run as the module `child`."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path / "child.py"


def test_a_child_says_that_it_is_ready_and_ends_with_its_context(module: Path, tmp_path: Path) -> None:
    module.write_text(WAITS)
    with running(["child"], log=tmp_path / "log", pipe_output=True) as process:
        assert first_line(process, tmp_path / "log") == {"ready": 1}
        assert process.poll() is None
    assert process.poll() is not None


def test_a_child_that_will_not_end_is_killed(module: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "STOP_TIMEOUT_S", 0.1)
    module.write_text(STUBBORN)
    with running(["child"], log=tmp_path / "log", pipe_output=True) as process:
        first_line(process, tmp_path / "log")
    assert process.poll() == -9


def test_a_child_ends_where_its_parent_fails(module: Path, tmp_path: Path) -> None:
    module.write_text(WAITS)
    with pytest.raises(KeyError), running(["child"], log=tmp_path / "log") as process:
        raise KeyError
    assert process.poll() is not None


def test_a_child_that_dies_early_is_quoted(module: Path, tmp_path: Path) -> None:
    module.write_text("raise SystemExit('no such engine')")
    with (
        running(["child"], log=tmp_path / "log", pipe_output=True) as process,
        pytest.raises(FleetError, match="did not start: no such engine"),
    ):
        first_line(process, tmp_path / "log")


def test_a_child_that_prints_something_else_is_quoted(module: Path, tmp_path: Path) -> None:
    module.write_text("print('[1]')")
    with (
        running(["child"], log=tmp_path / "log", pipe_output=True) as process,
        pytest.raises(FleetError, match="instead of a JSON object"),
    ):
        first_line(process, tmp_path / "log")


def test_waiting_for_a_child_that_has_died_ends_at_once(module: Path, tmp_path: Path) -> None:
    module.write_text("print('port in use')")
    with running(["child"], log=tmp_path / "log") as process:
        process.wait()
        with pytest.raises(FleetError, match="did not answer: port in use"):
            wait_until_ready(process, "http://127.0.0.1:9/readyz", tmp_path / "log")


def test_a_silent_child_is_said_to_be_silent(module: Path, tmp_path: Path) -> None:
    module.write_text("")
    with (
        running(["child"], log=tmp_path / "log", pipe_output=True) as process,
        pytest.raises(FleetError, match="it printed nothing"),
    ):
        first_line(process, tmp_path / "log")
