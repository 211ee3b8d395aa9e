from collections.abc import Mapping

import pytest

from gateway.core.path.rules import AlwaysRemote
from gateway.core.path.table import Guards
from gateway.core.types import Path
from policy_store.learn.bandit import Cell, incumbents
from policy_store.learn.clusters import ClusterPlan, fit_clusters
from policy_store.learn.course import Course, Phase
from policy_store.learn.scan import ScanPlan, plan_turns, requests_per_arm, scan, scan_cell
from policy_store.learn.tables import Table, first_cells, shares
from tests.policy_store.learn.learn_lab import BEST, KINDS, World, static_chance

LOCAL, REMOTE = Path.LOCAL, Path.REMOTE
SHORT = ScanPlan(n_scan=300, block_len=50, passes=1, effect=None, min_turn=100)


def warm(world: World) -> tuple[Table, list[Cell], tuple[float, ...], Mapping[int, str]]:
    """A fitted table, its first cells and shares, and the kind of each cluster."""
    rows = world.serve(AlwaysRemote(), 900)
    clustering = fit_clusters([each.features for each in rows], ClusterPlan(k=3, n_init=3), seed=0)
    table = Table(clustering=clustering, regimes=None, baseline=AlwaysRemote(), guards=Guards())
    kinds = {}
    for each in rows:
        isl, cached = each.features.isl_tokens, each.features.isl_tokens - each.features.decode_isl_tokens
        kinds[clustering.assign(each.features)] = "chat" if isl < 1000 else "turn" if cached else "book"
    return table, first_cells(table, rows), shares(table, rows), kinds


@pytest.mark.parametrize(("attained", "effect", "requests"), [(0.8, 0.10, 252), (0.8, 0.05, 1005), (0.5, 0.05, 1570)])
def test_a_small_effect_needs_many_requests(attained: float, effect: float, requests: int) -> None:
    assert requests_per_arm(attained, effect) == requests


def test_turns_are_as_long_as_the_cells_share_asks() -> None:
    how = plan_turns(ScanPlan(effect=None), share=0.1, attained=0.8)
    assert how is not None
    assert (how.length, how.length * how.rounds * 2) == (500, 2000)


def test_the_effect_to_be_seen_sets_how_much_a_large_cell_is_scanned() -> None:
    how = plan_turns(ScanPlan(effect=0.05), share=0.9, attained=0.8)
    assert how is not None
    assert how.length * how.rounds * 2 == pytest.approx(1005, rel=0.25)


@pytest.mark.parametrize("share", [0.0, 0.001])
def test_a_cell_that_is_too_rare_is_not_scanned(share: float) -> None:
    assert plan_turns(ScanPlan(), share=share, attained=0.8) is None


def test_every_cell_finds_its_better_path() -> None:
    world = World(KINDS, static_chance)
    table, cells, of_all, kinds = warm(world)
    found, verdicts = scan(Course(world, keep_rows=10), table, cells, shares=of_all, attained=0.7, plan=SHORT)
    assert {kinds[cell]: path for cell, path in enumerate(incumbents(found))} == BEST
    assert len(verdicts) == 3
    assert all(cell.local.requests > 150 and cell.remote.requests > 150 for cell in found)


def test_paths_take_turns_so_that_a_drift_favours_neither() -> None:
    world = World(KINDS, static_chance)
    table, cells, of_all, _ = warm(world)
    course = Course(world, keep_rows=10)
    how = plan_turns(SHORT, of_all[0], 0.7)
    assert how is not None
    scan_cell(course, table, cells, 0, how, SHORT)
    tried = [stretch.path for stretch in course.stretches]
    assert tried[:4] == [REMOTE, LOCAL, LOCAL, REMOTE]
    assert tried[-1] is None  # the incumbents, until what is under way has ended
    assert {stretch.phase for stretch in course.stretches} == {Phase.SCAN}


def test_requests_that_end_late_count_to_the_turn_that_routed_them() -> None:
    world = World(KINDS, static_chance)
    table, cells, of_all, kinds = warm(world)
    world.late = 1
    how = plan_turns(SHORT, of_all[0], 0.7)
    assert how is not None
    verdict = scan_cell(Course(world, keep_rows=10), table, cells, 0, how, SHORT)
    assert verdict is not None
    judged = how.rounds * 2 * (how.length - int(how.length * SHORT.washout))
    assert verdict.local.requests + verdict.remote.requests == pytest.approx(2 * judged * of_all[0], rel=0.15)
    assert verdict.chosen is BEST[kinds[0]]


def test_a_cell_of_which_nothing_is_heard_stays_as_it_is() -> None:
    world = World(KINDS, static_chance)
    table, cells, of_all, _ = warm(world)
    world.late = 10**6
    found, verdicts = scan(Course(world, keep_rows=10), table, cells, shares=of_all, attained=0.7, plan=SHORT)
    assert (found, verdicts) == (cells, [])
