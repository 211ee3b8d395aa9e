"""House rules that no linter knows."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 70
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
FILES = sorted(file for package in ("gateway", "policy_store", "loadtest") for file in (ROOT / package).rglob("*.py"))


def _name(file: Path) -> str:
    return str(file.relative_to(ROOT))


def _functions(file: Path) -> Iterator[tuple[str, int]]:
    """(name, lines) of every function, decorators not counted."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            yield node.name, node.end_lineno - node.lineno + 1


def test_a_file_can_be_read_in_one_sitting() -> None:
    lines = {_name(file): len(file.read_text().splitlines()) for file in FILES}
    assert {name: count for name, count in lines.items() if count > MAX_FILE_LINES} == {}


def test_a_function_fits_on_a_screen() -> None:
    lines = {f"{_name(file)}:{name}": count for file in FILES for name, count in _functions(file)}
    assert {name: count for name, count in lines.items() if count > MAX_FUNCTION_LINES} == {}


def test_a_module_says_what_it_is_for() -> None:
    assert [_name(file) for file in FILES if not ast.get_docstring(ast.parse(file.read_text()))] == []


def test_nothing_is_left_for_later() -> None:
    assert [_name(file) for file in FILES if UNFINISHED.search(file.read_text())] == []


def test_test_helpers_have_names_of_their_own() -> None:
    # With import-mode=importlib two of the same name would be easy to mix up.
    helpers = [file.name for file in (ROOT / "tests").rglob("*.py") if not file.name.startswith(("test_", "conftest"))]
    assert [name for name, count in Counter(helpers).items() if count > 1] == []
