import math
from dataclasses import replace

import pytest

from gateway.core.path.base import PathPolicy
from gateway.core.path.rules import AlwaysLocal, AlwaysRemote
from gateway.core.path.table import Guards, TablePolicy
from gateway.core.types import Features, Path, Reason
from policy_store.learn.bandit import BanditPlan, incumbents
from policy_store.learn.clusters import ClusterMethod, ClusterPlan
from policy_store.learn.course import Phase
from policy_store.learn.dolphin import Dolphin, DolphinPlan, Learned, LearningError
from policy_store.learn.drift import DriftPlan
from policy_store.learn.environment import ServedRow
from policy_store.learn.regimes import RegimePlan
from policy_store.learn.scan import ScanPlan
from tests.policy_store.learn.learn_lab import (
    BASELINES,
    KINDS,
    Kind,
    World,
    attained_by,
    best_of,
    loaded_chance,
    static_chance,
)

PLAN = DolphinPlan(
    n_fit=600,
    clusters=ClusterPlan(k_max=5, n_init=2),
    scan=ScanPlan(n_scan=150, block_len=50, passes=1, effect=None, min_turn=100),
)
REGIMES = replace(PLAN, regimes=RegimePlan(backlog_levels=2, batch_levels=1))


def learner(world: World, plan: DolphinPlan = PLAN) -> Dolphin:
    return Dolphin(world, AlwaysRemote(), plan)


@pytest.mark.parametrize("method", ClusterMethod)
def test_the_best_table_is_found(method: ClusterMethod) -> None:
    plan = replace(PLAN, clusters=replace(PLAN.clusters, method=method))
    policy = learner(World(KINDS, static_chance), plan).learn(6000).policy()
    assert attained_by(policy, static_chance) == pytest.approx(best_of(static_chance), abs=0.02)
    assert all(attained_by(each, static_chance) < best_of(static_chance) - 0.1 for each in BASELINES)


def test_a_static_table_cannot_follow_the_load_and_one_with_regimes_can() -> None:
    best = best_of(loaded_chance)
    static = learner(World(KINDS, loaded_chance)).learn(8000).policy()
    aware = learner(World(KINDS, loaded_chance), REGIMES).learn(8000).policy()
    assert attained_by(static, loaded_chance) < best - 0.05
    assert attained_by(aware, loaded_chance) == pytest.approx(best, abs=0.03)


def test_exploring_costs_while_scanning_and_pays_afterwards() -> None:
    dolphin = learner(World(KINDS, static_chance))
    dolphin.learn(8000)
    regret = dolphin.regret()
    assert regret.warmup is not None
    assert regret.scan is not None
    assert regret.run is not None
    assert regret.warmup < regret.scan < regret.run
    assert regret.missed_for_scanning == pytest.approx((regret.run - regret.scan) * regret.scan_requests)
    assert regret.run > best_of(static_chance) - 0.05  # what is left is exploration
    phases = [stretch.phase for stretch in dolphin.stretches]
    assert phases == sorted(phases, key=(Phase.WARMUP, Phase.SCAN, Phase.RUN).index)


def test_the_same_seed_learns_the_same() -> None:
    first, second = (learner(World(KINDS, static_chance, seed=5)).learn(4000) for _ in range(2))
    assert first == second


def test_running_explores_and_mends_what_the_scan_got_wrong() -> None:
    dolphin = learner(World(KINDS, static_chance), replace(PLAN, bandit=BanditPlan(eps0=0.5, eps_min=0.2)))
    while dolphin.phase is not Phase.RUN:
        dolphin.step()
    before = dolphin.learned
    wrong = tuple(
        cell.with_incumbent(Path.LOCAL if cell.incumbent is Path.REMOTE else Path.REMOTE)
        .with_arm(Path.LOCAL, replace(cell.local, value=cell.remote.value))
        .with_arm(Path.REMOTE, replace(cell.remote, value=cell.local.value))
        for cell in before.cells
    )
    resumed = Dolphin(
        World(KINDS, static_chance, seed=8), AlwaysRemote(), dolphin.plan, learned=replace(before, cells=wrong)
    )
    assert incumbents(resumed.learn(6000).cells) == incumbents(before.cells)


def test_a_restart_goes_on_where_it_was() -> None:
    known = learner(World(KINDS, static_chance)).learn(5000)
    world = World(KINDS, static_chance, seed=3)
    resumed = Dolphin(world, AlwaysRemote(), PLAN, learned=known)
    resumed.learn(50)
    assert resumed.phase is Phase.RUN
    assert isinstance(world.policies[0], TablePolicy)
    assert world.policies[0].actions == incumbents(known.cells)


def test_what_a_guard_decides_teaches_nothing() -> None:
    known = learner(World(KINDS, static_chance)).learn(5000)
    full = World(KINDS, static_chance, kv_resident_ratio=0.99)
    assert Dolphin(full, AlwaysRemote(), PLAN, learned=known).learn(500).cells == known.cells


def test_requests_of_before_the_fit_teach_nothing() -> None:
    """Their cells are those of another table."""
    dolphin = learner(World(KINDS, static_chance, late=1), replace(PLAN, scan=replace(PLAN.scan, min_own=10**9)))
    while dolphin.phase is not Phase.RUN:
        dolphin.step()
    cells = dolphin.learned.cells
    dolphin.step()
    assert dolphin.learned.cells == cells


def test_a_shift_of_the_traffic_is_answered_by_a_refit_that_keeps_what_it_knows() -> None:
    world = World(KINDS, static_chance)
    dolphin = learner(world, replace(PLAN, drift=DriftPlan(window=400)))
    before = dolphin.learn(5000)
    assert dolphin.refits == []
    world.kinds = {"chat": Kind(isl=300, osl=150.0), "essay": Kind(isl=150, osl=4000.0, share=3.0)}
    world.chance = lambda kind, _, path: 0.9 if (path is Path.REMOTE) == (kind == "essay") else 0.5
    after = dolphin.learn(6000)
    first = dolphin.refits[0]
    assert first.drift.exceeds(dolphin.plan.drift)
    assert not first.is_due
    assert after.version > before.version
    assert first.fresh >= 1
    rows = World(world.kinds, world.chance, seed=4).serve(after.policy(), 3000)
    assert sum(bool(each.attained) for each in rows) / len(rows) > 0.86
    recovered = [s.attained for s in dolphin.stretches if s.phase is Phase.RUN][-5:]
    assert sum(each or 0.0 for each in recovered) / 5 > 0.8


def test_a_refit_that_is_due_carries_every_value_over() -> None:
    dolphin = learner(World(KINDS, static_chance), replace(PLAN, refit_every=1000))
    dolphin.learn(3000)
    while not dolphin.refits:
        before = dolphin.learned
        dolphin.step()
    refit, after = dolphin.refits[0], dolphin.learned
    assert (refit.is_due, refit.carried, refit.fresh) == (True, len(before.cells), 0)
    assert sorted(cell.local.value for cell in after.cells) == sorted(cell.local.value for cell in before.cells)
    assert dolphin.phase is Phase.RUN  # nothing is new, nothing is scanned


def test_requests_that_are_all_alike_make_a_two_armed_bandit() -> None:
    world = World({"one": Kind(isl=1000)}, lambda _, __, path: 0.9 if path is Path.LOCAL else 0.5)
    found = learner(world, replace(PLAN, clusters=ClusterPlan(k=1))).learn(3000)
    assert incumbents(found.cells) == (Path.LOCAL,)


def test_where_requests_are_too_rare_to_judge_the_baseline_stays() -> None:
    plan = replace(PLAN, scan=replace(PLAN.scan, min_own=10**9))
    dolphin = learner(World(KINDS, static_chance), plan)
    while dolphin.phase is not Phase.RUN:
        dolphin.step()
    assert set(incumbents(dolphin.learned.cells)) == {Path.REMOTE}
    assert dolphin.verdicts == []


def test_prompts_over_the_local_limit_belong_to_no_cell() -> None:
    plan = replace(PLAN, guards=Guards(max_local_tokens=1000))
    found = learner(World(KINDS, static_chance), plan).learn(5000)
    books = [cluster for cluster, share in enumerate(found.table.clustering.shares) if share > 0]
    assert len(books) == len(found.cells)
    assert all(cell.local.requests == 0 or cell.incumbent is Path.LOCAL for cell in found.cells)


def test_features_without_numbers_are_no_part_of_the_fit() -> None:
    world = World(KINDS, static_chance)
    serve = world.serve

    def broken(policy: PathPolicy, requests: int) -> list[ServedRow]:
        rows = serve(policy, requests)
        nan = Features(isl_tokens=10, prefill_isl_tokens=10, decode_isl_tokens=10, osl_tokens=math.nan)
        return [
            replace(each, features=nan) if each.order % 2 and each.reason is Reason.ALWAYS_REMOTE else each
            for each in rows
        ]

    world.serve = broken  # type: ignore[method-assign]
    policy = learner(world).learn(6000).policy()
    assert attained_by(policy, static_chance) == pytest.approx(best_of(static_chance), abs=0.02)


def test_an_environment_that_answers_nothing_is_an_error() -> None:
    with pytest.raises(LearningError, match="only 0 ended"):
        learner(World(KINDS, static_chance, late=10**9)).learn(100)


def test_requests_that_end_before_the_first_fit_are_too_few() -> None:
    with pytest.raises(LearningError, match=f"{PLAN.n_fit} requests are too few to learn from"):
        learner(World(KINDS, static_chance)).learn(PLAN.n_fit)


def test_before_the_fit_nothing_is_known() -> None:
    with pytest.raises(LearningError, match="nothing has been fitted"):
        _: Learned = Dolphin(World(KINDS, static_chance), AlwaysLocal(), PLAN).learned
