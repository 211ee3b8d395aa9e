import pytest

from gateway.core.types import Path
from policy_store.learn.bandit import Arm, BanditPlan, Cell, incumbents

LOCAL, REMOTE = Path.LOCAL, Path.REMOTE
PLAN = BanditPlan(switch_margin=0.0)


def cell(local: float = 0.0, remote: float = 0.0, *, seen: int = 10, incumbent: Path = REMOTE) -> Cell:
    return Cell(
        incumbent=incumbent,
        baseline=REMOTE,
        local=Arm(value=local, requests=seen),
        remote=Arm(value=remote, requests=seen),
    )


def test_a_value_is_the_mean_until_its_memory_is_full() -> None:
    arm = Arm()
    for reward in (1.0, 0.0, 0.0, 1.0):
        arm = arm.updated(reward, 0.02)
    assert (arm.value, arm.requests) == (0.5, 4)


def test_later_the_newest_outcomes_count_most() -> None:
    arm = Arm(value=1.0, requests=1000).updated(0.0, 0.02)
    assert arm.value == pytest.approx(0.98)


def test_exploration_halves_after_n_half_requests_down_to_its_floor() -> None:
    assert [PLAN.epsilon(0), PLAN.epsilon(500), PLAN.epsilon(10**6)] == [0.1, 0.05, 0.02]


def test_the_better_path_takes_over() -> None:
    assert cell(local=0.5, remote=0.5).rewarded(LOCAL, 1.0, PLAN).incumbent is LOCAL
    assert cell(local=0.5, remote=0.5).rewarded(LOCAL, 0.0, PLAN).incumbent is REMOTE


def test_a_tie_goes_to_the_baselines_path() -> None:
    assert cell(0.5, 0.5, incumbent=LOCAL).greedy() is REMOTE


def test_within_the_margin_the_incumbent_stays() -> None:
    assert cell(0.55, 0.5, incumbent=REMOTE).greedy(margin=0.1) is REMOTE
    assert cell(0.65, 0.5, incumbent=REMOTE).greedy(margin=0.1) is LOCAL


def test_a_path_that_was_never_tried_takes_nothing_over() -> None:
    untried = Cell(incumbent=LOCAL, baseline=REMOTE)
    assert untried.rewarded(LOCAL, 0.0, PLAN).incumbent is LOCAL


def test_an_outcome_moves_its_own_path_alone() -> None:
    before = cell(0.5, 0.5)
    after = before.rewarded(LOCAL, 1.0, PLAN)
    assert after.remote == before.remote
    assert (after.requests, incumbents([before])) == (21, (REMOTE,))
