"""What the next step computes.

Running sequences come first, in order of admission; then the queue, first come first served, until the token budget,
the running slots or the blocks run out. The head of the queue blocks those behind it. Sequences whose remote KV has
arrived go before the queue, for they hold blocks that the head may be waiting for.

Every sequence that decodes is in every step: the token budget is at least as large as the batch can be.
"""

from collections import deque

from gateway.core.step_cost import StepWork
from loadtest.engine.decoding import DecodeBatch
from loadtest.engine.kv_cache import KvCache
from loadtest.engine.sequence import LiveSequence, Phase
from loadtest.engine.types import EngineSpec


class StepPlan:
    """The work of the next steps, and what planning it changed."""

    __slots__ = ("beginners", "chunks", "decode_context_tokens", "decodes", "preempted", "reserved", "steps")

    def __init__(self) -> None:
        self.decodes = 0
        """Sequences that compute their one missing token and so make the next."""
        self.decode_context_tokens = 0
        self.chunks: list[tuple[LiveSequence, int]] = []
        """Sequences that compute more than one token, and how many."""
        self.beginners: list[LiveSequence] = []
        """Of the decoding ones those that make their first token."""
        self.reserved: list[LiveSequence] = []
        """Decode legs that got their blocks: their transfers begin now."""
        self.preempted = 0
        self.steps = 1
        """How many steps in a row, unless something comes between, have this work; with chunks it is one."""

    def work(self) -> StepWork:
        """The first step's work as the cost table sees it; before any progress is noted."""
        return StepWork(
            prefill=tuple([(new, sequence.computed_tokens) for sequence, new in self.chunks]),
            decode_sequences=self.decodes,
            decode_context_tokens=self.decode_context_tokens,
        )


class Scheduler:
    """The queue, the running batch and the rules of admission and preemption."""

    def __init__(self, spec: EngineSpec, cache: KvCache) -> None:
        self.running: dict[LiveSequence, None] = {}
        """In order of admission."""
        self.decoding = DecodeBatch(cache, spec.block_tokens)
        self.waiting: deque[LiveSequence] = deque()
        self.ready: deque[LiveSequence] = deque()
        self.prefix_queried_tokens = 0
        self.prefix_hit_tokens = 0
        self.preemptions = 0
        self._spec = spec
        self._chunk_tokens = spec.long_prefill_tokens or spec.max_batched_tokens
        self._cache = cache
        self._prefilling: list[LiveSequence] = []
        self._refused: tuple[LiveSequence, int] | None = None

    @property
    def computing(self) -> int:
        """Sequences with work in the next step, or with a prompt under way."""
        return len(self._prefilling) + len(self.decoding.members)

    def plan(self) -> StepPlan:
        """Choose the next work, giving out blocks and slots; a step that preempts admits nothing."""
        plan, batch = StepPlan(), self.decoding
        if not (batch.members or self._prefilling or self.waiting or self.ready):
            return plan
        if batch.blocks_due():
            self._make_room(plan)
        batch.begin(1)
        budget = self._spec.max_batched_tokens - len(batch.members)
        for sequence in self._prefilling:
            budget -= self._compute(sequence, plan, budget)
        if not plan.preempted and (self.ready or self.waiting):
            self._admit(plan, budget)
        plan.decodes = len(batch.members)
        plan.decode_context_tokens = batch.context_tokens
        if plan.decodes and not plan.chunks and not plan.preempted:
            plan.steps = self._steady_steps()
        return plan

    def end_prefill(self, sequence: LiveSequence) -> None:
        """Its prompt is computed."""
        self._prefilling.remove(sequence)

    def remove(self, sequence: LiveSequence) -> None:
        """Take a sequence out of wherever it is."""
        match sequence.phase:
            case Phase.DECODING:
                self.decoding.leave(sequence)
            case Phase.PREFILLING:
                self._prefilling.remove(sequence)
            case Phase.WAITING:
                self.waiting.remove(sequence)
            case Phase.READY:
                self.ready.remove(sequence)

    def note_arrived(self, sequence: LiveSequence) -> None:
        """A decode leg's KV is complete: all but its last token count as computed, and others may use its blocks."""
        if sequence.phase is not Phase.ARRIVED:
            return
        present = max(sequence.computed_tokens, sequence.remote_tokens)
        self._register(sequence, present)
        sequence.computed_tokens = min(present, sequence.known_tokens - 1)
        sequence.remote_tokens = 0
        sequence.phase = Phase.READY
        self.ready.append(sequence)

    def leave_slot(self, sequence: LiveSequence) -> None:
        """It computes no more, but its blocks are held."""
        self.running.pop(sequence, None)

    def let_go(self, sequence: LiveSequence) -> None:
        """Its slot and its blocks are free."""
        self.running.pop(sequence, None)
        self._release(sequence)

    def _make_room(self, plan: StepPlan) -> None:
        """Preempt from the back until the next step's new blocks can be had."""
        while self.decoding.blocks_due() > self._cache.available_blocks:
            # One that has finished may still have its slot, where plans are made ahead.
            computing = (each for each in reversed(self.running) if each.phase in (Phase.DECODING, Phase.PREFILLING))
            self._preempt(next(computing))
            plan.preempted += 1

    def _admit(self, plan: StepPlan, budget: int) -> None:
        spec = self._spec
        while budget > 0 and len(self.running) < spec.max_running and (self.ready or self.waiting):
            if self.ready:
                sequence = self.ready.popleft()
            elif len(plan.reserved) < spec.reservations_per_step and self._place(self.waiting[0]):
                sequence = self.waiting.popleft()
            else:
                return
            if sequence.remote_tokens:
                sequence.phase = Phase.TRANSFERRING
                plan.reserved.append(sequence)
            else:
                self.running[sequence] = None
                budget -= self._start(sequence, plan, budget)

    def _start(self, sequence: LiveSequence, plan: StepPlan, budget: int) -> int:
        """An admitted sequence's first work here; how much of the budget it takes."""
        if sequence.known_tokens - sequence.computed_tokens > 1:
            sequence.phase = Phase.PREFILLING
            self._prefilling.append(sequence)
            return self._compute(sequence, plan, budget)
        self.decoding.join(sequence)
        self._register(sequence, sequence.known_tokens)
        if not sequence.generated_tokens:
            plan.beginners.append(sequence)
        return 1

    def _compute(self, sequence: LiveSequence, plan: StepPlan, budget: int) -> int:
        """Compute as much of a prompt as the budget has left, and a step computes of one prompt."""
        new = min(sequence.known_tokens - sequence.computed_tokens, budget, self._chunk_tokens)
        if new > 0:
            plan.chunks.append((sequence, new))
            self._register(sequence, sequence.computed_tokens + new)
        return new

    def _steady_steps(self) -> int:
        """How long the same sequences go on decoding, with nothing to tell and nothing to admit between."""
        if self.waiting and self._refused is None and len(self.running) < self._spec.max_running:
            return 1
        return max(1, self.decoding.affordable_steps(self.decoding.steps_to_end()))

    def _place(self, sequence: LiveSequence) -> bool:
        """Give a waiting sequence blocks for all its known tokens, cached ones first; False where they do not fit."""
        if self._refused == (sequence, self._cache.openings):
            return False
        size = self._spec.block_tokens
        request = sequence.request
        # Of a prompt that is known whole the last token is computed again: its logits are wanted.
        wanted = (sequence.known_tokens - 1) // size
        match = self._cache.match(request.block_hashes, request.hash_blocks, wanted)
        blocks = -(-sequence.known_tokens // size)
        segment = self._cache.claim(match, blocks - match.blocks)
        if segment is None:
            self._refused = (sequence, self._cache.openings)
            return False
        self._refused = None
        sequence.segment, sequence.held_blocks = segment, blocks
        sequence.named_blocks = sequence.registered_blocks = match.blocks
        sequence.computed_tokens = min(match.blocks, wanted) * size
        if sequence.cached_tokens is None:
            sequence.cached_tokens = sequence.computed_tokens
            self.prefix_queried_tokens += request.prompt_tokens
            self.prefix_hit_tokens += sequence.computed_tokens
        return True

    def _register(self, sequence: LiveSequence, present_tokens: int) -> None:
        """Make prompt blocks known that are full once `present_tokens` tokens are there."""
        done, findable = sequence.registered_blocks, sequence.findable_blocks
        if done == findable:
            return
        full = min(present_tokens // self._spec.block_tokens, findable)
        if full <= done:
            return
        sequence.registered_blocks = full
        # A prompt that some other sequence computes at the same time is known by one copy; the rest of this one is not.
        if sequence.named_blocks == done:
            request, segment = sequence.request, sequence.segment
            assert segment is not None
            sequence.segment, sequence.named_blocks = self._cache.register(
                segment, request.block_hashes, request.hash_blocks, done, full
            )

    def _preempt(self, victim: LiveSequence) -> None:
        self.remove(victim)
        self.let_go(victim)
        victim.computed_tokens = 0
        victim.preemptions += 1
        victim.phase = Phase.WAITING
        self.preemptions += 1
        self.waiting.appendleft(victim)

    def _release(self, sequence: LiveSequence) -> None:
        """Give back all its blocks."""
        if sequence.segment is not None:
            self._cache.release(sequence.segment, sequence.held_blocks - sequence.named_blocks)
        sequence.segment = None
        sequence.held_blocks = sequence.named_blocks = sequence.registered_blocks = 0
