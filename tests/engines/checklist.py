"""A list of checks: each is run, timed and shown as it ends.

The rule of this module: a check that raises has failed, and the next one is run all the same.
"""

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

TITLE_COLUMNS = 88


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One check that was run."""

    group: str
    title: str
    duration_s: float
    problem: str | None
    """What was wrong; None where nothing was."""


class Checklist:
    """Runs checks and keeps what came of them."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def run(self, group: str, check: Callable[..., str | None], *arguments: Any) -> None:
        """Run one check: its title is the first line of its docstring, its answer a remark to show."""
        title = (check.__doc__ or check.__name__).splitlines()[0].rstrip(".")
        began_s = time.monotonic()
        remark, problem = None, None
        try:
            remark = check(*arguments)
        except Exception as error:  # noqa: BLE001 (whatever it is, it is this check's failure)
            problem = _problem(error)
        row = Row(group=group, title=title, duration_s=time.monotonic() - began_s, problem=problem)
        self.rows.append(row)
        _show(row, remark)

    @property
    def passed(self) -> int:
        """How many checks found nothing wrong."""
        return sum(row.problem is None for row in self.rows)

    def summary(self) -> str:
        """What failed, and the last line."""
        failed = [f"FAILED {row.group}: {row.title}: {row.problem}" for row in self.rows if row.problem is not None]
        return "\n".join([*failed, f"{self.passed}/{len(self.rows)} checks passed"])


def note(group: str, words: str) -> None:
    """Say something between two checks."""
    print(f"{'':4}  {group:<10}{words}", flush=True)


def same(actual: Any, expected: Any, what: str) -> None:
    """Assert that two values are equal, and say both where they are not."""
    assert actual == expected, f"{what}: {_short(actual)} instead of {_short(expected)}"


def _problem(error: Exception) -> str:
    if isinstance(error, AssertionError) and error.args:
        return str(error)
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({where.name}, line {where.lineno})"


def _show(row: Row, remark: str | None) -> None:
    mark = "ok" if row.problem is None else "FAIL"
    print(f"{mark:<4}  {row.group:<10}{row.title:<{TITLE_COLUMNS}}{row.duration_s:>8.1f} s", flush=True)
    for line in (remark, row.problem):
        if line:
            note("", f"  {line}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 400 else f"{text[:250]} ... {text[-150:]}"
