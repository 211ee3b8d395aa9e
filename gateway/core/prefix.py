"""Which worker is thought to hold which leading blocks of text.

The rule of this module: a block hash maps to a bit mask of workers, every worker holds at most its bound, and the
oldest tail goes first. A look-up walks one chain once, whatever the number of workers.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gateway.core.types import WorkerId


@dataclass(slots=True)
class _Holding:
    """One worker's blocks: `blocks` keeps them from the least to the most recently used."""

    bit: int
    max_blocks: int
    blocks: OrderedDict[int, None] = field(default_factory=OrderedDict)


class PrefixIndex:
    """A bounded prefix index over all workers, fed by what was dispatched where.

    Hashes are chained, so a block's hash says everything before it too; one mask per hash is enough.
    """

    def __init__(self) -> None:
        self._masks: dict[int, int] = {}
        self._holdings: dict[WorkerId, _Holding] = {}
        self._worker_of: dict[int, WorkerId] = {}
        self._free_bits: list[int] = []

    def __len__(self) -> int:
        """The number of (worker, block) pairs held."""
        return sum(len(holding.blocks) for holding in self._holdings.values())

    def add_worker(self, worker_id: WorkerId, max_blocks: int) -> None:
        """Make room for a worker, or change the bound of a known one."""
        holding = self._holdings.get(worker_id)
        if holding is None:
            bit = self._free_bits.pop() if self._free_bits else 1 << len(self._holdings)
            self._holdings[worker_id] = _Holding(bit=bit, max_blocks=max_blocks)
            self._worker_of[bit] = worker_id
            return
        holding.max_blocks = max_blocks
        self._trim(holding)

    def remove_worker(self, worker_id: WorkerId) -> None:
        """Forget a worker and all that it held."""
        holding = self._holdings.pop(worker_id, None)
        if holding is None:
            return
        holding.max_blocks = 0
        self._trim(holding)
        del self._worker_of[holding.bit]
        self._free_bits.append(holding.bit)

    def store(self, worker_id: WorkerId, chain: Sequence[int]) -> None:
        """Say that `worker_id` now holds the chain. At most its newest `max_blocks` leading blocks stay."""
        holding = self._holdings.get(worker_id)
        if holding is None:
            return
        blocks, masks, bit = holding.blocks, self._masks, holding.bit
        # From the tail to the head: the head ends as the most recently used, so that tails are evicted first.
        touch, known = blocks.move_to_end, masks.get
        for block in reversed(chain[: holding.max_blocks]):
            if block in blocks:
                touch(block)
            else:
                masks[block] = known(block, 0) | bit
                blocks[block] = None
        if len(blocks) > holding.max_blocks:
            self._trim(holding)

    def hit_blocks(self, chain: Iterable[int]) -> dict[WorkerId, int]:
        """How many leading blocks of the chain each worker holds; workers with none are left out."""
        known = self._masks.get
        alive = -1
        depth_by_bits: list[tuple[int, int]] = []
        depth = 0
        for block in chain:
            still = alive & known(block, 0)
            if still != alive:
                if depth:
                    depth_by_bits.append((alive & ~still, depth))
                alive = still
                if not alive:
                    break
            depth += 1
        if alive and depth:
            depth_by_bits.append((alive, depth))
        hits: dict[WorkerId, int] = {}
        for bits, depth in depth_by_bits:
            left = bits
            while left:
                bit = left & -left
                hits[self._worker_of[bit]] = depth
                left ^= bit
        return hits

    def _trim(self, holding: _Holding) -> None:
        blocks, masks, others = holding.blocks, self._masks, ~holding.bit
        take_out = blocks.popitem
        for _ in range(len(blocks) - holding.max_blocks):
            oldest, _ = take_out(last=False)
            left = masks[oldest] & others
            if left:
                masks[oldest] = left
            else:
                del masks[oldest]
