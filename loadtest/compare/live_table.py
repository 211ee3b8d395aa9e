"""The paper's static table, learned on a running gateway.

The rule of this module: nothing is given to it but the rule that serves while it warms up; clusters and paths come from
what the gateway logged.
"""

from dataclasses import dataclass, field

from loadtest.compare.arms import Arm
from loadtest.compare.learned import learn_while_serving
from loadtest.compare.results import Course
from loadtest.compare.study import course_of
from policy_store.learn.dolphin import DolphinPlan
from policy_store.learn.environment import Environment
from policy_store.learn.factorial import FactorialPlan

TABLE = "table, learned live"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableEffort:
    """How many requests it takes."""

    n_fit: int = 1500
    """Of the fit window."""
    scan: FactorialPlan = field(default_factory=lambda: FactorialPlan(turns=40, passes=1))
    run: int = 1000
    """After the scan, while the table goes on learning."""


def learn_table_live(environment: Environment, rule: Arm, effort: TableEffort, *, seed: int) -> tuple[Arm, Course]:
    """The table, and what learning it cost.

    Args:
        environment: serves the learning half over and over.
        rule: the tuned one; it serves while there is no table, and where the table has no answer.
        effort: how much is served.
        seed: of all that is drawn.

    Raises:
        LearningError: the gateway's log gives nothing to learn from.
        LiveError: the gateway refused a policy.
    """
    plan = DolphinPlan(n_fit=effort.n_fit, scan=effort.scan, seed=seed)
    learnt = learn_while_serving(TABLE, environment, rule, plan, run=effort.run)
    return learnt.arm, course_of(learnt)
