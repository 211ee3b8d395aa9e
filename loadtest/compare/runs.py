"""Runs that were done are not done again.

The rule of this module: a run's file is named after all that it depends on: its task, the sources and cost tables that
it executes, and the traces' files. A file is there wholly or not at all, so what was stopped can go on.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np

from loadtest.compare.serving import Served, Task
from loadtest.experiment.fingerprint import code_version
from loadtest.experiment.kept import sources_hash, stamp, written_whole

SECONDS = np.float32
"""How latencies are kept."""
MAKES_RUNS = ("compare/serving", "compare/traffic", "compare/uncorrected", "learning/simulated")
"""Modules that a run depends on, beside those that every experiment does."""


@dataclass(frozen=True, slots=True)
class Runs:
    """The runs that are kept in a directory; None keeps none."""

    directory: Path | None = None

    def serve(self, task: Task) -> Served:
        """What a task gives, from its file where there is one."""
        if self.directory is None:
            return task.run()
        file = self.directory / f"{_key(task)}.npz"
        if file.exists():
            return _read(file)
        served = task.run()
        _write(served, file)
        return _read(file)

    def serve_all(self, tasks: Sequence[Task]) -> list[Served]:
        """One after the other."""
        return [self.serve(task) for task in tasks]


def _key(task: Task) -> str:
    files = [(name, stamp(Path(name))) for name in _names(task)]
    return sha256(repr((task.key, files, code_version(), sources_hash(MAKES_RUNS))).encode()).hexdigest()[:24]


def _names(task: Task) -> list[str]:
    return [spec.partition(":")[2].partition("?")[0] for spec in task.traffic.sources()]


def _read(file: Path) -> Served:
    with np.load(file, allow_pickle=False) as found:
        return Served(
            ttft_s=found["ttft_s"].astype(float),
            tpot_s=found["tpot_s"].astype(float),
            met=found["met"],
            local=found["local"],
        )


def _write(served: Served, file: Path) -> None:
    with written_whole(file) as stream:
        np.savez_compressed(
            stream,
            ttft_s=served.ttft_s.astype(SECONDS),
            tpot_s=served.tpot_s.astype(SECONDS),
            met=served.met,
            local=served.local,
        )
