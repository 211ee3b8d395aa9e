"""Running the batch: one stretch of steps after another, and the tokens that they make.

The rule of this module: it knows steps, not why a sequence came or where it goes. What somebody changes while a step
is under way is for the next plan; an engine that plans ahead has made that plan already, so there it is for the one
after.
"""

from collections.abc import Callable

from loadtest.engine.power import PrefillMeter
from loadtest.engine.scheduler import Scheduler, StepPlan
from loadtest.engine.sequence import LiveSequence, Phase
from loadtest.engine.stretch import CostModel, Stretch
from loadtest.engine.types import EngineEvent, TokenMade

Change = Callable[[LiveSequence], None]
NEVER_S = float("inf")


class Stepper:
    """The steps of one engine.

    `events` collects tokens, `done` the sequences that have made their last one, until the engine takes them.

    Attributes:
        may_start: True where a step could begin at once; never while one is under way.
        next_end_s: when there is next something to settle.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        costs: CostModel,
        *,
        tells_every_token: bool,
        plans_ahead: bool,
        meter: PrefillMeter | None = None,
    ) -> None:
        self.events: list[EngineEvent] = []
        self.done: list[LiveSequence] = []
        self.prompt_tokens = self.generated_tokens = self.steps = 0
        self.busy_s = 0.0
        self.prefill_s = 0.0
        """What prompt chunks added to the steps that have ended; stays 0 without a meter."""
        self._meter = meter
        self._adding_s = 0.0
        """What they add to the step under way."""
        self._scheduler = scheduler
        self._batch = scheduler.decoding
        self._costs = costs
        self._tells_every_token = tells_every_token
        self._plans_ahead = plans_ahead
        self._stretch: Stretch | None = None
        self.may_start = False
        self.next_end_s = NEVER_S
        self._settled_s = -1.0
        """Up to when steps were accounted for last: many ask at one instant, and steps take some time."""
        self._before_plan: list[tuple[Change, LiveSequence]] = []
        self._after_plan: list[tuple[Change, LiveSequence]] = []

    def start(self, now_s: float) -> list[LiveSequence]:
        """Begin the next stretch, if there is work and none is under way; who got blocks for a transfer."""
        if not self.may_start:
            return []
        self.may_start = False
        plan = self._plan()
        if plan.decodes or plan.chunks:
            self.may_start = False
            self._stretch = stretch = Stretch(plan, self._costs, now_s)
            if self._meter is not None and plan.chunks:
                step_s = stretch.end_s - now_s
                self._adding_s = self._meter.added_s(step_s, plan.decodes, plan.decode_context_tokens)
            self._look(stretch)
        return plan.reserved

    def used_s(self, now_s: float) -> tuple[float, float]:
        """The time of all steps, and what prompt chunks added to it; the step under way counts as far as it is."""
        stretch = self._stretch
        if stretch is None:
            return self.busy_s, self.prefill_s
        passed_s = now_s - stretch.start_s
        if not self._adding_s:
            return self.busy_s + passed_s, self.prefill_s
        passed_share = passed_s / (stretch.end_s - stretch.start_s)
        return self.busy_s + passed_s, self.prefill_s + self._adding_s * passed_share

    def change(self, change: Change, sequence: LiveSequence, now_s: float) -> None:
        """Change the queue, the batch or the cache for the next plan that is open to it; no stretch outlasts that."""
        self.settle(now_s)
        stretch = self._stretch
        if not self._plans_ahead or (stretch is None and not self._scheduler.running):
            self._cut(now_s)
            change(sequence)
        elif stretch is not None and self._end_after_next_step(stretch, now_s):
            self._before_plan.append((change, sequence))
        else:
            self._cut(now_s)
            self._after_plan.append((change, sequence))
        self.may_start = self._stretch is None

    def _end_after_next_step(self, stretch: Stretch, now_s: float) -> bool:
        """Where the step planned ahead is one more of the same, let the stretch end with it; False where it is not."""
        steps = stretch.begun_steps(now_s) + 1
        if steps > stretch.steps:
            return False
        stretch.cut(steps)
        self._look(stretch)
        return True

    def cut(self, now_s: float) -> None:
        """Let no step begin any more before the next plan."""
        self.settle(now_s)
        self._cut(now_s)

    def _cut(self, now_s: float) -> None:
        """The same, once the steps that have ended are accounted for."""
        stretch = self._stretch
        if stretch is None or stretch.steps == 1:
            return
        begun = stretch.begun_steps(now_s)
        if begun < stretch.steps:
            stretch.cut(begun)
            self._look(stretch)
            # They were for after the step planned ahead, which does not come: its plan is made anew, without them.
            self._after_plan[:0] = self._before_plan
            self._before_plan.clear()
        if begun == stretch.settled:
            self._end(stretch)

    def settle(self, now_s: float) -> None:
        """Account for the steps that have ended by now."""
        stretch = self._stretch
        if stretch is None or now_s == self._settled_s:
            return
        self._settled_s = now_s
        ended = stretch.ended_steps(now_s)
        if ended == stretch.settled:
            return
        batch = self._batch
        while stretch.settled < ended:
            tells = self._tells_every_token or (stretch.settled == 0 and stretch.plan.beginners)
            steps = 1 if tells else ended - stretch.settled
            batch.make(steps)
            stretch.settle(steps)
            self.steps += steps
            self.generated_tokens += steps * len(batch.members)
            if tells:
                self._tell(stretch)
        if ended == stretch.steps:
            self._end(stretch)
        else:
            batch.begin(1)
            self._look(stretch)

    def _look(self, stretch: Stretch) -> None:
        every = self._tells_every_token
        self.next_end_s = stretch.step_end_s(stretch.settled + 1) if every else stretch.tell_s

    def _plan(self) -> StepPlan:
        if self._before_plan:
            _make(self._before_plan)
        plan = self._scheduler.plan()
        while plan.preempted and not plan.decodes and not plan.chunks:
            plan = self._scheduler.plan()
        if not self._after_plan:
            return plan
        _make(self._after_plan)
        if not plan.decodes and not plan.chunks and not plan.reserved:
            return self._scheduler.plan()
        plan.steps = 1
        self.may_start = True
        return plan

    def _tell(self, stretch: Stretch) -> None:
        """The tokens of the step that was settled last."""
        at_s = stretch.step_end_s(stretch.settled)
        beginners = stretch.plan.beginners if stretch.settled == 1 else ()
        for sequence in beginners:
            self.prompt_tokens += sequence.request.prompt_tokens
        for sequence in self._batch.members if self._tells_every_token else beginners:
            if sequence.phase is Phase.DECODING:
                index = self._batch.generated_tokens(sequence) - 1
                self.events.append(TokenMade(at_s=at_s, request_id=sequence.request.request_id, index=index))

    def _end(self, stretch: Stretch) -> None:
        self._stretch = None
        self.next_end_s = NEVER_S
        self.may_start = True
        self.busy_s += stretch.end_s - stretch.start_s
        if self._adding_s:
            self.prefill_s += self._adding_s
            self._adding_s = 0.0
        self._batch.pop_done(self.done)
        for sequence, new in stretch.plan.chunks:
            if sequence.phase is Phase.PREFILLING:
                sequence.computed_tokens += new
                if sequence.computed_tokens == sequence.known_tokens:
                    self._end_prefill(sequence, stretch.end_s)

    def _end_prefill(self, sequence: LiveSequence, now_s: float) -> None:
        """The last chunk's step makes a token too."""
        index = sequence.generated_tokens
        if not index:
            self.prompt_tokens += sequence.request.prompt_tokens
        if not index or self._tells_every_token:
            self.events.append(TokenMade(at_s=now_s, request_id=sequence.request.request_id, index=index))
        sequence.generated_tokens += 1
        sequence.known_tokens += 1
        self.generated_tokens += 1
        self._scheduler.end_prefill(sequence)
        if sequence.left_tokens:
            self._batch.join(sequence)
        else:
            self.done.append(sequence)


def _make(changes: list[tuple[Change, LiveSequence]]) -> None:
    """Make all changes, and forget them."""
    for change, sequence in changes:
        change(sequence)
    changes.clear()
