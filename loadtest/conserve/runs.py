"""Runs that were done are not done again.

The rule of this module: a result's file is named after all that it depends on: its task, what is asked of it, the
sources and cost tables that it executes, and the trace's file. A file is there wholly or not at all.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

import joblib
import msgspec

from loadtest.conserve.serving import Served, Task, throughput
from loadtest.conserve.traffic import SOURCES
from loadtest.experiment.fingerprint import code_version
from loadtest.experiment.kept import sources_hash, stamp, written_whole

Kept = TypeVar("Kept")
MAKES_RUNS = ("conserve/serving", "conserve/traffic", "conserve/arms", "learning/simulated", "learning/prices")
"""Modules that a run depends on, beside those that every experiment does."""


@dataclass(frozen=True, slots=True)
class Runs:
    """What is kept in a directory; None keeps nothing. Several tasks run on several cores."""

    directory: Path | None = None
    jobs: int = 1

    def serve_all(self, tasks: Sequence[Task]) -> list[Served]:
        """What each task gives, in their order."""
        return self._all(tasks, Task.run, Served)

    def throughputs(self, tasks: Sequence[Task]) -> list[float]:
        """What each task's fleet gets done at most; see `throughput`."""
        return self._all(tasks, throughput, float)

    def _all(self, tasks: Sequence[Task], ask: Callable[[Task], Kept], kind: type[Kept]) -> list[Kept]:
        calls = (joblib.delayed(_kept)(self.directory, task, ask, kind) for task in tasks)
        found: list[Kept] = joblib.Parallel(n_jobs=self.jobs, batch_size=1)(calls)
        return found


def _kept(directory: Path | None, task: Task, ask: Callable[[Task], Kept], kind: type[Kept]) -> Kept:
    if directory is None:
        return ask(task)
    file = directory / f"{_key(task, ask.__qualname__)}.msgpack"
    if file.exists():
        return msgspec.msgpack.decode(file.read_bytes(), type=kind)
    found = ask(task)
    with written_whole(file) as stream:
        stream.write(msgspec.msgpack.encode(found))
    return found


def _key(task: Task, asked: str) -> str:
    talk = task.talk
    file = None if talk.data is None else stamp(talk.data / SOURCES[talk.workload].file)
    return sha256(repr((asked, task.key, file, code_version(), sources_hash(MAKES_RUNS))).encode()).hexdigest()[:24]
