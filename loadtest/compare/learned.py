"""How the learned arms come about.

The rule of this module: a learner sees the learning half and the tuned rule, and nothing of what it will be judged on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from gateway.core.path.base import PathPolicy
from gateway.core.path.price import PriceWeights
from gateway.core.path.priced import JointPolicy, PricedPolicy
from gateway.core.policy import Policy
from loadtest.compare.arms import Arm
from loadtest.compare.baselines import Tuned
from loadtest.compare.cells import Place
from loadtest.compare.effort import Effort
from loadtest.compare.runs import Runs
from loadtest.compare.serving import Conditions, Task, fleet_of
from loadtest.compare.traffic import Traffic
from loadtest.learning.adoption import adopted, spares
from loadtest.learning.prices import fleet_costs
from loadtest.learning.simulated import SimulatedEnvironment
from policy_store.learn.course import Phase, Regret, Stretch
from policy_store.learn.dolphin import Dolphin, DolphinPlan
from policy_store.learn.environment import Environment
from policy_store.learn.prices import Goal, Score, learn_weights
from policy_store.learn.regimes import RegimePlan

STATIC_TABLE = "table"
"""The paper's own."""
BUILT_IN = "joint, built-in weights"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """What a learner is given."""

    place: Place
    traffic: Traffic
    """The learning half."""
    conditions: Conditions
    rule: Tuned
    """The best-tuned Dynamo rule."""
    effort: Effort
    runs: Runs

    def score(self, arm: Arm) -> Score:
        """How an arm does on the learning half."""
        task = Task(place=self.place, traffic=self.traffic, arm=arm, conditions=self.conditions)
        return self.runs.serve(task).score()


@dataclass(frozen=True, slots=True, kw_only=True)
class Learnt:
    """What a learner gives."""

    arm: Arm
    requests: int
    """Served to learn it, all tries together."""
    regret: Regret | None = None
    """What scanning cost, where it was learned while serving."""
    stretches: Sequence[Stretch] = ()


class Learner(Protocol):
    """Makes a policy of a lesson; equal lessons give equal policies."""

    def __call__(self, lesson: Lesson, name: str) -> Learnt:
        """The arm of that name."""


def learn_joint(lesson: Lesson, name: str) -> Learnt:
    """Weights of the price of whole routes."""
    return _learn_price(lesson, name, JointPolicy)


def learn_priced(lesson: Lesson, name: str) -> Learnt:
    """Weights of the price of the two paths, under our placement."""
    return _learn_price(lesson, name, PricedPolicy)


def learn_table(lesson: Lesson, name: str) -> Learnt:
    """The paper's static table."""
    return _learn_table(lesson, name, None)


def learn_regimes(lesson: Lesson, name: str) -> Learnt:
    """A table by cluster and load regime."""
    return _learn_table(lesson, name, RegimePlan())


LEARNERS: Mapping[str, Learner] = MappingProxyType(
    {
        STATIC_TABLE: learn_table,
        "table-regime": learn_regimes,
        "priced": learn_priced,
        "joint": learn_joint,
    }
)
"""All by name."""


def built_in(lesson: Lesson) -> Arm:
    """The strongest policy before it has learned anything: its prices are as they ship."""
    return _priced_arm(lesson, BUILT_IN, JointPolicy, PriceWeights())


def best_of(lesson: Lesson, learnt: Sequence[Learnt]) -> Arm:
    """The arm that did best on the learning half, by what the learners themselves aim at.

    It is the tuned rule where nothing that was learned is better, or every better one is worse in some figure: then
    there is no reason to change.
    """
    rule = lesson.rule.score
    goal = Goal(reference=rule)
    fit = [one.arm for one in learnt if spares(lesson.score(one.arm), rule)]
    return max((*fit, lesson.rule.arm), key=lambda arm: goal.value(lesson.score(arm)))


def _learn_price(lesson: Lesson, name: str, kind: type[JointPolicy | PricedPolicy]) -> Learnt:
    def try_all(asked: Sequence[PriceWeights]) -> Sequence[Score]:
        return [lesson.score(_priced_arm(lesson, name, kind, weights)) for weights in asked]

    effort = lesson.effort
    tried = learn_weights(try_all, Goal(reference=lesson.rule.score), budget=effort.budget, seed=effort.learn_seed)
    arm = _priced_arm(lesson, name, kind, adopted(tried, lesson.rule.score).weights)
    return Learnt(arm=arm, requests=effort.budget * effort.requests)


def _priced_arm(lesson: Lesson, name: str, kind: type[JointPolicy | PricedPolicy], weights: PriceWeights) -> Arm:
    path: PathPolicy = kind(weights=weights, baseline=lesson.rule.arm.path)
    return Arm(name=name, path=path, costs=fleet_costs(lesson.place.engine))


def _learn_table(lesson: Lesson, name: str, regimes: RegimePlan | None) -> Learnt:
    effort = lesson.effort
    environment = SimulatedEnvironment(
        fleet_of(lesson.place, lesson.conditions),
        lesson.traffic.load(),
        seed=effort.learn_seed,
        policy=Policy(),
    )
    plan = DolphinPlan(
        n_fit=min(effort.requests, DolphinPlan().n_fit), regimes=regimes, scan=effort.scan, seed=effort.learn_seed
    )
    return learn_while_serving(name, environment, lesson.rule.arm, plan, in_all=effort.table_requests)


def learn_while_serving(
    name: str, environment: Environment, rule: Arm, plan: DolphinPlan, *, run: int = 1, in_all: int = 0
) -> Learnt:
    """A table, through its warm-up, fit and scan to where it runs.

    Args:
        name: of the arm.
        environment: serves.
        rule: serves while there is no table.
        plan: how it is learned.
        run: requests after the scan, at least.
        in_all: requests, at least.

    Raises:
        LearningError: there is nothing to learn from.
    """
    learner = Dolphin(environment, rule.path, plan)
    while learner.phase is not Phase.RUN:
        learner.step()
    learner.learn(max(run, in_all - environment.served))
    return Learnt(
        arm=Arm(name=name, path=learner.learned.policy()),
        requests=environment.served,
        regret=learner.regret(),
        stretches=tuple(learner.stretches),
    )
