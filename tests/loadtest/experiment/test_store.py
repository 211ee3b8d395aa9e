from pathlib import Path

import msgspec
import pytest

from loadtest.client.records import read_records
from loadtest.experiment.rows import read_rows
from loadtest.experiment.run import Outcome, run_cell
from loadtest.experiment.store import Entry, Store, StoreError
from tests.loadtest.experiment.experiment_lab import first_run


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    return run_cell(first_run())


def filled(directory: Path, outcome: Outcome, *, keys: tuple[str, ...] = ("a", "b")) -> Store:
    store = Store(directory)
    store.open(resume=False)
    for key in keys:
        row = msgspec.structs.replace(outcome.row, key=key)
        store.add(Entry(row=row, wall_s=0.1), outcome.records)
    return store


def test_what_was_added_is_there_when_it_is_opened_again(tmp_path: Path, outcome: Outcome) -> None:
    filled(tmp_path, outcome)
    again = Store(tmp_path)
    assert set(again.open(resume=True)) == {"a", "b"}
    assert again.records("a") == outcome.records


def test_results_are_not_mixed_up_with_those_of_before_unless_asked(tmp_path: Path, outcome: Outcome) -> None:
    filled(tmp_path, outcome)
    with pytest.raises(StoreError, match="holds results"):
        Store(tmp_path).open(resume=False)


@pytest.mark.parametrize("cut", [1, 40])
def test_a_line_that_a_crash_cut_off_costs_only_itself(tmp_path: Path, outcome: Outcome, cut: int) -> None:
    filled(tmp_path, outcome)
    journal = tmp_path / "journal.jsonl"
    journal.write_bytes(journal.read_bytes()[:-cut])
    store = Store(tmp_path)
    assert set(store.open(resume=True)) == {"a"}
    store.add(Entry(row=msgspec.structs.replace(outcome.row, key="c"), wall_s=0.1), None)
    assert set(Store(tmp_path).open(resume=True)) == {"a", "c"}


def test_a_journal_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").write_text('{"row": 1}\n')
    with pytest.raises(StoreError, match="journal"):
        Store(tmp_path).open(resume=True)


def test_the_table_replaces_the_one_before(tmp_path: Path, outcome: Outcome) -> None:
    store = filled(tmp_path, outcome)
    store.write_table([outcome.row, outcome.row])
    store.write_table([outcome.row])
    assert read_rows((tmp_path / "results.jsonl").read_bytes()) == [outcome.row]
    assert not [file.name for file in tmp_path.iterdir() if file.name.startswith(".")]


def test_records_are_those_of_live_runs(tmp_path: Path, outcome: Outcome) -> None:
    store = filled(tmp_path, outcome)
    assert read_records(store.records_file("a")) == outcome.records
    assert store.records("unknown") == []
