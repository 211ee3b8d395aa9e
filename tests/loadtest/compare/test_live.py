from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from gateway.core.path.priced import JointPolicy
from gateway.core.path.rules import DynamoMode, DynamoRule
from gateway.core.policy import Policy
from loadtest.compare.arms import DYNAMO_PLACING, OUR_PLACING, Arm
from loadtest.compare.baselines import DYNAMO, DYNAMO_TUNED
from loadtest.compare.bounds import learned_live
from loadtest.compare.learned import BUILT_IN
from loadtest.compare.live import (
    AFTER,
    DEFAULTS,
    EXPLORING,
    JUDGING,
    LEARNED,
    RULE,
    Diary,
    LiveEffort,
    compare_live,
    exploration,
    judge_live,
    learn_live,
)
from loadtest.compare.live_fleet import Lap
from loadtest.compare.live_report import live_parts
from loadtest.compare.live_table import TABLE, TableEffort
from loadtest.compare.results import LiveArm, LiveResult
from loadtest.compare.saturation import Saturation
from loadtest.compare.serving import Conditions, Served, fleet_of
from loadtest.compare.study import Study
from loadtest.learning.simulated import SimulatedEnvironment
from loadtest.traces.types import TraceRequest
from policy_store.bundle import read_bundle
from policy_store.learn.environment import Environment
from policy_store.learn.factorial import FactorialPlan
from tests.loadtest.compare.compare_lab import PLACE, TINY, interval

RULE_ARM = Arm(
    name=DYNAMO_TUNED,
    path=DynamoRule(mode=DynamoMode.ISL_OR_LOAD, prefill_busy_threshold=1.0),
    placing=DYNAMO_PLACING,
)
EFFORT = LiveEffort(learn_requests=100, reference_laps=2, budget=8, judge_requests=60, rounds=3)
TABLE_EFFORT = TableEffort(n_fit=60, scan=FactorialPlan(turns=4, turn=25, passes=1), run=30)


@dataclass(kw_only=True)
class FakeLaps:
    """Meets the SLO for as many requests of each lap as `met` says of the arm."""

    requests: int
    met: Callable[[Arm], int]
    arms: list[Arm] = field(default_factory=list)

    def serve(self, arm: Arm) -> Lap:
        self.arms.append(arm)
        met = np.arange(self.requests) < self.met(arm)
        served = Served(
            ttft_s=np.where(met, 1.0, 3.0),
            tpot_s=np.full(self.requests, 0.03),
            met=met,
            local=np.zeros(self.requests, dtype=bool),
        )
        return Lap(served=served, sent_late_s=0.001 * len(self.arms), loop_late_s=0.002)


@dataclass(kw_only=True)
class FakeStand:
    met: Callable[[Arm], int]
    opened: list[tuple[str, Sequence[TraceRequest], int]] = field(default_factory=list)

    @contextmanager
    def laps(self, name: str, requests: Sequence[TraceRequest], seed: int) -> Iterator[FakeLaps]:
        self.opened.append((name, requests, seed))
        yield FakeLaps(requests=len(requests), met=self.met)

    @contextmanager
    def environment(self, name: str, requests: Sequence[TraceRequest], seed: int) -> Iterator[Environment]:
        self.opened.append((name, requests, seed))
        yield SimulatedEnvironment(fleet_of(PLACE, Conditions()), requests, seed=0, policy=Policy())


def stall_price(arm: Arm) -> float:
    assert isinstance(arm.path, JointPolicy)
    return arm.path.weights.stall_price


def met_of(arm: Arm) -> int:
    """The more the dearer a stall, over all that the rule reaches."""
    if arm.name == DYNAMO:
        return 40
    if arm.name == DYNAMO_TUNED:
        return 55
    return min(98, round(50 + 12 * stall_price(arm)))


def learned() -> tuple[Arm, FakeLaps, Diary]:
    laps, diary = FakeLaps(requests=100, met=met_of), Diary(tell=lambda _: None)
    return learn_live(laps, RULE_ARM, PLACE.engine, EFFORT, diary), laps, diary


def test_learning_begins_with_the_defaults_and_ends_with_the_best_that_was_tried() -> None:
    arm, laps, diary = learned()
    phases = [DEFAULTS] * 2 + [RULE] * 2 + [EXPLORING] * 8 + [AFTER]
    assert [lap.phase for lap in diary.laps] == phases
    defaults, rule, tried = laps.arms[0], laps.arms[2], laps.arms[4:12]
    assert defaults.path == DynamoRule()
    assert defaults.placing is rule.placing is DYNAMO_PLACING
    assert rule is RULE_ARM
    assert tried[0].path == JointPolicy(baseline=RULE_ARM.path), "a cold start: the weights that ship"
    assert len({each.key for each in tried}) == 8
    assert all(each.costs is not None and each.placing is OUR_PLACING for each in tried)
    assert stall_price(arm) == max(map(stall_price, tried))
    assert laps.arms[-1] is arm


def test_exploring_is_held_against_what_would_have_served_instead() -> None:
    arm, laps, diary = learned()
    met = sum(map(met_of, laps.arms[4:12]))
    found = exploration(diary)
    assert (found.requests, found.missed) == (800, 800 - met)
    assert found.attained == met / 800
    assert found.others == {DEFAULTS: 0.4, RULE: 0.55, AFTER: met_of(arm) / 100}
    beyond = {DEFAULTS: 320 - met, RULE: 440 - met, AFTER: 8 * met_of(arm) - met}
    assert found.missed_beyond == pytest.approx(beyond)
    assert found.missed_beyond[AFTER] > 0


def test_arms_take_turns_before_the_judge() -> None:
    laps, diary = FakeLaps(requests=60, met=met_of), Diary(tell=lambda _: None)
    other = replace(RULE_ARM, name=DYNAMO)
    runs = judge_live(laps, [RULE_ARM, other], 3, diary)
    assert laps.arms == [RULE_ARM, other] * 3
    assert {lap.phase for lap in diary.laps} == {JUDGING}
    assert {name: [run.met.sum() for run in each] for name, each in runs.items()} == {
        DYNAMO_TUNED: [55] * 3,
        DYNAMO: [40] * 3,
    }


def test_the_whole_course_is_judged_on_requests_that_nobody_learned_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = Study(place=PLACE, loads=(1.0,), effort=replace(TINY, requests=100), data=None, out=tmp_path)
    monkeypatch.setattr(Study, "saturation", lambda _: Saturation(scale=8.0, rule=RULE_ARM, attained_ratio=0.7))
    stand, told = FakeStand(met=lambda arm: 55 if arm.name == DYNAMO_TUNED else 58), list[str]()

    @contextmanager
    def opened() -> Iterator[FakeStand]:
        yield stand

    result = compare_live(study, replace(EFFORT, table=TABLE_EFFORT), opened, told.append)
    (learn, learning, _), (table, _, _), (judge, judging, _) = stand.opened
    assert (learn, table, judge) == ("learn", "table", "judge")
    assert len({seed for _, _, seed in stand.opened}) == 3, "no prompt that is judged was ever seen"
    assert (len(learning), len(judging)) == (100, 60)
    assert [each.input_tokens for each in learning[:60]] != [each.input_tokens for each in judging]
    assert [arm.name for arm in result.arms] == [DYNAMO_TUNED, BUILT_IN, TABLE, LEARNED]
    rule, _, _, own = result.arms
    assert rule.beside_rule == {}
    assert own.by_round == [58 / 60] * 3
    assert own.beside_rule["attained_ratio"].value == pytest.approx(3 / 60)
    assert 0.0 < own.simulated["attained_ratio"] <= 1.0
    assert result.bundle is not None
    assert read_bundle(tmp_path / "policies" / result.bundle).version == result.bundle
    assert len(told) == 2 + len(result.laps)
    text = "\n\n".join(live_parts(result))
    assert "800 requests were served by weights that were tried, in laps of the same 100: 58.0% met" in text
    assert f"| {RULE} | 55.0% | -24 |" in text
    assert "25, judging" in text
    assert f"| {TABLE} | {result.courses[0].requests} |" in text


@pytest.mark.parametrize(("better_by", "holds"), [(0.01, True), (0.0, False), (-0.01, False)])
def test_the_bound_is_above_the_tuned_rule(better_by: float, holds: bool) -> None:
    _, _, diary = learned()
    own = LiveArm(
        name=LEARNED,
        words="",
        figures={},
        beside_rule={"attained_ratio": interval(better_by)},
        by_round=[],
        simulated={},
    )
    result = LiveResult(
        place=PLACE.label,
        speed=4.0,
        scale=1.0,
        requests_per_s=1.0,
        rounds=3,
        judge_requests=60,
        learn_requests=100,
        tried_rules=2,
        stand_ins=[],
        laps=diary.laps,
        exploration=exploration(diary),
        arms=[own],
        bundle=None,
        took_s=1.0,
    )
    verdict = learned_live(result)
    assert (verdict.holds, verdict.required) == (holds, 0.0)
    assert DYNAMO_TUNED in verdict.what
