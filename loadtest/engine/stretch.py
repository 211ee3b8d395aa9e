"""Steps in a row that differ in nothing but how long their sequences have grown.

Their ends follow from where the stretch began, whenever one asks: a host that looks in between sees the same times as
one that does not.
"""

from typing import Protocol

from loadtest.engine.cost import StepWork
from loadtest.engine.scheduler import StepPlan


class DecodeStretch(Protocol):
    """The price of consecutive decode steps."""

    def seconds(self, steps: int) -> float:
        """How long the first `steps` steps take together; each takes some time."""


class CostModel(Protocol):
    """What the engine must know to tell time."""

    def step_seconds(self, work: StepWork) -> float:
        """How long one step with this work takes."""

    def decode_stretch(self, sequences: int, context_tokens: int) -> DecodeStretch:
        """Pure decode steps of the same sequences, the first of which reads `context_tokens`."""


class Stretch:
    """A plan under way: `steps` steps from `start_s` on, of which `settled` have been accounted for."""

    __slots__ = ("_price", "_step_s", "plan", "settled", "start_s", "steps")

    def __init__(self, plan: StepPlan, costs: CostModel, start_s: float) -> None:
        self.plan = plan
        self.start_s = start_s
        self.steps = plan.steps
        self.settled = 0
        self._price: DecodeStretch | None = None
        self._step_s = 0.0
        if plan.steps > 1:
            self._price = costs.decode_stretch(plan.decodes, plan.decode_context_tokens)
        else:
            self._step_s = costs.step_seconds(plan.work())

    @property
    def end_s(self) -> float:
        """When its last step ends."""
        return self.step_end_s(self.steps)

    def step_end_s(self, step: int) -> float:
        """When the `step`-th step ends, counted from 1; the start for 0."""
        return self.start_s + (self._step_s if self._price is None else self._price.seconds(step))

    def ended_steps(self, now_s: float) -> int:
        """How many of its steps have ended by now."""
        done, left = self.settled, self.steps
        if self.step_end_s(left) <= now_s:
            return left
        # Steps last about equally long, so the first guess is near; halving bounds the search all the same.
        while left - done > 1:
            begin_s, end_s = self.step_end_s(done), self.step_end_s(left)
            guess = done + int((left - done) * (now_s - begin_s) / (end_s - begin_s))
            guess = min(max(guess, done + 1), left - 1)
            if self.step_end_s(guess) > now_s:
                left = guess
            elif self.step_end_s(guess + 1) > now_s:
                return guess
            else:
                done = max(guess + 1, done)
        return done
