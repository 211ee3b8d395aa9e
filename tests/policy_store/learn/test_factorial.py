from dataclasses import replace

import pytest

from gateway.core.path.rules import AlwaysRemote
from gateway.core.types import Path
from policy_store.learn.bandit import incumbents
from policy_store.learn.clusters import ClusterPlan
from policy_store.learn.course import Course
from policy_store.learn.dolphin import Dolphin, DolphinPlan
from policy_store.learn.factorial import FactorialPlan, scan_at_once
from policy_store.learn.regimes import RegimePlan
from tests.policy_store.learn.learn_lab import KINDS, World, attained_by, best_of, loaded_chance, static_chance
from tests.policy_store.learn.test_scan import warm

PLAN = FactorialPlan(turns=80, turn=50, passes=1, flip=0.3)


def learned(world: World, plan: FactorialPlan, *, requests: int = 6000) -> Dolphin:
    dolphin = Dolphin(
        world,
        AlwaysRemote(),
        DolphinPlan(
            n_fit=600,
            clusters=ClusterPlan(k_max=5, n_init=2),
            regimes=RegimePlan(backlog_levels=2, batch_levels=1),
            scan=plan,
        ),
    )
    dolphin.learn(requests)
    return dolphin


def test_all_cells_find_their_better_path_at_once() -> None:
    world = World(KINDS, static_chance)
    table, cells, of_all, kinds = warm(world)
    before = world.served
    found, verdicts = scan_at_once(Course(world, keep_rows=10), table, cells, shares=of_all, plan=PLAN)
    assert {kinds[cell]: path for cell, path in enumerate(incumbents(found))} == {
        "chat": Path.LOCAL,
        "book": Path.REMOTE,
        "turn": Path.LOCAL,
    }
    assert world.served - before == PLAN.turns * PLAN.turn + PLAN.turn
    for verdict in verdicts:
        share = of_all[verdict.cell]
        expected = 0.4 * share * (1 if verdict.chosen is Path.LOCAL else -1)
        assert verdict.whole.difference == pytest.approx(expected, abs=4 * verdict.whole.error)
        assert verdict.whole.error < 0.05


def test_a_table_of_clusters_and_regimes_is_learned() -> None:
    policy = learned(World(KINDS, loaded_chance), replace(PLAN, passes=2)).learned.policy()
    assert attained_by(policy, loaded_chance) == pytest.approx(best_of(loaded_chance), abs=0.03)


def test_what_a_cell_does_to_others_counts() -> None:
    """Local prefills of books would fare well themselves, and spoil the chats of their turn."""

    world = World(KINDS, lambda kind, _, path: 0.8 if kind != "book" or path is Path.REMOTE else 0.95)
    plain = world._serve_one

    def serve_one(policy):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
        row = plain(policy)
        local_books = policy.name == "table" and policy.actions[books] is Path.LOCAL
        spoiled = local_books and row.features.isl_tokens < 1000 and row.order % 2
        return replace(row, attained=bool(row.attained) and not spoiled)

    table, cells, of_all, kinds = warm(world)
    books = next(cell for cell, kind in kinds.items() if kind == "book")
    world._serve_one = serve_one  # type: ignore[method-assign]
    _, verdicts = scan_at_once(Course(world, keep_rows=10), table, cells, shares=of_all, plan=PLAN)
    verdict = next(each for each in verdicts if each.cell == books)
    assert verdict.local.value > verdict.remote.value
    assert verdict.chosen is Path.REMOTE


def test_a_rare_cell_keeps_its_path() -> None:
    world = World(KINDS, static_chance)
    table, cells, of_all, _ = warm(world)
    found, verdicts = scan_at_once(
        Course(world, keep_rows=10), table, cells, shares=of_all, plan=replace(PLAN, min_share=1.1)
    )
    assert (found, verdicts) == (cells, [])


def test_too_few_turns_tell_no_cells_apart() -> None:
    world = World(KINDS, static_chance)
    table, cells, of_all, _ = warm(world)
    _, verdicts = scan_at_once(
        Course(world, keep_rows=10), table, cells, shares=of_all, plan=replace(PLAN, turns=3, tie_errors=1e9)
    )
    assert {verdict.chosen for verdict in verdicts} == {Path.REMOTE}  # the baseline's


def test_the_same_seed_scans_the_same() -> None:
    first, second = (learned(World(KINDS, static_chance), PLAN, requests=3000) for _ in range(2))
    assert first.verdicts == second.verdicts
    assert first.learned == second.learned
