"""What the next step computes.

Running sequences come first, in order of admission; then the queue, first come first served, until the token budget,
the running slots or the blocks run out. The head of the queue blocks those behind it. Sequences whose remote KV has
arrived go before the queue, for they hold blocks that the head may be waiting for.
"""

from collections import deque
from dataclasses import dataclass, field

from loadtest.engine.cost import StepWork
from loadtest.engine.kv_cache import BlockPool
from loadtest.engine.sequence import LiveSequence, Phase
from loadtest.engine.types import EngineSpec


@dataclass(slots=True, eq=False)
class StepPlan:
    """One step's work by sequence, and what planning it changed."""

    decodes: list[LiveSequence] = field(default_factory=list)
    """Sequences that compute their one missing token and so make the next."""
    chunks: list[tuple[LiveSequence, int]] = field(default_factory=list)
    """Sequences that compute more than one token, and how many."""
    decode_context_tokens: int = 0
    reserved: list[LiveSequence] = field(default_factory=list)
    """Decode legs that got their blocks: their transfers begin now."""
    preempted: int = 0

    @property
    def is_empty(self) -> bool:
        """True where there is nothing to compute."""
        return not self.decodes and not self.chunks

    def work(self) -> StepWork:
        """The step's work as the cost table sees it; before any progress is noted."""
        return StepWork(
            prefill=tuple((new, sequence.computed_tokens) for sequence, new in self.chunks),
            decode_sequences=len(self.decodes),
            decode_context_tokens=self.decode_context_tokens,
        )


class Scheduler:
    """The queue, the running batch and the rules of admission and preemption."""

    def __init__(self, spec: EngineSpec, pool: BlockPool) -> None:
        self.running: list[LiveSequence] = []
        self.waiting: deque[LiveSequence] = deque()
        self.ready: deque[LiveSequence] = deque()
        self.prefix_queried_tokens = 0
        self.prefix_hit_tokens = 0
        self.preemptions = 0
        self._spec = spec
        self._pool = pool
        self._refused: tuple[LiveSequence, int] | None = None

    def plan(self) -> StepPlan:
        """Choose the next step's work, giving out blocks and slots; a step that preempts admits nothing."""
        plan = StepPlan()
        budget = self._continue_running(plan)
        if not plan.preempted:
            self._admit(plan, budget)
        return plan

    def remove(self, sequence: LiveSequence) -> None:
        """Take a sequence out of whichever of the three lists has it."""
        match sequence.phase:
            case Phase.RUNNING:
                self.running.remove(sequence)
            case Phase.WAITING:
                self.waiting.remove(sequence)
            case Phase.READY:
                self.ready.remove(sequence)

    def note_arrived(self, sequence: LiveSequence) -> None:
        """A decode leg's KV is complete: all but its last token count as computed, and others may use its blocks."""
        present = max(sequence.computed_tokens, sequence.remote_tokens)
        self._register(sequence, present)
        sequence.computed_tokens = min(present, sequence.known_tokens - 1)
        sequence.remote_tokens = 0
        sequence.phase = Phase.READY
        self.ready.append(sequence)

    def _continue_running(self, plan: StepPlan) -> int:
        budget = self._spec.max_batched_tokens
        running = self.running
        at = 0
        while at < len(running) and budget:
            sequence = running[at]
            if sequence.known_tokens <= sequence.block_room_tokens or self._grow(sequence, plan):
                budget -= self._schedule(sequence, plan, budget)
                at += 1
        return budget

    def _admit(self, plan: StepPlan, budget: int) -> None:
        while budget and len(self.running) < self._spec.max_running and (self.ready or self.waiting):
            if self.ready:
                sequence = self.ready.popleft()
            elif self._place(self.waiting[0]):
                sequence = self.waiting.popleft()
            else:
                return
            if sequence.remote_tokens:
                sequence.phase = Phase.TRANSFERRING
                plan.reserved.append(sequence)
            else:
                sequence.phase = Phase.RUNNING
                self.running.append(sequence)
                budget -= self._schedule(sequence, plan, budget)

    def _schedule(self, sequence: LiveSequence, plan: StepPlan, budget: int) -> int:
        new = sequence.known_tokens - sequence.computed_tokens
        if new == 1:
            plan.decodes.append(sequence)
            plan.decode_context_tokens += sequence.known_tokens
        else:
            new = min(new, budget)
            plan.chunks.append((sequence, new))
        if sequence.computed_tokens < sequence.request.prompt_tokens:
            self._register(sequence, sequence.computed_tokens + new)
        return new

    def _place(self, sequence: LiveSequence) -> bool:
        """Give a waiting sequence blocks for all its known tokens, cached ones first; False where they do not fit."""
        if self._refused == (sequence, self._pool.openings):
            return False
        size = self._spec.block_tokens
        hashes = sequence.request.block_hashes
        cached = self._pool.match(hashes, (sequence.known_tokens - 1) // size)
        needed = -(-sequence.known_tokens // size)
        blocks = self._pool.claim(cached, needed - len(cached))
        if blocks is None:
            self._refused = (sequence, self._pool.openings)
            return False
        sequence.blocks = blocks
        sequence.block_room_tokens = needed * size
        sequence.registered_blocks = len(cached)
        sequence.computed_tokens = len(cached) * size
        self._count_hits(sequence)
        return True

    def _count_hits(self, sequence: LiveSequence) -> None:
        if sequence.cached_tokens is None:
            sequence.cached_tokens = sequence.computed_tokens
            self.prefix_queried_tokens += sequence.request.prompt_tokens
            self.prefix_hit_tokens += sequence.computed_tokens

    def _register(self, sequence: LiveSequence, present_tokens: int) -> None:
        """Make prompt blocks known that are full once `present_tokens` tokens are there."""
        hashes = sequence.request.block_hashes
        done, full = sequence.registered_blocks, min(present_tokens // self._spec.block_tokens, len(hashes))
        if full > done:
            self._pool.register(sequence.blocks[done:full], hashes[done:full])
            sequence.registered_blocks = full

    def _grow(self, sequence: LiveSequence, plan: StepPlan) -> bool:
        """One more block for a running sequence, preempting from the back; False where it fell itself."""
        while (block := self._pool.take()) is None:
            victim = self.running.pop()
            self._preempt(victim)
            plan.preempted += 1
            if victim is sequence:
                return False
        sequence.blocks.append(block)
        sequence.block_room_tokens += self._spec.block_tokens
        return True

    def _preempt(self, victim: LiveSequence) -> None:
        self._pool.release(victim.blocks)
        victim.blocks = []
        victim.block_room_tokens = victim.computed_tokens = victim.registered_blocks = 0
        victim.preemptions += 1
        victim.phase = Phase.WAITING
        self.preemptions += 1
        self.waiting.appendleft(victim)
