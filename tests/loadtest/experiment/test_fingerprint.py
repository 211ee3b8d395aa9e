import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from loadtest.experiment.cells import CellRun
from loadtest.experiment.fingerprint import EXECUTED, run_key
from tests.loadtest.experiment.experiment_lab import first_run
from tests.policy_store.bundle_factories import written


def test_equal_runs_have_equal_keys() -> None:
    assert run_key(first_run()) == run_key(first_run())


@pytest.mark.parametrize(
    "other",
    [
        replace(first_run(), seed=9),
        first_run(loads=[1.1]),
        first_run(slos={"chat": "ttft=3s"}),
        first_run(until_s=5),
        first_run(policies={"remote": {"policy": "remote", "seed": 1}}),
        first_run(fleets={"pair": {"pools": "1P2D", "engine": "h100-llama8b"}}),
        first_run(workloads={"talk": {"trace": "synthetic:mooncake", "requests": 29}}),
    ],
    ids=["seed", "load", "slo", "until", "policy", "fleet", "workload"],
)
def test_whatever_changes_a_run_changes_its_key(other: CellRun) -> None:
    assert run_key(other) != run_key(first_run())


def test_a_key_covers_the_content_of_the_trace_file(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    run = first_run(workloads={"talk": {"trace": f"mooncake:{file}"}})
    keys = []
    for changed_s, content in enumerate(("one", "two", "one")):
        file.write_text(content)
        os.utime(file, (changed_s, changed_s))
        keys.append(run_key(run))
    assert keys[0] == keys[2] != keys[1]


def test_a_key_covers_the_files_of_a_trace_that_is_a_directory(tmp_path: Path) -> None:
    run = first_run(workloads={"talk": {"trace": f"servegen:{tmp_path}"}})
    before = run_key(run)
    (tmp_path / "client.csv").write_text("1")
    assert run_key(run) != before


def test_a_key_covers_the_content_of_a_bundle(tmp_path: Path) -> None:
    directory = tmp_path / "bundle"
    keys = set()
    for threshold in (4096, 8192):
        written(tmp_path, max_local_tokens=threshold).rename(directory)
        keys.add(run_key(first_run(policies={"learned": {"bundle": str(directory)}})))
        directory.rename(tmp_path / f"{threshold}")
    assert len(keys) == 2


def test_a_key_covers_every_module_that_a_run_loads() -> None:
    code = (
        "import sys, loadtest.experiment.run;"
        "print(*[n for n in sys.modules if n.startswith(('gateway.', 'loadtest.', 'policy_store'))])"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    covered = set(EXECUTED)
    parents = {"loadtest.client", "loadtest.experiment", "loadtest.fleet", "loadtest.report"}
    missing = {name for name in loaded if not any(name == one or name.startswith(f"{one}.") for one in covered)}
    assert missing - parents == set()
    assert len(loaded) > len(covered)
