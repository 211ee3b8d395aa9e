"""Child processes that never outlive their parent.

The rule of this module: whoever starts a process also ends it, by its own id, and says what it printed when it died
early.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0
POLL_S = 0.05


class FleetError(RuntimeError):
    """A part of the fleet could not be started, and what it said."""


@contextlib.contextmanager
def running(arguments: Sequence[str], *, log: Path, pipe_output: bool = False) -> Iterator[subprocess.Popen[bytes]]:
    """A Python module as a child process; its standard input is a pipe that closes with us."""
    with log.open("ab") as output:
        process = subprocess.Popen(  # noqa: S603 (our own modules)
            [sys.executable, "-m", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if pipe_output else output,
            stderr=output,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        try:
            yield process
        finally:
            _end(process)


def first_line(process: subprocess.Popen[bytes], log: Path) -> Mapping[str, Any]:
    """The JSON object that a process prints once it is ready.

    Raises:
        FleetError: it ended, or printed something else.
    """
    assert process.stdout is not None
    line = process.stdout.readline()
    try:
        answer = json.loads(line)
    except ValueError:
        raise FleetError(f"a child process did not start: {_tail(log)}") from None
    if not isinstance(answer, dict):
        raise FleetError(f"a child process printed {line!r} instead of a JSON object")
    return answer


def wait_until_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    """Ask `url` until it answers 200.

    Raises:
        FleetError: the process ended, or did not answer in time.
    """
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline_s:
        try:
            with urllib.request.urlopen(url, timeout=1.0):  # noqa: S310 (our own loopback URL)
                return
        except (urllib.error.URLError, OSError):
            time.sleep(POLL_S)
    raise FleetError(f"{url} did not answer: {_tail(log)}")


def _end(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    return " | ".join(lines[-5:]) or "it printed nothing"
