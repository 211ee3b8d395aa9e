from collections.abc import Callable
from pathlib import Path

import pytest

from loadtest.experiment.cells import cell_runs
from loadtest.experiment.parallel import Backend, Done, run_all
from loadtest.experiment.plan import Plan, PlanError
from loadtest.experiment.rows import Row, read_rows
from loadtest.experiment.session import Failure, prepare, run_session
from loadtest.experiment.store import Store
from tests.loadtest.experiment.experiment_lab import plan


class CrashError(Exception):
    pass


def run(
    whole: Plan, directory: Path, *, resume: bool = False, jobs: int = 1, on_done: Callable[[Done], object] = id
) -> tuple[list[Row], list[Failure]]:
    store = Store(directory)
    return run_session(prepare(whole, store, resume=resume), store, jobs=jobs, on_done=on_done)


def test_there_is_a_row_for_every_run_in_the_order_of_the_plan(tmp_path: Path) -> None:
    rows, failures = run(plan(), tmp_path)
    assert failures == []
    assert [(row.policy, row.load, row.seed) for row in rows] == [
        (one.cell.policy, one.cell.load, one.seed) for one in cell_runs(plan())
    ]
    assert read_rows((tmp_path / "results.jsonl").read_bytes()) == rows


def test_a_crash_loses_only_what_was_running_and_the_rest_is_not_run_again(tmp_path: Path) -> None:
    ended: list[str] = []

    def crash_at_the_third(done: Done) -> None:
        ended.append(done.run.label)
        if len(ended) == 3:
            raise CrashError

    with pytest.raises(CrashError):
        run(plan(), tmp_path / "broken", on_done=crash_at_the_third)
    assert len(read_rows((tmp_path / "broken" / "results.jsonl").read_bytes())) == 3
    again: list[str] = []
    rows, _ = run(plan(), tmp_path / "broken", resume=True, on_done=lambda done: again.append(done.run.label))
    assert sorted(ended + again) == sorted(one.label for one in cell_runs(plan()))
    assert rows == run(plan(), tmp_path / "whole")[0]


def test_only_what_a_changed_plan_adds_is_run(tmp_path: Path) -> None:
    run(plan(), tmp_path)
    ran: list[str] = []
    more = plan(policies={"remote": "remote", "dynamo": "dynamo"})
    rows, _ = run(more, tmp_path, resume=True, on_done=lambda done: ran.append(done.run.cell.policy))
    assert ran == ["dynamo"] * 4
    assert {row.policy for row in rows} == {"remote", "dynamo"}


def test_a_run_that_fails_costs_the_others_nothing(tmp_path: Path) -> None:
    store, trace = Store(tmp_path), tmp_path / "trace.jsonl"
    row = '{"timestamp": %d, "input_length": 9, "output_length": 2, "hash_ids": [0]}\n'
    trace.write_text("".join(row % (3000 * tick) for tick in range(9)) + "not a row\n")
    workloads = {"good": {"trace": "synthetic:mooncake", "requests": 5}, "bad": {"trace": f"mooncake:{trace}"}}
    session = prepare(plan(workloads=workloads, loads=[1.0], seeds=1), store, resume=False)
    rows, failures = run_session(session, store, jobs=1)
    assert {row.workload for row in rows} == {"good"}
    assert [failure.label for failure in failures] == ["bad/pair/remote/x1/chat/s0", "bad/pair/local/x1/chat/s0"]
    assert all(failure.error.startswith("TraceError: ") for failure in failures)


def test_a_worker_with_other_code_or_files_is_told_on() -> None:
    todo = [("another key", one) for one in cell_runs(plan(loads=[1.0], seeds=1))]
    ends = list(run_all(todo, jobs=1, backend=Backend.LOKY))
    assert [done.outcome for done in ends] == [None, None]
    assert {done.error for done in ends} == {"the worker's code or trace files differ from those that started it"}


def test_a_trace_that_cannot_be_read_is_told_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"workloads\.talk\.trace: "):
        prepare(plan(workloads={"talk": {"trace": f"mooncake:{tmp_path}/none"}}), Store(tmp_path), resume=False)


@pytest.mark.e2e
def test_the_table_does_not_depend_on_how_many_run_at_a_time(tmp_path: Path) -> None:
    for jobs in (1, 2):
        assert run(plan(), tmp_path / str(jobs), jobs=jobs)[1] == []
    one, two = ((tmp_path / str(jobs) / "results.jsonl").read_bytes() for jobs in (1, 2))
    assert one == two
