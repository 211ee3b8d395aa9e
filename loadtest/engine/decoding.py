"""The sequences of a batch that decode: what all of them add up to, at any step, without visiting each.

A step adds one token to every sequence, so a sequence's progress is the *clock* (steps done) less the clock at which
it joined. When one ends, how much the batch reads and when it needs another block follow from sums.
"""

from heapq import heappop, heappush

from loadtest.engine.kv_cache import KvCache
from loadtest.engine.sequence import LiveSequence, Phase


class DecodeBatch:
    """Sequences that decode together, and the blocks that their new tokens take."""

    __slots__ = (
        "_block_tokens",
        "_cache",
        "_due",
        "_ends",
        "_paid_steps",
        "_serial",
        "clock",
        "context_tokens",
        "members",
    )

    def __init__(self, cache: KvCache, block_tokens: int) -> None:
        self.clock = 0
        """Decode steps done."""
        self.context_tokens = 0
        """Tokens that the next step reads."""
        self.members: dict[LiveSequence, None] = {}
        """In the order in which they joined; for others to read."""
        self._cache = cache
        self._block_tokens = block_tokens
        self._ends: list[tuple[int, int, LiveSequence]] = []
        self._serial = 0
        self._due = [0] * block_tokens
        """How many members take a block in the steps of each residue of the clock."""
        self._paid_steps = 0
        """Steps from the clock on whose blocks have been taken: one while a step is under way, else none."""

    def generated_tokens(self, sequence: LiveSequence) -> int:
        """Output tokens that a member has made."""
        return sequence.generated_tokens + self.clock - sequence.joined_clock

    def join(self, sequence: LiveSequence) -> None:
        """Take in a sequence that has one token to compute.

        Before a step begins it has no room for that token if a block starts there; once the step has begun, it has.
        """
        sequence.phase = Phase.DECODING
        sequence.joined_clock = self.clock
        self.members[sequence] = None
        self.context_tokens += sequence.known_tokens
        self._serial += 1
        sequence.end_clock = self.clock + sequence.left_tokens
        heappush(self._ends, (sequence.end_clock, self._serial, sequence))
        self._due[self._residue(sequence)] += 1

    def leave(self, sequence: LiveSequence) -> None:
        """Let a member go with its counts as of now; a step under way has given it its block already."""
        done = self.clock - sequence.joined_clock
        self._due[self._residue(sequence)] -= 1
        sequence.known_tokens += done
        sequence.generated_tokens += done
        sequence.computed_tokens = sequence.known_tokens - 1
        written = sequence.known_tokens - 1 + self._paid_steps
        sequence.held_blocks = max(sequence.held_blocks, -(-written // self._block_tokens))
        self.context_tokens -= sequence.known_tokens
        sequence.end_clock = None
        del self.members[sequence]

    def steps_to_end(self) -> int:
        """How many steps until the first member has made its last token; there must be a member."""
        ends = self._ends
        while ends[0][2].end_clock != ends[0][0]:
            heappop(ends)
        return ends[0][0] - self.clock

    def pop_done(self, into: list[LiveSequence]) -> None:
        """Let those members go that have made their last token."""
        ends, clock = self._ends, self.clock
        while ends and ends[0][0] <= clock:
            end_clock, _, sequence = heappop(ends)
            # Whoever left before its end has none, or another one if it came back.
            if sequence.end_clock == end_clock:
                self.leave(sequence)
                into.append(sequence)

    def blocks_due(self) -> int:
        """Blocks that the next step takes."""
        return self._due[self.clock % self._block_tokens]

    def affordable_steps(self, at_most: int) -> int:
        """How many steps, up to `at_most`, can be made before the cache has no block for one."""
        available, members, size = self._cache.available_blocks, len(self.members), self._block_tokens
        steps = self._paid_steps
        cycles = (at_most - steps) // size
        if members * (cycles + 1) <= available:
            return at_most
        cycles = min(cycles, available // members)
        steps += cycles * size
        available -= cycles * members
        while steps < at_most and (due := self._blocks(steps, steps + 1)) <= available:
            available -= due
            steps += 1
        return steps

    def begin(self, steps: int) -> None:
        """Take the blocks of all steps up to the `steps`-th from the clock on, which must be had."""
        paid = self._paid_steps
        if steps > paid:
            self._paid_steps = steps
            if self.members and (blocks := self._blocks(paid, steps)):
                taken = self._cache.take(blocks)
                assert taken, "a stretch is no longer than its blocks last"

    def make(self, steps: int) -> None:
        """Make some steps; the blocks that they take must be had."""
        if steps > self._paid_steps:
            self.begin(steps)
        self.clock += steps
        self.context_tokens += steps * len(self.members)
        self._paid_steps -= steps

    def _residue(self, sequence: LiveSequence) -> int:
        """The clock's residue at which the sequence's next token begins a block."""
        return (1 - sequence.known_tokens + sequence.joined_clock) % self._block_tokens

    def _blocks(self, first: int, last: int) -> int:
        """Blocks that are taken from the `first`-th step from the clock on to before the `last`-th."""
        size, due = self._block_tokens, self._due
        begin = (self.clock + first) % size
        steps = last - first
        if steps == 1:
            return due[begin]
        cycles, rest = divmod(steps, size)
        end = begin + rest
        blocks = sum(due[begin:end]) if end <= size else sum(due[begin:]) + sum(due[: end - size])
        return cycles * len(self.members) + blocks
