"""The KV memory of one engine: blocks, who uses them, and which of them can be used again.

Blocks are counted, not numbered. What matters of a block is its content and its place in the order of eviction, and
neighbours share both: a *run* is some consecutive blocks of one piece of text. Blocks that nobody else can ask for
(generated tokens, prompts without hashes) have no run until they are released.
"""

from collections import OrderedDict
from collections.abc import Sequence


class Run:
    """Consecutive blocks with known content; compared by identity.

    `piece_hash` names the piece of text that they lie in; None marks content that can not be asked for.
    """

    __slots__ = ("blocks", "piece_hash", "references")

    def __init__(self, piece_hash: int | None, blocks: int, references: int) -> None:
        self.piece_hash = piece_hash
        self.blocks = blocks
        self.references = references


class KvCache:
    """A fixed number of blocks with reference counts and a prefix cache.

    A prompt is given as the chained hashes of its pieces, each `piece_blocks` blocks long (the last may be shorter).
    Whatever was released is found again until its blocks are given out: of all that is released the oldest first,
    and of one release the tail first.
    """

    __slots__ = ("_released", "_released_blocks", "_runs", "_unused", "openings", "total_blocks")

    def __init__(self, total_blocks: int) -> None:
        self.total_blocks = total_blocks
        self.openings = 0
        """Grows when a refused `claim` might succeed now: a block was released, or content became known."""
        self._unused = total_blocks
        self._runs: dict[int, list[Run]] = {}
        """The runs of each known piece: its leading blocks, in order."""
        self._released: OrderedDict[Run, None] = OrderedDict()
        self._released_blocks = 0

    @property
    def available_blocks(self) -> int:
        """Blocks that can be given out."""
        return self._unused + self._released_blocks

    @property
    def used_blocks(self) -> int:
        """Blocks that somebody references."""
        return self.total_blocks - self._unused - self._released_blocks

    def match(self, hashes: Sequence[int], piece_blocks: int, wanted_blocks: int) -> tuple[list[Run], int]:
        """The longest known prefix of a prompt: its runs, and its length in blocks. References nothing.

        No run is among them that begins behind the wanted blocks; the last one may end behind them.
        """
        found: list[Run] = []
        known = self._runs
        blocks = 0
        for piece_hash in hashes:
            runs = known.get(piece_hash)
            if runs is None:
                break
            before = blocks
            for run in runs:
                if blocks >= wanted_blocks:
                    return found, blocks
                found.append(run)
                blocks += run.blocks
            if blocks - before < piece_blocks:
                break
        return found, blocks

    def claim(self, cached: Sequence[Run], fresh_blocks: int) -> bool:
        """Reference all of `cached` and give out `fresh_blocks` more; False, and no change, if they do not fit."""
        idle = 0
        for run in cached:
            if not run.references:
                idle += run.blocks
        if fresh_blocks > self._unused + self._released_blocks - idle:
            return False
        released = self._released
        for run in cached:
            if not run.references:
                del released[run]
            run.references += 1
        self._released_blocks -= idle
        self._give_out(fresh_blocks)
        return True

    def take(self, blocks: int) -> bool:
        """Give out some more blocks; False, and no change, where too few can be had."""
        if blocks > self._unused + self._released_blocks:
            return False
        self._give_out(blocks)
        return True

    def register(self, piece_hash: int, first_block: int, blocks: int) -> Run | None:
        """Make given-out blocks findable as those of a piece from `first_block` on; their run, referenced once.

        None where the piece's known blocks do not end just before them, because another copy is known or because what
        lies before them is known no more: they stay without a run. Of equal content the oldest copy is found, as in
        vLLM.
        """
        runs = self._runs.get(piece_hash)
        if first_block != (sum(run.blocks for run in runs) if runs else 0):
            return None
        run = Run(piece_hash, blocks, references=1)
        if runs is None:
            self._runs[piece_hash] = [run]
        else:
            runs.append(run)
        self.openings += 1
        return run

    def release(self, runs: Sequence[Run], nameless_blocks: int) -> None:
        """Drop one reference of each run and give back what has none; the last is given out first."""
        released = self._released
        freed = nameless_blocks
        if nameless_blocks:
            released[Run(None, nameless_blocks, references=0)] = None
        for run in reversed(runs):
            run.references -= 1
            if not run.references:
                released[run] = None
                freed += run.blocks
        self._released_blocks += freed
        self.openings += 1

    def _give_out(self, blocks: int) -> None:
        fresh = min(blocks, self._unused)
        self._unused -= fresh
        evicted = blocks - fresh
        self._released_blocks -= evicted
        while evicted:
            run = next(iter(self._released))
            if run.blocks > evicted:
                run.blocks -= evicted
                self._forget_from(run, keep=1)
                return
            evicted -= run.blocks
            del self._released[run]
            self._forget_from(run, keep=0)

    def _forget_from(self, run: Run, *, keep: int) -> None:
        """The end of a run is gone: nothing of its piece is found behind it, and without `keep` neither is the run."""
        piece_hash = run.piece_hash
        if piece_hash is None:
            return
        runs = self._runs[piece_hash]
        at = runs.index(run) + keep
        for gone in runs[at:]:
            gone.piece_hash = None
        del runs[at:]
        if not runs:
            del self._runs[piece_hash]
