"""Judges the arms of a cell on what nobody has learned from.

The rule of this module: every arm serves the same requests at the same times, seed by seed; what is learned on the
first half of the traffic counts on the second.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from loadtest.compare.arms import PLACINGS, Arm
from loadtest.compare.baselines import DYNAMO, DYNAMO_TUNED, LLMD_TUNED, named
from loadtest.compare.bootstrap import METRICS, Resampled, resampled
from loadtest.compare.cells import Place
from loadtest.compare.results import ArmResult
from loadtest.compare.runs import Runs
from loadtest.compare.serving import Conditions, Served, Task
from loadtest.compare.traffic import Half, Traffic
from loadtest.compare.words import words

BESIDE = tuple(named(name, placing) for name in (DYNAMO_TUNED, LLMD_TUNED, DYNAMO) for placing in PLACINGS)
"""What every arm is compared with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Where arms are judged."""

    place: Place
    traffic: Traffic
    """Its half and seed do not matter."""
    conditions: Conditions
    seeds: Sequence[int]
    draws: int
    runs: Runs

    def serve(self, arm: Arm) -> list[Served]:
        """The judging half, once per seed."""
        return self.runs.serve_all(
            [
                Task(
                    place=self.place,
                    traffic=replace(self.traffic, half=Half.JUDGE, seed=seed),
                    arm=arm,
                    conditions=self.conditions,
                )
                for seed in self.seeds
            ]
        )

    def judge(self, arms: Sequence[Arm]) -> dict[str, Resampled]:
        """All arms, resampled alike."""
        return resampled({arm.name: self.serve(arm) for arm in arms}, draws=self.draws)


def arm_results(
    arms: Sequence[Arm], judged: Mapping[str, Resampled], learned_ratio: Mapping[str, float], learned: Sequence[str]
) -> list[ArmResult]:
    """Every arm's figures, and how they lie beside the baselines'."""
    return [
        ArmResult(
            name=arm.name,
            is_learned=arm.name in learned,
            words=words(arm.path),
            learned_ratio=learned_ratio[arm.name],
            figures={metric: judged[arm.name].interval(metric) for metric in METRICS},
            beside={
                other: {metric: judged[arm.name].beside(judged[other], metric) for metric in METRICS}
                for other in BESIDE
                if other in judged and other != arm.name
            },
        )
        for arm in arms
    ]
