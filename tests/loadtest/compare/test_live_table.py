from gateway.core.path.rules import AlwaysRemote
from gateway.core.path.table import TablePolicy
from gateway.core.policy import Policy
from loadtest.compare.arms import DYNAMO_PLACING, OUR_PLACING, Arm
from loadtest.compare.live_table import TABLE, TableEffort, learn_table_live
from loadtest.compare.serving import Conditions, fleet_of
from loadtest.learning.simulated import SimulatedEnvironment
from policy_store.learn.factorial import FactorialPlan
from tests.loadtest.compare.compare_lab import PLACE, traffic

EFFORT = TableEffort(n_fit=100, scan=FactorialPlan(turns=6, turn=25, passes=1), run=60)


def test_a_table_comes_from_what_was_served_and_nothing_else() -> None:
    environment = SimulatedEnvironment(fleet_of(PLACE, Conditions()), traffic().load(), seed=0, policy=Policy())
    rule = Arm(name="rule", path=AlwaysRemote(), placing=DYNAMO_PLACING)
    arm, course = learn_table_live(environment, rule, EFFORT, seed=3)
    assert isinstance(arm.path, TablePolicy)
    assert arm.path.baseline == rule.path
    assert (arm.name, arm.placing) == (TABLE, OUR_PLACING)
    assert course.arm == TABLE
    assert course.requests == environment.served == sum(step.requests for step in course.steps)
    assert [step.phase for step in course.steps].count("scan") >= 6
    assert course.scan_attained is not None
    assert course.run_attained is not None
