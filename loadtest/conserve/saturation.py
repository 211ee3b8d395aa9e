"""How much a fleet can be asked for.

The rule of this module: a fleet keeps up with a rate while it answers nearly as many turns of the same conversations,
in the same time, as one of many times its size. The highest rate that it keeps up with is its saturation; a load is a
share of it. What gets done of more than that says little: in an overload first turns, which are cheap, crowd out the
rest.
"""

from collections.abc import Sequence
from dataclasses import replace

from loadtest.conserve.arms import LOCAL, Arm, Place
from loadtest.conserve.runs import Runs
from loadtest.conserve.serving import Task
from loadtest.conserve.traffic import Talk

ROOMY = "16P16D"
"""A fleet on which nobody waits for anybody at the rates that four workers can be asked for."""
FIRST_RPS = 0.1
"""The lowest rate at which conversations begin that is tried."""
GROWTH = 1.5
STEPS = 14
TOGETHER = 2
"""Rates that are tried at once."""
HALVINGS = 2
"""Of the last step, in the logarithm."""
LEAST_SESSIONS = 24
KEPT = 0.90
"""Of the answers of the roomy fleet: fewer is not keeping up."""


def saturation_rps(place: Place, arm: Arm, talk: Talk, runs: Runs, *, window_s: float) -> float:
    """The highest rate of conversations that an arm keeps up with, per second; they begin for `window_s`.

    It is the lowest rate that is tried where the arm keeps up with none.
    """

    def keeps_up(rates: Sequence[float]) -> list[bool]:
        talks = [_asked(talk, rate, window_s) for rate in rates]
        own = [Task(place=place, talk=each, arm=arm) for each in talks]
        roomy = [Task(place=Place(workload=place.workload, pools=ROOMY), talk=each, arm=LOCAL) for each in talks]
        done = runs.throughputs([*own, *roomy])
        return [mine >= KEPT * all_ for mine, all_ in zip(done[: len(own)], done[len(own) :], strict=True)]

    low = FIRST_RPS
    for first in range(0, STEPS, TOGETHER):
        rates = [FIRST_RPS * GROWTH ** (first + step) for step in range(TOGETHER)]
        kept = keeps_up(rates)
        low = next((rate for rate, is_kept in zip(rates[::-1], kept[::-1], strict=True) if is_kept), low)
        if not all(kept):
            break
    step = GROWTH
    for _ in range(HALVINGS):
        step **= 0.5
        (is_kept,) = keeps_up([low * step])
        low *= step if is_kept else 1.0
    return low


def _asked(talk: Talk, rate_rps: float, window_s: float) -> Talk:
    return replace(talk, sessions=max(LEAST_SESSIONS, round(rate_rps * window_s)), rate_rps=rate_rps)
