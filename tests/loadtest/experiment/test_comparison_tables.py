from rich.console import Console

from loadtest.experiment.cells import cell_runs
from loadtest.experiment.compare import compare
from loadtest.experiment.run import run_cell
from loadtest.experiment.tables import comparison_tables
from tests.loadtest.experiment.experiment_lab import plan


def shown(**change: object) -> list[list[str]]:
    rows = [run_cell(run).row for run in cell_runs(plan(**change))]
    console = Console(width=80, color_system=None)
    with console.capture() as text:
        for table in comparison_tables(compare(rows, "local")):
            console.print(table)
    return [line.split() for line in text.get().splitlines() if any(cell.isalnum() for cell in line)]


def test_a_table_has_a_row_for_each_load_and_policy_within_80_columns() -> None:
    title, _, _, *rows = shown()
    assert title == ["talk", "on", "pair,", "SLO", "chat"]
    assert [row[:2] for row in rows[::2]] == [["1", "remote"], ["2", "remote"]]
    assert [row[0] for row in rows[1::2]] == ["local", "local"]
    assert all("±" in " ".join(row) for row in rows)


def test_the_baseline_is_not_compared_with_itself_and_one_seed_has_no_interval() -> None:
    *_, remote, local = shown(loads=[1.0], seeds=1)
    assert remote[3].startswith(("+", "-"))
    assert local[2] == "-"
    assert "±" not in " ".join(remote + local)
