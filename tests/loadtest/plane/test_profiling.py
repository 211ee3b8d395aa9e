"""Tables of functions from raw stacks."""

from pathlib import Path

import pytest

from loadtest.plane import profiling
from loadtest.plane.building import Skipped
from loadtest.plane.profiling import start_profile, top_functions

STACKS = [
    "thread (7): MainThread;run (loop.py:1);parse (body.py:3) 30",
    "thread (7): MainThread;run (loop.py:1);parse (body.py:9);read (body.py:12) 50",
    "thread (7): MainThread;run (loop.py:2) 20",
    "thread (8): writer;wait (queue.py:5) 900",
    "",
]


def test_lines_of_a_function_are_one_and_other_threads_none() -> None:
    by_own, by_callees = top_functions(STACKS).split("\n\n")
    assert by_own.splitlines()[2:] == [
        "| `read (body.py)` | 50.0% | 50.0% |",
        "| `parse (body.py)` | 30.0% | 80.0% |",
        "| `run (loop.py)` | 20.0% | 100.0% |",
    ]
    assert by_callees.splitlines()[2:] == [
        "| `parse (body.py)` | 30.0% | 80.0% |",
        "| `read (body.py)` | 50.0% | 50.0% |",
    ]


def test_as_many_as_asked_for() -> None:
    assert top_functions(STACKS, top=1).count("%") == 4


def test_a_function_that_calls_itself_counts_once() -> None:
    assert "| `f (a.py)` | 100.0% | 100.0% |" in top_functions(["thread (7): MainThread;f (a.py:1);f (a.py:1) 5"])


def test_without_py_spy_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(profiling.shutil, "which", lambda _, **__: None)
    with pytest.raises(Skipped, match="pip install py-spy"):
        start_profile(1, tmp_path / "x.svg", 1.0)
