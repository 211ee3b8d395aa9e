"""One engine in virtual time: the state machine that hosts drive.

Steps are atomic. A step sees the queue as at its start, everything that it makes appears at its end, and with work
left the next step starts at that same instant. Time comes in as an argument and never goes back.
"""

from dataclasses import dataclass

from loadtest.engine.cost import CostTable, transfer_seconds
from loadtest.engine.kv_cache import BlockPool
from loadtest.engine.scheduler import Scheduler, StepPlan
from loadtest.engine.sequence import LiveSequence, Phase
from loadtest.engine.transfer import HeldKv, IncomingKv
from loadtest.engine.types import (
    EngineEvent,
    EngineRequest,
    EngineSnapshot,
    EngineSpec,
    FinishReason,
    RequestFinished,
    TokenMade,
    TransferFinished,
)


@dataclass(frozen=True, slots=True)
class _Step:
    plan: StepPlan
    duration_s: float
    end_s: float


@dataclass(slots=True)
class _Counts:
    prompt_tokens: int = 0
    generated_tokens: int = 0
    remote_kv_tokens: int = 0
    finished: int = 0
    steps: int = 0
    busy_s: float = 0.0


class Engine:
    """Continuous batching with chunked prefill over a finite, prefix-cached KV memory.

    Every method that takes `now_s` first lets everything happen that was due by then; what happened is kept for the
    next `advance`. Requests that are added at one instant can share the step that starts then, because only
    `advance`, or time that goes on, starts it.

    Raises:
        ValueError: `now_s` lies before an earlier one.
    """

    def __init__(self, spec: EngineSpec, costs: CostTable) -> None:
        self.spec = spec
        self._costs = costs
        self._pool = BlockPool(spec.total_blocks)
        self._scheduler = Scheduler(spec, self._pool)
        self._incoming = IncomingKv()
        self._held = HeldKv(spec.hold_lease_s)
        self._live: dict[str, LiveSequence] = {}
        self._step: _Step | None = None
        self._now_s = 0.0
        self._may_start = False
        self._events: list[EngineEvent] = []
        self._counts = _Counts()

    def add(self, request: EngineRequest, now_s: float) -> None:
        """Queue a request; one that can never fit is finished at once as rejected.

        Raises:
            ValueError: the request contradicts itself, or its id is still in the engine.
        """
        self._run_to(now_s)
        _check(request, self.spec)
        if request.request_id in self._live:
            raise ValueError(f"request {request.request_id!r} is still in the engine")
        sequence = LiveSequence.of(request)
        if _most_blocks(request, self.spec) > self.spec.total_blocks:
            self._tell_finished(sequence, FinishReason.REJECTED)
            return
        self._live[request.request_id] = sequence
        self._scheduler.waiting.append(sequence)
        self._may_start = True

    def cancel(self, request_id: str, now_s: float) -> bool:
        """Take a request out, whatever it is doing, and free its blocks; False where the engine has none such.

        A step under way takes no less time for it.
        """
        self._run_to(now_s)
        sequence = self._live.get(request_id)
        if sequence is None:
            return False
        self._scheduler.remove(sequence)
        self._held.drop(request_id)
        self._forget(sequence)
        return True

    def release_held(self, request_id: str, now_s: float) -> bool:
        """Free the blocks that a finished prefill leg holds; False where it holds none (any more)."""
        self._run_to(now_s)
        sequence = self._held.drop(request_id)
        if sequence is None:
            return False
        self._forget(sequence)
        return True

    def next_event_at_s(self) -> float | None:
        """When `advance` next has something to do; None where it has nothing until a request is added.

        That is the end of the step, transfer or lease that ends first. It is the present where a step can start or
        something has happened that no `advance` has told.
        """
        if self._events or (self._may_start and self._step is None):
            return self._now_s
        return self._next_end_s()

    def advance(self, now_s: float) -> list[EngineEvent]:
        """Let time go on; everything that happened up to and including `now_s`, in order of time."""
        self._run_to(now_s)
        self._start_step()
        events, self._events = self._events, []
        return events

    def snapshot(self) -> EngineSnapshot:
        """Gauges and counters at the last `now_s`."""
        scheduler, counts = self._scheduler, self._counts
        return EngineSnapshot(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting) + len(scheduler.ready) + len(self._incoming),
            kv_used_ratio=self._pool.used_blocks / self._pool.total_blocks,
            prefix_queried_tokens=scheduler.prefix_queried_tokens,
            prefix_hit_tokens=scheduler.prefix_hit_tokens,
            remote_kv_tokens=counts.remote_kv_tokens,
            preemptions=scheduler.preemptions,
            prompt_tokens=counts.prompt_tokens,
            generated_tokens=counts.generated_tokens,
            finished=counts.finished,
            steps=counts.steps,
            busy_s=counts.busy_s,
        )

    def _run_to(self, now_s: float) -> None:
        if now_s < self._now_s:
            raise ValueError(f"time goes back from {self._now_s} to {now_s}")
        while True:
            if self._now_s < now_s:
                self._start_step()
            end_s = self._next_end_s()
            if end_s is None or end_s > now_s:
                break
            self._now_s = end_s
            self._settle()
        self._now_s = now_s

    def _next_end_s(self) -> float | None:
        step = self._step
        ends = (None if step is None else step.end_s, self._incoming.next_end_s(), self._held.next_end_s())
        return min((end for end in ends if end is not None), default=None)

    def _settle(self) -> None:
        """Let everything end that ends now."""
        if self._step is not None and self._step.end_s <= self._now_s:
            self._finish_step(self._step)
        for sequence in self._incoming.pop_due(self._now_s):
            self._receive(sequence)
        for sequence in self._held.pop_due(self._now_s):
            self._forget(sequence)

    def _start_step(self) -> None:
        if self._step is not None or not self._may_start:
            return
        self._may_start = False
        plan = self._scheduler.plan()
        while plan.is_empty and plan.preempted:
            plan = self._scheduler.plan()
        for sequence in plan.reserved:
            wait_s = transfer_seconds(sequence.missing_remote_tokens, self.spec)
            self._incoming.start(sequence, self._now_s + wait_s)
        if not plan.is_empty:
            duration_s = self._costs.step_seconds(plan.work())
            self._step = _Step(plan, duration_s, self._now_s + duration_s)

    def _finish_step(self, step: _Step) -> None:
        self._step = None
        self._may_start = True
        self._counts.steps += 1
        self._counts.busy_s += step.duration_s
        for sequence in step.plan.decodes:
            if sequence.phase is Phase.RUNNING:
                sequence.computed_tokens += 1
                self._make_token(sequence)
        for sequence, new in step.plan.chunks:
            if sequence.phase is Phase.RUNNING:
                sequence.computed_tokens += new
                if sequence.computed_tokens == sequence.known_tokens:
                    self._make_token(sequence)

    def _make_token(self, sequence: LiveSequence) -> None:
        index = sequence.generated_tokens
        if not index:
            self._counts.prompt_tokens += sequence.request.prompt_tokens
        sequence.generated_tokens = index + 1
        sequence.known_tokens += 1
        self._counts.generated_tokens += 1
        self._events.append(TokenMade(at_s=self._now_s, request_id=sequence.request.request_id, index=index))
        if sequence.is_done:
            self._finish(sequence)

    def _finish(self, sequence: LiveSequence) -> None:
        self._scheduler.remove(sequence)
        self._counts.finished += 1
        self._tell_finished(sequence, FinishReason.LENGTH)
        if sequence.request.holds_kv:
            sequence.phase = Phase.HELD
            self._held.hold(sequence, self._now_s)
        else:
            self._forget(sequence)

    def _receive(self, sequence: LiveSequence) -> None:
        self._counts.remote_kv_tokens += sequence.missing_remote_tokens
        self._scheduler.note_arrived(sequence)
        self._may_start = True
        self._events.append(TransferFinished(at_s=self._now_s, request_id=sequence.request.request_id))

    def _forget(self, sequence: LiveSequence) -> None:
        self._pool.release(sequence.blocks)
        sequence.blocks = []
        sequence.phase = Phase.GONE
        del self._live[sequence.request.request_id]
        self._may_start = True

    def _tell_finished(self, sequence: LiveSequence, reason: FinishReason) -> None:
        self._events.append(
            RequestFinished(
                at_s=self._now_s,
                request_id=sequence.request.request_id,
                reason=reason,
                cached_tokens=sequence.cached_tokens or 0,
                preemptions=sequence.preemptions,
            )
        )


def _most_blocks(request: EngineRequest, spec: EngineSpec) -> int:
    """Blocks at the end: the last token's KV is never written."""
    return -(-(request.prompt_tokens + request.output_tokens - 1) // spec.block_tokens)


def _check(request: EngineRequest, spec: EngineSpec) -> None:
    if request.prompt_tokens < 1 or request.output_tokens < 1:
        raise ValueError("a request has at least one prompt token and one output token")
    if not 0 <= request.remote_tokens <= request.prompt_tokens:
        raise ValueError("remote tokens are prompt tokens")
    if len(request.block_hashes) > request.prompt_tokens // spec.block_tokens:
        raise ValueError("only full blocks of the prompt have a hash")
