"""Which way dependencies may point: the contracts of pyproject.toml, and chance and time in the core."""

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CORE = sorted((ROOT / "gateway" / "core").rglob("*.py"))


def test_the_import_contracts_are_kept() -> None:
    lint_imports = Path(sys.executable).with_name("lint-imports")
    run = subprocess.run([lint_imports, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


def _imports(file: Path) -> set[str]:
    """Everything that a file imports, as `module` or `module.name`."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def test_chance_comes_into_the_core_as_an_argument() -> None:
    # The class may be named in a signature; the module's own generator is shared by the whole process.
    named = {name for file in CORE for name in _imports(file) if name.split(".")[0] in ("random", "secrets")}
    assert named == {"random.Random"}
    assert [file.name for file in CORE if "Random(" in file.read_text()] == []


def test_the_core_needs_nothing_but_the_standard_library() -> None:
    foreign = {
        name
        for file in CORE
        for name in _imports(file)
        if name.split(".")[0] not in sys.stdlib_module_names | {"gateway", "numpy"}
    }
    assert foreign == set()
