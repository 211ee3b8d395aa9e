import pytest

from gateway.core.path.rules import DynamoMode, DynamoRule
from loadtest.learning.dynamo_grid import COARSE, FINE, DynamoGrid, neighbours


@pytest.mark.parametrize("grid", [COARSE, FINE])
def test_a_grid_holds_dynamos_defaults_and_no_rule_twice(grid: DynamoGrid) -> None:
    rules = grid.rules()
    assert DynamoRule() in rules
    assert len(set(rules)) == len(rules)


def test_the_coarse_grid_is_a_part_of_the_fine_one_which_has_all_modes() -> None:
    assert set(COARSE.rules()) < set(FINE.rules())
    assert {rule.mode for rule in FINE.rules()} == set(DynamoMode)


def test_the_grids_are_as_large_as_the_guides_say() -> None:
    assert (len(COARSE.rules()), len(FINE.rules())) == (40, 71)


def test_every_threshold_is_tried_with_every_other() -> None:
    grid = DynamoGrid(eff_isl_tokens=(100, 200), ratios=(0.5,), busy=(1.0, 3.0), has_load_alone=True)
    assert [(rule.mode, rule.eff_isl_threshold, rule.prefill_busy_threshold) for rule in grid.rules()] == [
        (DynamoMode.ISL_BOUNDING, 100, None),
        (DynamoMode.ISL_OR_LOAD, 100, 1.0),
        (DynamoMode.ISL_OR_LOAD, 100, 3.0),
        (DynamoMode.ISL_BOUNDING, 200, None),
        (DynamoMode.ISL_OR_LOAD, 200, 1.0),
        (DynamoMode.ISL_OR_LOAD, 200, 3.0),
        (DynamoMode.PREFILL_LOAD, DynamoRule().eff_isl_threshold, 1.0),
        (DynamoMode.PREFILL_LOAD, DynamoRule().eff_isl_threshold, 3.0),
    ]


def test_neighbours_lie_between_the_thresholds_of_a_grid() -> None:
    load = DynamoRule(mode=DynamoMode.ISL_OR_LOAD, eff_isl_threshold=8192, prefill_busy_threshold=2.0)
    found = neighbours(load)
    assert len(set(found)) == len(found) == 8
    assert {rule.eff_isl_threshold for rule in found} == {6144, 8192, 12_288}
    assert {rule.prefill_busy_threshold for rule in found} == {1.5, 2.0, 3.0}
    assert load not in found
    lengths = neighbours(DynamoRule(eff_isl_threshold=16_384))
    assert [rule.eff_isl_threshold for rule in lengths] == [12_288, 24_576]
    (less, more) = neighbours(DynamoRule(mode=DynamoMode.PREFILL_LOAD, prefill_busy_threshold=4.0))
    assert (less.prefill_busy_threshold, more.prefill_busy_threshold) == (3.0, 6.0)
    assert neighbours(DynamoRule(eff_isl_threshold=0)) == []
