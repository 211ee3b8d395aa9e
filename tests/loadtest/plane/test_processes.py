"""What the kernel says of a process and those below it, from files made by hand."""

import os
import sys
from pathlib import Path

import pytest

from loadtest.plane.processes import NoCore, cpu_ns, family, pinned, require_cores, rss_bytes
from tests.loadtest.plane.plane_lab import kernel


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """10 with two threads, 20 below the second of them, 30 below that; 40 was a child and is gone."""
    kernel(tmp_path, 10, children={10: "40 ", 11: "20 "}, ran_ns={10: 1_000, 11: 200}, pages=5)
    kernel(tmp_path, 20, children={20: "30"}, ran_ns={20: 30}, pages=2)
    kernel(tmp_path, 30, children={30: ""}, ran_ns={30: 4}, pages=1)
    kernel(tmp_path, 99, children={99: ""}, ran_ns={99: 10**6}, pages=1000)
    return tmp_path


def test_a_family_is_all_below_a_process_that_are_there(proc: Path) -> None:
    assert family(10, proc) == [10, 20, 30]
    assert family(30, proc) == [30]
    assert family(40, proc) == []


def test_cpu_time_is_that_of_all_threads_of_the_family(proc: Path) -> None:
    assert cpu_ns(10, proc) == 1_234
    assert cpu_ns(20, proc) == 34


def test_memory_is_that_of_the_family(proc: Path) -> None:
    assert rss_bytes(10, proc) == 8 * os.sysconf("SC_PAGE_SIZE")


def test_a_core_that_is_not_there_is_told() -> None:
    require_cores(*os.sched_getaffinity(0))
    with pytest.raises(NoCore, match="core 4096"):
        require_cores(4096)


@pytest.mark.e2e
def test_a_command_runs_on_its_core_and_ends_with_its_context(tmp_path: Path) -> None:
    core = max(os.sched_getaffinity(0))
    says = "import os, sys; print(os.sched_getaffinity(0), os.environ['WORD'], flush=True); sys.stdin.read()"
    log = tmp_path / "log"
    with pinned([sys.executable, "-c", says], core=core, log=log, environment={"WORD": "here"}) as process:
        while not log.read_text():
            assert process.poll() is None
        assert cpu_ns(process.pid) > 0
    assert log.read_text() == f"{{{core}}} here\n"
    assert process.poll() is not None
