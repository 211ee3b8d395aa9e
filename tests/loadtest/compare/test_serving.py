from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gateway.core.path.priced import JointPolicy
from gateway.core.path.rules import AlwaysLocal, AlwaysRemote, DynamoRule
from loadtest.compare.arms import DYNAMO_PLACING, Arm
from loadtest.compare.priced_wrongly import mispriced
from loadtest.compare.runs import Runs
from loadtest.compare.serving import Conditions, Served, Task, fleet_of
from loadtest.learning.prices import fleet_costs
from loadtest.simulator.lengths import Lengths
from tests.loadtest.compare.compare_lab import PLACE, traffic

LOCAL = Arm(name="local", path=AlwaysLocal())
JOINT = Arm(name="joint", path=JointPolicy(baseline=DynamoRule()), costs=fleet_costs(PLACE.engine))


def same(one: Served, other: Served) -> bool:
    return np.array_equal(one.ttft_s, other.ttft_s) and np.array_equal(one.tpot_s, other.tpot_s, equal_nan=True)


def task(arm: Arm = LOCAL, conditions: Conditions | None = None) -> Task:
    return Task(place=PLACE, traffic=traffic(), arm=arm, conditions=conditions or Conditions())


def test_a_run_follows_from_its_task() -> None:
    assert same(task().run(), task().run())


def test_the_paths_are_those_of_the_arm() -> None:
    assert task().run().local.all()
    remote = task(Arm(name="remote", path=AlwaysRemote(), placing=DYNAMO_PLACING)).run()
    whole_block = [each.input_tokens > 64 for each in traffic().load()]  # a shorter prompt has no KV to move
    assert not remote.local[whole_block].any()


def test_met_is_what_the_slo_says() -> None:
    served = task().run()
    assert PLACE.slo.ttft_s is not None
    assert PLACE.slo.tpot_s is not None
    within = (served.ttft_s <= PLACE.slo.ttft_s) & ~(served.tpot_s > PLACE.slo.tpot_s)
    assert np.array_equal(served.met, within)
    assert served.score().attained_ratio == served.attained_ratio == pytest.approx(within.mean())


def test_a_run_that_was_kept_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs(tmp_path)
    first = runs.serve(task())
    monkeypatch.setattr(Task, "run", lambda _: pytest.fail("it was run again"))
    assert same(runs.serve(task(replace(LOCAL, name="by another name"))), first)
    assert [file.suffix for file in tmp_path.iterdir()] == [".npz"]


@pytest.mark.parametrize(
    "other",
    [
        task(replace(LOCAL, placing=DYNAMO_PLACING)),
        task(conditions=Conditions(lengths=Lengths.PERFECT)),
        replace(task(), first=50),
        replace(task(), traffic=traffic(seed=4)),
    ],
)
def test_whatever_a_run_depends_on_is_in_its_key(other: Task) -> None:
    assert other.key != task().key


def test_only_the_first_requests_are_served_where_that_is_asked() -> None:
    assert len(replace(task(), first=50).run().met) == 50


def test_a_gateway_that_does_not_correct_believes_its_tables() -> None:
    costs = JOINT.costs
    assert costs is not None
    wrong = replace(JOINT, costs=mispriced(costs, 3.0, 3.0))
    requests = traffic().load()
    for corrects in (True, False):
        fleet = fleet_of(PLACE, Conditions(corrects=corrects))
        dispatcher = fleet.dispatcher(wrong.policy(), requests, seed=0)
        forecast = dispatcher.router.forecast
        assert forecast is not None
        assert (type(forecast).__name__ == "UncorrectedForecast") is not corrects
    assert not same(task(wrong).run(), task(wrong, Conditions(corrects=False)).run())


def test_costs_are_scaled_for_each_pool() -> None:
    costs = fleet_costs(PLACE.engine)
    wrong = mispriced(costs, 1.5, 0.5)
    assert wrong.prefill.prefill_s(1000, 200) == pytest.approx(1.5 * costs.prefill.prefill_s(1000, 200))
    assert wrong.decode.decode_step_s(8, 9000) == pytest.approx(0.5 * costs.decode.decode_step_s(8, 9000))
    assert wrong.decode.transfer_s(1000) == costs.decode.transfer_s(1000)
