"""Learning on a running gateway, and what it costs: the preset `live`.

The rule of this module: only the tuned rule comes from the simulator. What is learned begins with the weights that
ship, sees nothing but laps of the learning half on the emulated fleet, and is judged there on the other half; every
lap is counted. Where and how fast laps are served is the caller's business.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from gateway.core.path.price import PriceWeights
from gateway.core.path.priced import JointPolicy
from gateway.core.path.rules import DynamoRule
from loadtest.compare.arms import Arm
from loadtest.compare.baselines import DYNAMO
from loadtest.compare.bootstrap import METRICS, resampled
from loadtest.compare.learned import BUILT_IN
from loadtest.compare.live_fleet import Lap
from loadtest.compare.live_table import TableEffort, learn_table_live
from loadtest.compare.results import Course, Exploration, LiveArm, LiveLap, LiveResult
from loadtest.compare.serving import Conditions, Served, fleet_of, serve
from loadtest.compare.study import Study, keep_bundle
from loadtest.compare.traffic import Half, missing
from loadtest.compare.words import words
from loadtest.learning.prices import fleet_costs
from loadtest.simulator.lengths import Lengths
from loadtest.traces.types import TraceRequest
from policy_store.learn.environment import Environment
from policy_store.learn.prices import Goal, Score, learn_weights

LEARNED = "joint, learned live"
LEARN_SEED, JUDGE_SEED, TABLE_SEED = 0, 1, 2
"""Of prompts: what is judged shares none with what was learned from."""
DEFAULTS, RULE, EXPLORING, AFTER, JUDGING = "Dynamo's defaults", "tuned rule", "exploring", "after it", "judging"
"""The phases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveEffort:
    """How long it takes."""

    learn_requests: int = 400
    """Of the learning half; a lap serves all of them."""
    reference_laps: int = 2
    """By Dynamo's defaults and by the tuned rule, each, before anything is tried."""
    budget: int = 16
    """Weights to try, a lap each."""
    judge_requests: int = 1500
    """Of the judging half."""
    rounds: int = 3
    """In which the rule and what was learned take turns."""
    speed: float = 4.0
    """Engine seconds per real second."""
    table: TableEffort | None = None
    """The paper's table is learned too; None leaves it out."""


class Laps(Protocol):
    """Serves the same requests by one arm after the other."""

    def serve(self, arm: Arm) -> Lap:
        """A lap, from an idle fleet to an idle fleet."""


class Stand(Protocol):
    """A running fleet."""

    def laps(self, name: str, requests: Sequence[TraceRequest], seed: int) -> AbstractContextManager[Laps]:
        """Laps of some requests, under a name and with prompts of their own."""

    def environment(
        self, name: str, requests: Sequence[TraceRequest], seed: int
    ) -> AbstractContextManager[Environment]:
        """The same without an end."""


OpenStand = Callable[[], AbstractContextManager[Stand]]
Tell = Callable[[str], None]


@dataclass(slots=True, kw_only=True)
class Diary:
    """Every lap that was served, in order."""

    tell: Tell
    laps: list[LiveLap] = field(default_factory=list)

    def serve(self, laps: Laps, phase: str, arm: Arm) -> Served:
        """Serve a lap and write it down."""
        lap = laps.serve(arm)
        served = lap.served
        score = served.score()
        entry = LiveLap(
            phase=phase,
            arm=arm.name,
            requests=len(served.met),
            met=int(served.met.sum()),
            ttft_p90_s=score.ttft_p90_s,
            tpot_p90_s=score.tpot_p90_s,
            words=words(arm.path),
            sent_late_s=lap.sent_late_s,
            loop_late_s=lap.loop_late_s,
        )
        self.laps.append(entry)
        self.tell(
            f"{phase}, lap {len(self.laps)}: {arm.name}: {entry.met} of {entry.requests} met"
            f" ({entry.met / entry.requests:.1%}), sent at most {1e3 * lap.sent_late_s:.0f} ms late at P99"
        )
        return served

    def attained(self, phase: str) -> float:
        """Of a phase's laps together."""
        laps = [lap for lap in self.laps if lap.phase == phase]
        return sum(lap.met for lap in laps) / sum(lap.requests for lap in laps)


def compare_live(study: Study, effort: LiveEffort, open_stand: OpenStand, tell: Tell) -> LiveResult:
    """The whole course, at a load of 100 %.

    Args:
        study: of the place; the tuned rule comes from its simulations.
        effort: what is served live.
        open_stand: starts the place's fleet, idle and with empty caches.
        tell: hears of every lap.

    Raises:
        NoSaturationError: the place has no such load.
        FleetError: a part of the fleet did not start.
        LiveError: the gateway refused a policy, or does not log what it serves.
    """
    scale = study.saturation().scale
    rule = study.tuned(scale)
    tell(f"tuned in the simulator: {words(rule.arm.path)}: {rule.score.attained_ratio:.1%} met on the learning half")
    traffic = study.traffic(scale)
    requests = traffic.load()[: effort.learn_requests]
    judging = replace(traffic, half=Half.JUDGE, seed=study.effort.seeds[0]).load()[: effort.judge_requests]
    began_s, diary = time.perf_counter(), Diary(tell=tell)
    with open_stand() as stand:
        with stand.laps("learn", requests, LEARN_SEED) as laps:
            learned = learn_live(laps, rule.arm, study.place.engine, effort, diary)
        others = [built_in_arm(rule.arm, study.place.engine)]
        courses: list[Course] = []
        if effort.table is not None:
            with stand.environment("table", traffic.load(), TABLE_SEED) as environment:
                table, course = learn_table_live(environment, rule.arm, effort.table, seed=traffic.seed)
            others.append(table)
            courses.append(course)
            tell(f"{table.name}: {words(table.path)}, from {course.requests} requests")
        arms = [rule.arm, *others, learned]
        with stand.laps("judge", judging, JUDGE_SEED) as laps:
            runs = judge_live(laps, arms, effort.rounds, diary)
    return LiveResult(
        place=study.place.label,
        speed=effort.speed,
        scale=scale,
        requests_per_s=len(judging) / judging[-1].arrival_s,
        rounds=effort.rounds,
        judge_requests=len(judging),
        learn_requests=len(requests),
        tried_rules=rule.tried,
        stand_ins=missing(study.place.workload, study.data),
        laps=diary.laps,
        exploration=exploration(diary),
        courses=courses,
        arms=_arms(study, arms, runs, judging),
        bundle=keep_bundle(study, learned),
        took_s=time.perf_counter() - began_s,
    )


def learn_live(laps: Laps, rule: Arm, engine: str, effort: LiveEffort, diary: Diary) -> Arm:
    """The best weights that were tried, from the ones that ship on.

    Args:
        laps: of the learning requests.
        rule: the tuned one, which the learned policy is to be better than.
        engine: whose prices the policy goes by.
        effort: how many laps.
        diary: where they are written down.
    """
    defaults = Arm(name=DYNAMO, path=DynamoRule(), placing=rule.placing)
    for _ in range(effort.reference_laps):
        diary.serve(laps, DEFAULTS, defaults)
    # Parts of several laps together are not parts of one.
    reference = replace(joined([diary.serve(laps, RULE, rule) for _ in range(effort.reference_laps)]).score(), parts=())
    first = built_in_arm(rule, engine)

    def arm_of(weights: PriceWeights) -> Arm:
        return replace(first, name=LEARNED, path=JointPolicy(weights=weights, baseline=rule.path))

    def try_all(asked: Sequence[PriceWeights]) -> Sequence[Score]:
        return [diary.serve(laps, EXPLORING, arm_of(weights)).score() for weights in asked]

    tried = learn_weights(try_all, Goal(reference=reference), budget=effort.budget, seed=LEARN_SEED)
    learned = arm_of(tried[0].weights)
    diary.serve(laps, AFTER, learned)
    return learned


def built_in_arm(rule: Arm, engine: str) -> Arm:
    """What learning begins with."""
    return Arm(name=BUILT_IN, path=JointPolicy(baseline=rule.path), costs=fleet_costs(engine))


def judge_live(laps: Laps, arms: Sequence[Arm], rounds: int, diary: Diary) -> dict[str, list[Served]]:
    """Each arm's runs by round; the arms take turns."""
    runs: dict[str, list[Served]] = {arm.name: [] for arm in arms}
    for _ in range(rounds):
        for arm in arms:
            runs[arm.name].append(diary.serve(laps, JUDGING, arm))
    return runs


def exploration(diary: Diary) -> Exploration:
    """What trying weights cost, beside what would have served those requests otherwise."""
    requests = sum(lap.requests for lap in diary.laps if lap.phase == EXPLORING)
    exploring = diary.attained(EXPLORING)
    shares = {phase: diary.attained(phase) for phase in (DEFAULTS, RULE, AFTER)}
    return Exploration(
        requests=requests,
        attained=exploring,
        missed=requests - sum(lap.met for lap in diary.laps if lap.phase == EXPLORING),
        others=shares,
        missed_beyond={phase: (share - exploring) * requests for phase, share in shares.items()},
    )


def _arms(
    study: Study, arms: Sequence[Arm], runs: Mapping[str, Sequence[Served]], judging: tuple[TraceRequest, ...]
) -> list[LiveArm]:
    """Figures of the judging laps, beside the rule's and beside the simulator's of the same requests."""
    judged = resampled(runs, draws=study.effort.draws)
    rule = judged[arms[0].name]
    # A replaying client says how long an answer may be at most, and that is how long it becomes.
    fleet = fleet_of(study.place, Conditions(lengths=Lengths.LIMIT))
    found = []
    for arm in arms:
        own = judged[arm.name]
        simulated = serve(fleet, arm, judging, seed=study.effort.seeds[0]).score()
        found.append(
            LiveArm(
                name=arm.name,
                words=words(arm.path),
                figures={metric: own.interval(metric) for metric in METRICS},
                beside_rule={} if own is rule else {metric: own.beside(rule, metric) for metric in METRICS},
                by_round=[run.attained_ratio for run in runs[arm.name]],
                simulated={
                    "attained_ratio": simulated.attained_ratio,
                    "ttft_p90_s": simulated.ttft_p90_s,
                    "tpot_p90_s": simulated.tpot_p90_s,
                },
            )
        )
    return found


def joined(runs: Sequence[Served]) -> Served:
    """Several runs as one."""
    return Served(
        ttft_s=np.concatenate([run.ttft_s for run in runs]),
        tpot_s=np.concatenate([run.tpot_s for run in runs]),
        met=np.concatenate([run.met for run in runs]),
        local=np.concatenate([run.local for run in runs]),
    )
