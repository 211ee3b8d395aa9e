from loadtest.compare.decision_cost import decision_costs
from tests.loadtest.compare.compare_lab import PLACE, traffic


def test_every_part_of_a_decision_is_timed() -> None:
    found = {one.part: one for one in decision_costs(PLACE, traffic().load()[:60])}
    assert set(found) == {
        "feature extraction",
        "assignment, K 8",
        "assignment, K 32",
        "look-up, K 8: guards, assignment and words",
        "look-up, K 32: guards, assignment and words",
        "Dynamo's rule",
        "priced: two paths",
        "joint: 2 x 2 workers",
    }
    assert all(0 < one.p50_us <= one.p99_us and one.calls == 180 for one in found.values())
