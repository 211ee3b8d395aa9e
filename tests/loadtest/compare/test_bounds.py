import pytest
from msgspec import structs

from loadtest.compare.baselines import DYNAMO, DYNAMO_TUNED
from loadtest.compare.bootstrap import Interval
from loadtest.compare.bounds import HEADLINE, Bound, beside_strongest, losses, no_loss, paper_rows, verdicts
from tests.loadtest.compare.compare_lab import arm, cell, interval

TTFT = Bound(metric="ttft_p90_s", beside=DYNAMO_TUNED, better_by=0.10, pools="2P2D")
ATTAINED = Bound(metric="attained_ratio", beside=DYNAMO, better_by=0.20, pools="2P2D")


@pytest.mark.parametrize(("change", "holds"), [(-0.11, True), (-0.10, True), (-0.09, False), (0.2, False)])
def test_a_latency_must_be_lower_by_its_share(change: float, holds: bool) -> None:
    (verdict,) = verdicts([TTFT], [cell(arm("joint", tuned={"ttft_p90_s": interval(change)}))])
    assert verdict.holds is holds
    assert verdict.measured is not None
    assert verdict.measured.value == -change
    assert verdict.measured.low < verdict.measured.value < verdict.measured.high


@pytest.mark.parametrize(("change", "holds"), [(0.21, True), (0.19, False), (-0.3, False)])
def test_attainment_must_be_higher_by_its_points(change: float, holds: bool) -> None:
    (verdict,) = verdicts([ATTAINED], [cell(arm("joint", plain={"attained_ratio": interval(change)}))])
    assert verdict.holds is holds


def test_only_the_policy_that_was_best_on_the_learning_half_counts() -> None:
    good, bad = arm("table", tuned={"ttft_p90_s": interval(-0.5)}), arm("joint")
    (verdict,) = verdicts([TTFT], [cell(good, bad, best="joint")])
    assert not verdict.holds
    assert "'joint'" in verdict.what


def test_a_cell_that_was_not_run_holds_nothing() -> None:
    (verdict,) = verdicts([TTFT], [cell(arm("joint"), pools="1P3D")])
    assert verdict.measured is None
    assert not verdict.holds


def test_the_headline_asks_for_four_figures_in_each_of_two_fleets() -> None:
    assert [(bound.pools, bound.metric, bound.beside, bound.better_by) for bound in HEADLINE[:4]] == [
        ("2P2D", "ttft_p90_s", "dynamo-tuned", 0.10),
        ("2P2D", "tpot_p90_s", "dynamo-tuned", 0.20),
        ("2P2D", "attained_ratio", "dynamo-tuned", 0.08),
        ("2P2D", "attained_ratio", "dynamo", 0.20),
    ]
    assert {bound.pools for bound in HEADLINE} == {"2P2D", "1P3D"}


@pytest.mark.parametrize(
    ("worse", "is_listed", "is_beyond"),
    [
        (Interval(0.005, 0.0, 0.02), False, False),
        (Interval(0.03, 0.005, 0.05), True, False),
        (Interval(0.03, 0.02, 0.04), True, True),
    ],
)
def test_a_cell_is_lost_where_even_the_better_end_is_worse_by_more_than_a_hundredth(
    worse: Interval, is_listed: bool, is_beyond: bool
) -> None:
    cells = [cell(arm("joint", tuned={"tpot_p50_s": worse}))]
    found = losses(cells)
    assert [(loss.metric, loss.is_beyond) for loss in found] == ([("tpot_p50_s", is_beyond)] if is_listed else [])
    assert no_loss(cells).holds is not is_beyond


def test_lower_attainment_is_a_loss_too() -> None:
    (loss,) = losses([cell(arm("joint", tuned={"attained_ratio": interval(-0.05)}))])
    assert loss.metric == "attained_ratio"
    assert loss.worse_by.value == 0.05
    assert loss.is_beyond


def test_no_cells_are_no_proof() -> None:
    assert not no_loss([]).holds


def test_a_cell_whose_best_stands_beside_no_rule_proves_nothing() -> None:
    beside_nobody = arm("joint")
    assert not no_loss([cell(structs.replace(beside_nobody, beside={}))]).holds
    assert no_loss([cell(arm(DYNAMO_TUNED), best=DYNAMO_TUNED)]).holds  # nothing better was found: nothing is lost


def test_the_strongest_rule_need_not_be_the_one_that_bounds_are_about() -> None:
    own = arm("joint")
    own.beside["llmd-tuned"] = {"ttft_p90_s": interval(0.02)}
    (row,) = beside_strongest([TTFT], [cell(own, strongest="llmd-tuned"), cell(own, workload="azure")])
    assert row.measured is not None
    assert row.measured.value == -0.02
    assert "against llmd-tuned" in row.what


def test_the_papers_table_stands_beside_its_claim() -> None:
    rows = paper_rows([cell(arm("table", tuned={"ttft_p90_s": interval(-0.06), "tpot_p90_s": interval(0.01)}))])
    assert [(row.required, row.holds) for row in rows] == [(0.057, True), (0.026, False)]
    assert "5.7% to 7.9% lower" in rows[0].what
