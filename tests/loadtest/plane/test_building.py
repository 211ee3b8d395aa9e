"""Compiling the mock and the load: what is added, and what is refused."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from loadtest.plane import building
from loadtest.plane.building import (
    LOAD_ADDITIONS,
    MOCK_ADDITIONS,
    BuildError,
    Skipped,
    build,
    hand_over_tail,
    with_additions,
)

SHARED = Path(os.environ.get("TIDEGATE_SHARED", Path(__file__).parents[4] / "shared"))
BENCH = SHARED / "bench"
NEEDS_GCC = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
NEEDS_BENCH = pytest.mark.skipif(not (BENCH / "mock.c").is_file(), reason="needs the programs in shared/bench")


def test_additions_take_their_places() -> None:
    assert with_additions("a b c", [("a", "1"), ("c", "3")]) == "1 b 3"


@pytest.mark.parametrize("source", ["b", "a a"])
def test_a_source_that_has_no_place_for_one_is_refused(source: str) -> None:
    with pytest.raises(BuildError, match="not once"):
        with_additions(source, [("a", "1")])


@NEEDS_GCC
def test_a_source_that_is_not_here_is_told_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(Skipped, match=r"nowhere/mock\.c is not here"):
        build(tmp_path / "nowhere", tmp_path)


def test_without_a_compiler_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(building.shutil, "which", lambda _: None)
    with pytest.raises(Skipped, match="gcc"):
        build(tmp_path, tmp_path)


@NEEDS_GCC
def test_what_the_compiler_says_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(building, "MOCK_ADDITIONS", ())
    (tmp_path / "mock.c").write_text("int main(void) { return nothing; }")
    with pytest.raises(BuildError, match="nothing"):
        build(tmp_path, tmp_path)


@NEEDS_GCC
def test_an_unknown_source_is_told_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "mock.c").write_text("int main(void) { return 0; }")
    with pytest.raises(BuildError, match=r"mock\.c: "):
        build(tmp_path, tmp_path)


def test_the_hand_over_is_one_more_member() -> None:
    whole = json.loads('{"a": 1' + hand_over_tail() + "}")
    assert whole["kv_transfer_params"]["do_remote_prefill"] is True


@pytest.mark.shared_data
@NEEDS_BENCH
def test_the_additions_fit_the_sources() -> None:
    assert "LOAD_MEMBERS" in with_additions((BENCH / "load.c").read_text(), LOAD_ADDITIONS)
    assert "MOCK_TAIL" in with_additions((BENCH / "mock.c").read_text(), MOCK_ADDITIONS)


@pytest.mark.shared_data
@NEEDS_BENCH
@NEEDS_GCC
def test_both_programs_are_built(tmp_path: Path) -> None:
    programs = build(BENCH, tmp_path)
    # Nobody listens on port 1: the load says so and ends.
    done = subprocess.run([programs.load, "-p", "1", "-c", "1"], capture_output=True, check=False)
    assert (done.returncode, b"connect" in done.stderr) == (2, True)
    assert os.access(programs.mock, os.X_OK)
