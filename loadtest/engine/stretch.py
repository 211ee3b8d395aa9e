"""Steps in a row that differ in nothing but how long their sequences have grown.

Their ends follow from where the stretch began, whenever one asks: a host that looks in between sees the same times as
one that does not.
"""

from typing import Protocol

from gateway.core.step_cost import StepWork
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

    __slots__ = (
        "_known_s",
        "_known_step",
        "_next_s",
        "_price",
        "_step_s",
        "end_s",
        "plan",
        "settled",
        "start_s",
        "steps",
        "tell_s",
    )

    def __init__(self, plan: StepPlan, costs: CostModel, start_s: float) -> None:
        self.plan = plan
        self.start_s = start_s
        self.steps = steps = plan.steps
        self.settled = 0
        self._price: DecodeStretch | None = None
        self._step_s = 0.0
        self._known_step, self._known_s = 0, start_s
        """A step whose end was worked out: mostly the one that is asked for next."""
        self._next_s: float | None = None
        """The end of the step after that one, where it was worked out too."""
        if steps > 1:
            self._price = price = costs.decode_stretch(plan.decodes, plan.decode_context_tokens)
            end_s = start_s + price.seconds(steps)
            tell_s = end_s
            if plan.beginners:
                self._next_s = tell_s = start_s + price.seconds(1)
        else:
            self._step_s = costs.step_seconds(plan.work())
            end_s = tell_s = start_s + self._step_s
        self.end_s = end_s
        """When its last step ends."""
        self.tell_s = tell_s
        """When it next has something to tell to a host that asks for first tokens only."""

    def cut(self, steps: int) -> None:
        """Let it end after so many steps."""
        self.steps = steps
        self.end_s = end_s = self.step_end_s(steps)
        if self.settled or end_s < self.tell_s:
            self.tell_s = end_s

    def settle(self, steps: int) -> None:
        """Account for some more steps."""
        self.settled += steps
        self.tell_s = self.end_s

    def step_end_s(self, step: int) -> float:
        """When the `step`-th step ends, counted from 1; the start for 0."""
        known = self._known_step
        if step == known:
            return self._known_s
        if step == known + 1 and self._next_s is not None:
            return self._next_s
        if self._price is not None:
            return self.start_s + self._price.seconds(step)
        return self.start_s + self._step_s * step

    def begun_steps(self, now_s: float) -> int:
        """How many have begun once those that ended are settled; at the very end of one the next has not."""
        settled = self.settled
        return settled + (settled == 0 or self.step_end_s(settled) < now_s)

    def ended_steps(self, now_s: float) -> int:
        """How many of its steps have ended by now."""
        if self.end_s <= now_s:
            return self.steps
        done, left, left_s = self.settled, self.steps, self.end_s
        if done + 1 == left:
            return done
        done_s = self.step_end_s(done)
        if done == self._known_step and self._next_s is not None:
            if now_s < self._next_s:
                return done
            done, done_s = done + 1, self._next_s
        # Steps last about equally long, so the first guess is near; halving bounds the search all the same.
        while left - done > 1 and done_s != now_s:
            guess = done + int((left - done) * (now_s - done_s) / (left_s - done_s))
            guess = min(max(guess, done + 1), left - 1)
            guess_s = self.step_end_s(guess)
            if guess_s > now_s:
                left, left_s = guess, guess_s
            else:
                done, done_s = guess, guess_s
        self._known_step, self._known_s = done, done_s
        self._next_s = left_s if left == done + 1 else None
        return done
