import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from loadtest.experiment.parallel import Backend, BackendMissing, run_all
from loadtest.experiment.session import prepare, run_session
from loadtest.experiment.store import Store
from tests.loadtest.experiment.experiment_lab import first_run, plan

ROOT = Path(__file__).parents[3]
HAS_RAY = find_spec("ray") is not None
LOOPBACK = {
    # Makes Ray take 127.0.0.1 for this machine's address; by default it looks for one that others can reach.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}


@pytest.mark.e2e
@pytest.mark.skipif(not HAS_RAY, reason="ray is not installed")
def test_a_cluster_of_two_nodes_gives_the_same_table(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.loadtest.experiment.ray_cluster_run", str(tmp_path / "ray")],
        cwd=ROOT, env={**os.environ, **LOOPBACK, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {"nodes": 2, "failures": []}
    store = Store(tmp_path / "here")
    run_session(prepare(plan(), store, resume=False), store, jobs=1)
    here, there = ((tmp_path / name / "results.jsonl").read_bytes() for name in ("here", "ray"))
    assert there == here


@pytest.mark.skipif(HAS_RAY, reason="ray is installed")
def test_without_ray_its_backend_is_refused_with_what_to_install() -> None:
    with pytest.raises(BackendMissing, match=r"'\.\[cluster\]'"):
        list(run_all([("key", first_run())], backend=Backend.RAY))
