"""Runs many cells at once, over cores or over a Ray cluster.

The rule of this module: outcomes come as they end and each is handed on at once; one that fails costs the others
nothing. Which worker computes a run changes nothing, and a worker whose code or files differ is told on.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

import joblib

from loadtest.experiment.cells import CellRun
from loadtest.experiment.run import Outcome, run_cell

ALL_CORES = -1
STREAMING_RAY = "ray-streaming"


class Backend(StrEnum):
    """Who computes."""

    LOKY = "loky"
    """Processes on this machine."""
    RAY = "ray"
    """The Ray cluster at RAY_ADDRESS, else one that is started on this machine."""


class BackendMissing(ImportError):  # noqa: N818 - named after what happened
    """Ray is not installed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A run that ended, well or not."""

    run: CellRun
    key: str
    outcome: Outcome | None
    error: str | None
    """Where there is no outcome."""
    wall_s: float


def run_all(todo: Sequence[tuple[str, CellRun]], *, jobs: int = ALL_CORES, backend: Backend) -> Iterator[Done]:
    """Every run's end, in the order of their ends; given are pairs of a key and a run.

    Raises:
        BackendMissing: ray is not installed.
    """
    # Runs of one workload lie side by side, so that a worker loads it once.
    ordered = sorted(todo, key=lambda pair: (pair[1].cell.workload, pair[1].cell.load, pair[1].seed))
    with _backend(backend, jobs):
        tasks = (joblib.delayed(_guarded)(key, run) for key, run in ordered)
        yield from joblib.Parallel(return_as="generator_unordered", batch_size=1)(tasks)


def _guarded(key: str, run: CellRun) -> Done:
    """Run it where this is called; an exception becomes its error."""
    began = time.perf_counter()
    try:
        outcome = run_cell(run)
    except Exception as error:  # noqa: BLE001 (one cell's failure must not end the others)
        return _done(run, key, began, error=f"{type(error).__name__}: {error}")
    if outcome.row.key != key:
        return _done(run, key, began, error="the worker's code or trace files differ from those that started it")
    return _done(run, key, began, outcome=outcome)


def _done(run: CellRun, key: str, began: float, *, outcome: Outcome | None = None, error: str | None = None) -> Done:
    return Done(run=run, key=key, outcome=outcome, error=error, wall_s=time.perf_counter() - began)


@contextmanager
def _backend(backend: Backend, jobs: int) -> Iterator[None]:
    if backend is Backend.RAY:
        _register_ray()
        # Ray's pool reserves nothing by itself, and may put all its workers on one node.
        config = joblib.parallel_config(backend=STREAMING_RAY, n_jobs=jobs, ray_remote_args={"num_cpus": 1})
    else:
        config = joblib.parallel_config(backend=backend.value, n_jobs=jobs)
    with config:
        yield


def _register_ray() -> None:
    try:
        from ray.util.joblib.ray_backend import RayBackend  # noqa: PLC0415 (an extra)
    except ImportError as error:
        raise BackendMissing("the ray backend needs ray: pip install '.[cluster]'") from error

    class StreamingRay(RayBackend):  # type: ignore[misc] # ray is an extra: untyped where it is missing
        """Ray's own backend; it hands results on as they come, though the class that it extends says it cannot."""

        supports_return_generator = True

    joblib.register_parallel_backend(STREAMING_RAY, StreamingRay)
