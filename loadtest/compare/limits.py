"""What the paper left open, measured: the preset `limits`.

The rule of this module: policies are learned once, at home, and then meet conditions that they were not learned under;
the tuned rule meets the same ones.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gateway.core.path.priced import JointPolicy, PricedPolicy
from loadtest.compare.arms import Arm
from loadtest.compare.bootstrap import METRICS
from loadtest.compare.cells import LLAMA_70B, SLOS, Place, all_places
from loadtest.compare.effort import Effort
from loadtest.compare.priced_wrongly import mispriced
from loadtest.compare.results import Finding
from loadtest.compare.serving import Conditions
from loadtest.compare.study import Study, bench_of, teach
from loadtest.learning.prices import fleet_costs
from loadtest.simulator.host import ScrapePlan
from loadtest.simulator.lengths import Lengths

HOME = Place(workload="mix", pools="2P2D", engine=LLAMA_70B, slo=SLOS[LLAMA_70B][0])
LOADS = (0.2, 0.4, 0.6, 0.8, 1.0)
ERRORS = (0.2, 0.5)
AGES_S = (0.1, 1.0, 5.0)
"""Of worker metrics when the gateway gets them; they are scraped once in as long, and at least once a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class School:
    """What was learned at home."""

    study: Study
    scale: float
    rule: Arm
    learned: Sequence[Arm]
    best: Arm

    @property
    def arms(self) -> list[Arm]:
        """The rule first."""
        return [self.rule, *self.learned]


def attend(study: Study) -> School:
    """Learn at home, at a load of 100 %.

    Raises:
        NoSaturationError: home has no such load.
    """
    scale = study.saturation().scale
    taught = teach(study, scale)
    return School(
        study=study,
        scale=scale,
        rule=taught.lesson.rule.arm,
        learned=[one.arm for one in taught.learnt],
        best=taught.best,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One condition, and who meets it; the first arm is the rule."""

    group: str
    condition: str
    arms: Sequence[Arm]
    conditions: Conditions | None = None
    """None keeps those that were learned under."""
    scale: float | None = None
    """None keeps the rate that was learned at."""


def at_home(school: School) -> Iterator[Question]:
    """Every condition at home."""
    yield from by_lengths(school)
    yield from by_load(school)
    yield from by_age(school)
    yield from by_error(school)


def by_lengths(school: School) -> Iterator[Question]:
    """Output lengths that are known, guessed or wrong."""
    for lengths in Lengths:
        conditions = replace(school.study.conditions, lengths=lengths)
        yield Question(group="output lengths", condition=str(lengths), arms=school.arms, conditions=conditions)


def by_load(school: School) -> Iterator[Question]:
    """Below saturation, where nothing was learned."""
    for load in LOADS:
        scale = float(f"{school.scale * load:.4g}")
        yield Question(group="load", condition=f"{load:.0%}", arms=school.arms, scale=scale)


def by_age(school: School) -> Iterator[Question]:
    """Worker metrics that are old when they come."""
    for age_s in AGES_S:
        scrape = ScrapePlan(interval_s=max(1.0, age_s), age_s=age_s)
        conditions = replace(school.study.conditions, scrape=scrape)
        yield Question(group="age of worker metrics", condition=f"{age_s:g} s", arms=school.arms, conditions=conditions)


def by_error(school: School) -> Iterator[Question]:
    """Cost tables that are wrong, for both pools alike and for the two in opposite ways."""
    priced = [arm for arm in school.learned if arm.costs is not None]
    for corrects in (True, False):
        conditions = replace(school.study.conditions, corrects=corrects)
        how = "corrected online" if corrects else "not corrected"
        for prefill, decode in ((1.0, 1.0), *_factors()):
            arms = [
                replace(arm, costs=mispriced(arm.costs, prefill, decode)) for arm in priced if arm.costs is not None
            ]
            words = f"prefill {prefill - 1:+.0%}, decode {decode - 1:+.0%}" if (prefill, decode) != (1, 1) else "right"
            yield Question(
                group="cost tables", condition=f"{words}, {how}", arms=[school.rule, *arms], conditions=conditions
            )


def answer(school: School, question: Question) -> list[Finding]:
    """What every arm does under one condition."""
    conditions = question.conditions
    study = school.study if conditions is None else replace(school.study, conditions=conditions)
    judged = bench_of(study, school.scale if question.scale is None else question.scale).judge(question.arms)
    rule = judged[question.arms[0].name]
    return [
        Finding(
            group=question.group,
            condition=question.condition,
            arm=arm.name,
            figures={metric: own.interval(metric) for metric in METRICS},
            beside_rule={} if own is rule else {metric: own.beside(rule, metric) for metric in METRICS},
        )
        for arm in question.arms
        for own in (judged[arm.name],)
    ]


def elsewhere(school: School, place: Place, effort: Effort) -> list[Finding]:
    """What was learned at home, at another place's load of 100 %, beside the rule that is tuned there.

    Args:
        school: what was learned.
        place: where it is tried.
        effort: how hard to look there.

    Raises:
        NoSaturationError: the place has no such load.
    """
    study = replace(school.study, place=place, effort=effort)
    scale = study.saturation().scale
    rule = study.tuned(scale).arm
    costs = fleet_costs(place.engine)
    moved = [
        replace(arm, costs=costs) if isinstance(arm.path, PricedPolicy | JointPolicy) else arm for arm in school.learned
    ]
    there = Question(group="learned at home, judged elsewhere", condition=place.label, arms=[rule, *moved], scale=scale)
    return answer(replace(school, study=study), there)


def neighbours(home: Place = HOME) -> list[Place]:
    """The places that differ from home in one way."""

    def differences(place: Place) -> int:
        pairs = (
            (place.workload, home.workload),
            (place.pools, home.pools),
            (place.engine, home.engine),
            (place.slo.name, home.slo.name),
        )
        return sum(own != its for own, its in pairs)

    return [place for place in all_places() if differences(place) == 1]


def everywhere_else(home: Place = HOME) -> list[Place]:
    """All places but home."""
    return [place for place in all_places() if place != home]


def _factors() -> list[tuple[float, float]]:
    signs = ((1, 1), (-1, -1), (1, -1), (-1, 1))
    return [(1.0 + a * error, 1.0 + b * error) for error in ERRORS for a, b in signs]
