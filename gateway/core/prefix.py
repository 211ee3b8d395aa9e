"""Which worker is thought to hold which leading blocks of text.

The rule of this module: a block hash maps to a bit mask of workers, every worker holds at most its bound, and the
oldest tail goes first. So whoever holds a block holds all that stand before it in its chain, and a look-up need not
walk the chain: how far somebody holds it is searched for, whatever the number of workers.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from gateway.core.types import WorkerId

Reach = list[tuple[int, int]]
"""(workers as a mask, leading blocks that exactly these hold)."""
ALL = -1
"""The mask of all workers."""


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

    def hit_blocks(self, chain: Sequence[int]) -> dict[WorkerId, int]:
        """How many leading blocks of the chain each worker holds; workers with none are left out."""
        return self.held(self.reach(chain), ALL)

    def reach(self, chain: Sequence[int]) -> Reach:
        """How far the chain is held: workers, as a mask, by how many leading blocks they hold, from few to many.

        A few blocks are looked at for each of these numbers, however long the chain is; `held` and `best` read the
        answer.
        """
        known, size = self._masks.get, len(chain)
        depth_by_bits: Reach = []
        alive = known(chain[0], 0) if size else 0
        depth = 0
        while alive:
            depth = self._end(chain, depth, alive)
            still = alive & known(chain[depth], 0) if depth < size else 0
            depth_by_bits.append((alive & ~still, depth))
            alive = still
        return depth_by_bits

    def _end(self, chain: Sequence[int], begin: int, bits: int) -> int:
        """The first place behind `begin` whose block not all of these workers hold; they all hold the one there."""
        known, size = self._masks.get, len(chain)
        last, step = begin, 1
        while (end := last + step) < size and known(chain[end], 0) & bits == bits:
            last, step = end, 2 * step
        end = min(end, size)
        while end - last > 1:
            middle = (last + end) // 2
            if known(chain[middle], 0) & bits == bits:
                last = middle
            else:
                end = middle
        return end

    def mask_of(self, worker_ids: Iterable[WorkerId]) -> int:
        """These workers as a mask, of use until one of them leaves."""
        holdings, mask = self._holdings, 0
        for worker_id in worker_ids:
            mask |= holdings[worker_id].bit
        return mask

    def held(self, reach: Reach, mask: int) -> dict[WorkerId, int]:
        """Leading blocks that each worker of a mask holds; workers with none are left out."""
        return {worker_id: depth for bits, depth in reach for worker_id in self.workers(bits & mask)}

    def best(self, reach: Reach, mask: int, most: int, turn: int) -> list[WorkerId]:
        """Of a mask's workers those that hold the most, at most so many; `turn` says which of many equal ones."""
        found: list[WorkerId] = []
        for bits, _ in reversed(reach):
            wanted = bits & mask
            if not wanted:
                continue
            # From some place on and then from the beginning: else the same few would always be first.
            begin = turn % wanted.bit_length()
            upper = wanted >> begin << begin
            for part in (upper, wanted ^ upper):
                found += islice(self.workers(part), most - len(found))
            if len(found) == most:
                break
        return found

    def workers(self, bits: int) -> Iterator[WorkerId]:
        """Those of a mask."""
        while bits:
            bit = bits & -bits
            yield self._worker_of[bit]
            bits ^= bit

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
