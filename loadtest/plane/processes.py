"""Processes that stay on one core, and what the kernel says of them.

The rule of this module: whoever starts a process also ends it, by its own id. CPU time is the scheduler's, in
nanoseconds, of all threads of a process and of all processes below it.
"""

import contextlib
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from loadtest.fleet.processes import STOP_TIMEOUT_S

PROC = Path("/proc")


class NoCore(RuntimeError):  # noqa: N818 (it says what is the case)
    """This process may not run on a core that was asked for."""


def require_cores(*cores: int) -> None:
    """Check that these cores are there; raises NoCore."""
    allowed = os.sched_getaffinity(0)
    missing = [core for core in cores if core not in allowed]
    if missing:
        raise NoCore(f"core {missing[0]} is not among those that may be used: {sorted(allowed)}")


@contextlib.contextmanager
def pinned(
    command: Sequence[str], *, core: int, log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A command on one core, until the end; what it prints goes to `log`, its standard input closes with us."""
    with log.open("ab") as output:
        process = subprocess.Popen(  # noqa: S603 (our own commands)
            pinned_command(command, core),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})},
        )
    try:
        yield process
    finally:
        end(process)


def pinned_command(command: Sequence[str], core: int) -> list[str]:
    """The command that runs `command` on one core, under the same process id."""
    return ["taskset", "-c", str(core), *command]


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask a process to end, and make it where it does not."""
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def family(pid: int, proc: Path = PROC) -> list[int]:
    """A process and all below it, those that are gone left out."""
    found, todo = [], [pid]
    while todo:
        one = todo.pop()
        with contextlib.suppress(OSError):
            children = [(task / "children").read_text() for task in (proc / str(one) / "task").iterdir()]
            found.append(one)
            todo += [int(child) for text in children for child in text.split()]
    return sorted(found)


def cpu_ns(pid: int, proc: Path = PROC) -> int:
    """What a process and those below it have run for; a thread that has ended counts no longer."""
    total = 0
    for one in family(pid, proc):
        for task in (proc / str(one) / "task").glob("*/schedstat"):
            with contextlib.suppress(OSError):
                total += int(task.read_text().split()[0])
    return total


def rss_bytes(pid: int, proc: Path = PROC) -> int:
    """Resident memory of a process and those below it."""
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    return sum(int((proc / str(one) / "statm").read_text().split()[1]) * page_bytes for one in family(pid, proc))


def open_files(pid: int, proc: Path = PROC) -> int:
    """File descriptors of a process."""
    return len(list((proc / str(pid) / "fd").iterdir()))


def threads(pid: int, proc: Path = PROC) -> int:
    """Threads of a process."""
    return len(list((proc / str(pid) / "task").iterdir()))
