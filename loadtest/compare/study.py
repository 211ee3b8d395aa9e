"""One place from its saturating rate to its verdict, at one load after the other.

The rule of this module: it only says what comes after what. Learning and tuning see the learning half alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from loadtest.compare.arms import DYNAMO_PLACING, Arm
from loadtest.compare.baselines import DYNAMO_TUNED, TryArm, Tuned, fixed_arms, scouts, tune, tune_dynamo, tuned_arms
from loadtest.compare.bundles import keep_policy
from loadtest.compare.cells import Place
from loadtest.compare.effort import Effort
from loadtest.compare.judge import Bench, arm_results
from loadtest.compare.learned import LEARNERS, Learnt, Lesson, best_of, built_in
from loadtest.compare.results import ArmResult, CellResult, Course, Step
from loadtest.compare.runs import Runs
from loadtest.compare.saturation import Saturation, saturate
from loadtest.compare.serving import Conditions, Served, Task
from loadtest.compare.traffic import Half, Traffic, missing
from loadtest.compare.words import clusters_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A place and how it is looked at."""

    place: Place
    loads: Sequence[float]
    effort: Effort
    data: Path | None
    out: Path | None = None
    """Where runs and learned policies are kept."""
    conditions: Conditions = field(default_factory=Conditions)

    @property
    def runs(self) -> Runs:
        """What was served before."""
        return Runs(None if self.out is None else self.out / "runs")

    def traffic(self, scale: float) -> Traffic:
        """The learning half at a rate."""
        return Traffic(
            workload=self.place.workload,
            half=Half.LEARN,
            requests=self.effort.requests,
            scale=scale,
            seed=self.effort.learn_seed,
            data=self.data,
        )

    def try_arm(self, arm: Arm, scale: float, first: int | None = None) -> Served:
        """An arm on the learning half."""
        task = Task(place=self.place, traffic=self.traffic(scale), arm=arm, conditions=self.conditions, first=first)
        return self.runs.serve(task)

    def tries(self, scale: float) -> TryArm:
        """`try_arm` at a rate."""
        return lambda arm, first: self.try_arm(arm, scale, first)

    def tuned(self, scale: float) -> Tuned:
        """The best of Dynamo's rules under Dynamo's own placement, at a rate."""
        effort = self.effort
        return tune_dynamo(effort.rules, DYNAMO_PLACING, self.tries(scale), screens=effort.screens)

    def saturation(self) -> Saturation[Arm]:
        """The place's 100 %.

        Raises:
            NoSaturationError: the SLO is never kept, or always.
        """
        return saturate(
            lambda scale: tune(DYNAMO_TUNED, scouts(), DYNAMO_PLACING, self.tries(scale), screens=()).arm,
            lambda arm, scale: self.try_arm(arm, scale).attained_ratio,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Taught:
    """All arms of one cell, and how they came about."""

    lesson: Lesson
    rules: Sequence[Arm]
    """Those that are not learned; the tuned Dynamo rule comes first."""
    arms: Sequence[Arm]
    """The rules, the built-in prices and what was learned."""
    learnt: Sequence[Learnt]
    best: Arm


def compare_place(study: Study) -> Iterator[CellResult]:
    """Every load of one place, as they end.

    Raises:
        NoSaturationError: the SLO is never kept there, or always.
    """
    full = study.saturation()
    for load in study.loads:
        taught = teach(study, float(f"{full.scale * load:.4g}"))
        yield _judged(study, load, full, taught)


def teach(study: Study, scale: float) -> Taught:
    """Tune the rules and learn the policies at one rate."""
    effort = study.effort
    tuned = tuned_arms(
        study.tries(scale),
        screens=effort.screens,
        rules=effort.rules,
        placings=effort.placings,
    )
    lesson = lesson_of(study, scale, tuned[0])
    learnt = [LEARNERS[name](lesson, name) for name in effort.learners]
    rules = [*(one.arm for one in tuned), *fixed_arms(effort.fixed, effort.placings)]
    before = [built_in(lesson)] if effort.shows_built_in else []
    arms = [*rules, *before, *(one.arm for one in learnt)]
    return Taught(lesson=lesson, rules=rules, arms=arms, learnt=learnt, best=best_of(lesson, learnt))


def lesson_of(study: Study, scale: float, rule: Tuned) -> Lesson:
    """What learners are given there."""
    return Lesson(
        place=study.place,
        traffic=study.traffic(scale),
        conditions=study.conditions,
        rule=rule,
        effort=study.effort,
        runs=study.runs,
    )


def bench_of(study: Study, scale: float) -> Bench:
    """Where the place's arms are judged."""
    return Bench(
        place=study.place,
        traffic=study.traffic(scale),
        conditions=study.conditions,
        seeds=study.effort.seeds,
        draws=study.effort.draws,
        runs=study.runs,
    )


def _judged(study: Study, load: float, full: Saturation[Arm], taught: Taught) -> CellResult:
    place, effort, traffic = study.place, study.effort, taught.lesson.traffic
    judged = bench_of(study, traffic.scale).judge(taught.arms)
    learned_ratio = {arm.name: taught.lesson.score(arm).attained_ratio for arm in taught.arms}
    names = [one.arm.name for one in taught.learnt]
    arms = arm_results(taught.arms, judged, learned_ratio, names)
    return CellResult(
        workload=place.workload,
        pools=place.pools,
        engine=place.engine,
        slo=place.slo.name,
        slo_ttft_s=place.slo.ttft_s,
        slo_tpot_s=place.slo.tpot_s,
        load=load,
        scale=traffic.scale,
        requests_per_s=_rate(traffic),
        saturation_ratio=full.attained_ratio,
        requests=effort.requests,
        seeds=len(effort.seeds),
        stand_ins=missing(place.workload, study.data),
        best=taught.best.name,
        strongest=max(taught.rules, key=lambda arm: learned_ratio[arm.name]).name,
        arms=[_bundled(study, arm, result) for arm, result in zip(taught.arms, arms, strict=True)],
        courses=[course_of(one) for one in taught.learnt],
        clusters={arm.name: found for arm in taught.arms if (found := clusters_of(arm.path))},
        tried=taught.lesson.rule.tried,
    )


def _bundled(study: Study, arm: Arm, result: ArmResult) -> ArmResult:
    """A learned arm is written as a bundle, which a gateway can serve."""
    return msgspec.structs.replace(result, bundle=keep_bundle(study, arm)) if result.is_learned else result


def keep_bundle(study: Study, arm: Arm) -> str | None:
    """Write a learned arm's bundle; its version, or None where nothing is kept."""
    if study.out is None:
        return None
    return keep_policy(study.out, arm.path, arm.costs, learned=f"tidegate compare, {study.place.label}", name=arm.name)


def course_of(learnt: Learnt) -> Course:
    """How an arm was learned, for a report."""
    regret = learnt.regret
    return Course(
        arm=learnt.arm.name,
        requests=learnt.requests,
        scan_attained=None if regret is None else regret.scan,
        run_attained=None if regret is None else regret.run,
        missed_for_scanning=None if regret is None else regret.missed_for_scanning,
        steps=[
            Step(phase=str(each.phase), requests=each.requests, attained=each.attained) for each in learnt.stretches
        ],
    )


def _rate(traffic: Traffic) -> float:
    requests = traffic.load()
    return len(requests) / requests[-1].arrival_s if requests[-1].arrival_s else 0.0
