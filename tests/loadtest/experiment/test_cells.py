from loadtest.experiment.cells import cell_runs, cells
from tests.loadtest.experiment.experiment_lab import plan


def test_cells_are_the_product_and_a_run_is_a_cell_with_a_seed() -> None:
    whole = plan(slos={"a": "ttft=1s", "b": "tpot=40ms"}, seeds=3)
    assert len(list(cells(whole))) == 2 * 2 * 2
    assert len(cell_runs(whole)) == 2 * 2 * 2 * 3


def test_runs_come_in_the_order_of_the_file_with_seeds_side_by_side() -> None:
    labels = [run.label for run in cell_runs(plan())]
    assert labels[:5] == [
        "talk/pair/remote/x1/chat/s0",
        "talk/pair/remote/x1/chat/s1",
        "talk/pair/local/x1/chat/s0",
        "talk/pair/local/x1/chat/s1",
        "talk/pair/remote/x2/chat/s0",
    ]
    assert len(set(labels)) == len(labels) == 8


def test_a_cell_holds_the_bounds_of_its_slo() -> None:
    (slo,) = {cell.slo for cell in cells(plan(slos={"a": "ttft=1s"}))}
    assert (slo.name, slo.ttft_s, slo.tpot_s) == ("a", 1.0, None)
