"""The KV memory of one engine: blocks, who uses them, and which of them can be used again.

Every block is in one of three places: never used, referenced, or in the LRU of released blocks. Whatever content it
has is found by hash until the block is given out again.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class BlockPool:
    """A fixed number of blocks with reference counts and a prefix cache."""

    __slots__ = ("_block_of", "_hash_of", "_references", "_released", "openings", "total_blocks")

    def __init__(self, total_blocks: int) -> None:
        self.total_blocks = total_blocks
        self.openings = 0
        """Grows when a refused `claim` might succeed now: a block was released, or content became known."""
        self._references: list[int] = []
        self._hash_of: list[int | None] = []
        self._block_of: dict[int, int] = {}
        self._released: OrderedDict[int, None] = OrderedDict()

    @property
    def available_blocks(self) -> int:
        """Blocks that can be given out."""
        return self.total_blocks - len(self._references) + len(self._released)

    @property
    def used_blocks(self) -> int:
        """Blocks that somebody references."""
        return len(self._references) - len(self._released)

    def match(self, hashes: Sequence[int], limit: int) -> list[int]:
        """The cached blocks of the longest known prefix of `hashes`, at most `limit`; references nothing."""
        blocks = []
        for block_hash in hashes[:limit]:
            block = self._block_of.get(block_hash)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def claim(self, cached: list[int], fresh: int) -> list[int] | None:
        """Reference all of `cached` and `fresh` more blocks, in this order; None, and no change, if they do not fit."""
        idle = sum(not self._references[block] for block in cached)
        if fresh > self.available_blocks - idle:
            return None
        for block in cached:
            self._reference(block)
        return cached + [self._take() for _ in range(fresh)]

    def take(self) -> int | None:
        """Reference one more block; None where all are referenced."""
        return self._take() if self.available_blocks else None

    def register(self, blocks: Iterable[int], hashes: Iterable[int]) -> None:
        """Make referenced blocks findable by their content; of equal content only the newest copy is found."""
        for block, block_hash in zip(blocks, hashes, strict=True):
            older = self._block_of.get(block_hash)
            if older is not None:
                self._hash_of[older] = None
            self._hash_of[block] = block_hash
            self._block_of[block_hash] = block
        self.openings += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one reference of each block; of those that become free the last is given out first."""
        references, released = self._references, self._released
        for block in reversed(blocks):
            references[block] -= 1
            if not references[block]:
                released[block] = None
        self.openings += 1

    def _reference(self, block: int) -> None:
        if not self._references[block]:
            del self._released[block]
        self._references[block] += 1

    def _take(self) -> int:
        block = len(self._references)
        if block < self.total_blocks:
            self._references.append(1)
            self._hash_of.append(None)
            return block
        block, _ = self._released.popitem(last=False)
        self._forget(block)
        self._references[block] = 1
        return block

    def _forget(self, block: int) -> None:
        block_hash = self._hash_of[block]
        if block_hash is not None:
            self._hash_of[block] = None
            del self._block_of[block_hash]
