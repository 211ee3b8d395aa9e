"""What a run's outcome depends on, as one hash.

The rule of this module: two runs with the same key have the same outcome. So a key covers the run itself, the content
of the files that it names, the sources that it executes, and the versions of Python and of numpy's generators.
"""

import platform
from functools import cache
from hashlib import file_digest, sha256
from importlib.util import find_spec
from pathlib import Path

import msgspec
import numpy as np

from gateway.policies import build_policy
from loadtest.experiment.cells import CellRun
from loadtest.experiment.plan import policy_settings
from loadtest.traces.spec import parse_spec

EXECUTED = (
    "gateway.core",
    "gateway.policies",
    "gateway.settings",
    "gateway.settings_base",
    "gateway.settings_routing",
    "gateway.wire",
    "loadtest.client.records",
    "loadtest.engine",
    "loadtest.experiment.cells",
    "loadtest.experiment.fingerprint",
    "loadtest.experiment.plan",
    "loadtest.experiment.rows",
    "loadtest.experiment.run",
    "loadtest.experiment.timeline",
    "loadtest.fleet.pools",
    "loadtest.report.slo",
    "loadtest.report.summary",
    "loadtest.simulator",
    "loadtest.traces",
    "policy_store",
)
"""Modules and whole packages that a run executes."""


@cache
def code_version() -> str:
    """Hash of the sources that a run executes, cost tables included, and of what they are run by."""
    digest = sha256(f"{platform.python_version()} numpy {np.__version__}".encode())
    for name in EXECUTED:
        for file in _sources(name):
            digest.update(f"\0{name}/{file.name}\0".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def run_key(run: CellRun) -> str:
    """The run's key, in 16 hexadecimal digits.

    Raises:
        SettingsError: its policy cannot be built.
        OSError: a file that it names cannot be read.
    """
    files = [file for part in parse_spec(run.cell.trace) for file in _named_files(part.name)]
    policy = build_policy(policy_settings(msgspec.json.decode(run.cell.routing)))
    parts = {
        "run": run,
        "files": [_file_hash(file, file.stat().st_mtime_ns) for file in files],
        "policy": policy.version,
    }
    return sha256(msgspec.json.encode({**parts, "code": code_version()})).hexdigest()[:16]


def _sources(name: str) -> list[Path]:
    found = find_spec(name)
    assert found is not None
    assert found.origin is not None
    origin = Path(found.origin)
    if found.submodule_search_locations is None:
        return [origin]
    return sorted(file for kind in ("*.py", "*.json") for file in origin.parent.rglob(kind))


def _named_files(name: str) -> list[Path]:
    """The files at a trace's path; none for a generator's name."""
    path = Path(name)
    if path.is_dir():
        return sorted(file for file in path.rglob("*") if file.is_file())
    return [path] if path.is_file() else []


@cache
def _file_hash(path: Path, changed_ns: int) -> str:  # noqa: ARG001 (a file that changed is read again)
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()
