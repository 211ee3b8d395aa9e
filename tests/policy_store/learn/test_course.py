import pytest

from gateway.core.path.rules import AlwaysLocal, AlwaysRemote
from gateway.core.types import Path
from policy_store.learn.course import Course, Phase
from tests.policy_store.learn.learn_lab import KINDS, World


def by_path(kind: str, backlog: int, path: Path) -> float:
    del kind, backlog
    return 1.0 if path is Path.LOCAL else 0.0


def test_an_outcome_counts_to_the_stretch_that_routed_it() -> None:
    course = Course(World(KINDS, by_path, late=2), keep_rows=100)
    course.serve(Phase.WARMUP, AlwaysRemote(), 10)
    course.serve(Phase.SCAN, AlwaysLocal(), 20, cell=1, path=Path.LOCAL)
    assert [stretch.attained for stretch in course.stretches] == [None, None]
    for _ in range(2):
        course.serve(Phase.RUN, AlwaysLocal(), 5)
    assert [(each.met, each.missed) for each in course.stretches] == [(0, 10), (20, 0), (0, 0), (0, 0)]
    assert [(each.first, each.end) for each in course.stretches] == [(0, 10), (10, 30), (30, 35), (35, 40)]


def test_the_regret_is_what_scanning_missed_beyond_the_learned_table() -> None:
    course = Course(World(KINDS, by_path), keep_rows=100)
    course.serve(Phase.WARMUP, AlwaysRemote(), 10)
    assert course.regret().missed_for_scanning is None
    course.serve(Phase.SCAN, AlwaysLocal(), 30)
    course.serve(Phase.SCAN, AlwaysRemote(), 30)
    course.serve(Phase.RUN, AlwaysLocal(), 40)
    regret = course.regret()
    assert (regret.warmup, regret.scan, regret.run, regret.scan_requests) == (0.0, 0.5, 1.0, 60)
    assert regret.missed_for_scanning == pytest.approx(30.0)


def test_only_the_newest_rows_are_kept() -> None:
    course = Course(World(KINDS, by_path), keep_rows=15)
    for _ in range(3):
        course.serve(Phase.RUN, AlwaysLocal(), 10)
    assert [row.order for row in course.recent] == list(range(15, 30))
