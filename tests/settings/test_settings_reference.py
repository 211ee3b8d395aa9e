"""The reference page is the tree, row by row."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.settings import load_settings
from gateway.settings_reference import settings_reference

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "settings.md"
ROW = re.compile(
    r"^\| `(?P<key>[^`]+)` \| (?P<variable>`\w+`|) \| (?P<type>.+) \| (?P<default>.+) \| (?P<meaning>.+) \|$"
)


def rows() -> list[dict[str, str]]:
    """The page's rows by column."""
    found = [ROW.match(line) for line in settings_reference().splitlines() if line.startswith("| `")]
    assert all(found)
    return [match.groupdict() for match in found if match]


def leaves(tree: dict[str, object], prefix: str = "") -> Iterator[str]:
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == settings_reference(), (
        "run python -m gateway.settings_reference > docs/reference/settings.md"
    )


def test_every_setting_has_its_row() -> None:
    listed = [row["key"] for row in rows() if row["variable"]]
    assert sorted(listed) == sorted(leaves(load_settings().model_dump()))


def test_settings_within_lists_and_mappings_are_listed_without_a_variable() -> None:
    inner = {row["key"] for row in rows() if not row["variable"]}
    assert {"workers[].id", "workers[].url", "slo.classes.<name>.ttft_s"} <= inner


@pytest.mark.parametrize("row", [row for row in rows() if row["variable"]], ids=lambda row: row["key"])
def test_setting_a_default_that_is_shown_changes_nothing(row: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    shown = "null" if row["default"] == "unset" else row["default"].strip("`")
    untouched = load_settings().model_dump()
    assert load_settings(overrides=[f"{row['key']}={shown}"]).model_dump() == untouched
    if shown != "null":
        monkeypatch.setenv(row["variable"].strip("`"), shown.strip('"'))
        assert load_settings().model_dump() == untouched


def test_choices_and_bounds_are_shown() -> None:
    types = {row["key"]: row["type"] for row in rows()}
    assert types["server.port"] == "integer >= 0, <= 65535"
    assert types["routing.policy"] == "`local`, `remote`, `dynamo`, `llmd`, `learned`"
    assert types["workers[].models"] == "list of text"
