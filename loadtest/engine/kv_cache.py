"""The KV memory of one engine: blocks, who uses them, and which of them can be used again.

Blocks are counted, not numbered. What matters of a block is its content and its place in the order of eviction, and
neighbours share both: a *segment* is a stretch of text whose blocks were used by the same sequences, and segments form
a tree in which a prompt is a path from the root. Whoever uses a segment uses all those above it. Blocks that nobody
else can ask for (generated tokens, prompts without hashes) belong to no segment until they are released.
"""

from collections import OrderedDict

import msgspec

Hashes = tuple[int, ...]


class Segment:
    """Consecutive pieces of text behind its parent's, and how many blocks of them are there; compared by identity.

    Only the last piece may be there in part: as far as it has been computed, or as far as it has not been evicted.
    """

    __slots__ = ("blocks", "children", "hashes", "parent", "piece_blocks", "references")

    def __init__(self, hashes: Hashes, piece_blocks: int, blocks: int, parent: "Segment | None") -> None:
        self.hashes = hashes
        self.piece_blocks = piece_blocks
        self.blocks = blocks
        self.parent = parent
        self.children: dict[int, Segment] = {}
        """By the hash of their first piece."""
        self.references = 0

    @property
    def ends_in_a_piece(self) -> bool:
        """True where its last piece is there in part."""
        return self.blocks % self.piece_blocks != 0


class Match(msgspec.Struct):
    """The longest known prefix of a prompt."""

    segment: Segment
    """The last one that matches whole; the root where none does."""
    blocks: int = 0
    """Length of the prefix, what matches of `next_segment` included."""
    next_segment: Segment | None = None
    """One below `segment` that matches in part."""
    next_pieces: int = 0
    """How far."""


class KvCache:
    """A fixed number of blocks with reference counts and a prefix cache.

    A prompt is given as the chained hashes of its pieces, each `piece_blocks` blocks long (the last may be shorter).
    Whatever was released is found again until its blocks are given out: of all that is released the oldest first,
    and of one release the tail first.
    """

    __slots__ = ("_released", "_released_blocks", "_unused", "openings", "root", "total_blocks")

    def __init__(self, total_blocks: int) -> None:
        self.total_blocks = total_blocks
        self.openings = 0
        """Grows when a refused `claim` might succeed now: a block was released, or content became known."""
        self.root = Segment((), 1, 0, None)
        """The empty prompt: what a sequence without known content uses."""
        self._unused = total_blocks
        self._released: OrderedDict[Segment, None] = OrderedDict()
        self._released_blocks = 0

    @property
    def available_blocks(self) -> int:
        """Blocks that can be given out."""
        return self._unused + self._released_blocks

    @property
    def used_blocks(self) -> int:
        """Blocks that somebody references."""
        return self.total_blocks - self._unused - self._released_blocks

    def match(self, hashes: Hashes, piece_blocks: int, wanted_blocks: int) -> Match:
        """The longest known prefix, up to the piece in which the last wanted block lies. References nothing."""
        found = Match(self.root)
        at = 0
        while found.blocks < wanted_blocks and at < len(hashes):
            child = found.segment.children.get(hashes[at])
            if child is None or child.piece_blocks != piece_blocks:
                break
            pieces = len(child.hashes)
            wanted = -(-(wanted_blocks - found.blocks) // piece_blocks)
            if pieces > wanted or child.hashes != hashes[at : at + pieces]:
                found.next_segment = child
                found.next_pieces = _common(child.hashes[:wanted], hashes[at : at + pieces])
                found.blocks += found.next_pieces * piece_blocks
                break
            found.segment = child
            found.blocks += child.blocks
            at += pieces
            if child.blocks % piece_blocks:
                break
        return found

    def claim(self, match: Match, fresh_blocks: int) -> Segment | None:
        """Reference what matched and give out `fresh_blocks` more; None, and no change, if they do not fit."""
        if fresh_blocks > self._unused + self._released_blocks - _idle_blocks(match):
            return None
        segment = match.segment
        if match.next_segment is not None:
            segment = _split(match.next_segment, match.next_pieces)
        above: Segment | None = segment
        while above is not None:
            if not above.references and above.blocks:
                self._released.pop(above, None)
                self._released_blocks -= above.blocks
            above.references += 1
            above = above.parent
        self._give_out(fresh_blocks)
        return segment

    def take(self, blocks: int) -> bool:
        """Give out some more blocks; False, and no change, where too few can be had."""
        if blocks > self._unused + self._released_blocks:
            return False
        self._give_out(blocks)
        return True

    def register(
        self, segment: Segment, hashes: Hashes, piece_blocks: int, done: int, full: int
    ) -> tuple[Segment, int]:
        """Make a prompt's blocks findable, from the `done`-th up to `full`, given out to the user of `segment`.

        Returns the user's last segment from now on, and up to which block the prompt lies in segments. Blocks of which
        another copy is known stay without one: of equal content the oldest copy is found, as in vLLM.
        """
        if done % piece_blocks != segment.blocks % piece_blocks:
            return segment, done
        if segment.ends_in_a_piece:
            more = min(piece_blocks - segment.blocks % piece_blocks, full - done)
            segment.blocks += more
            done += more
            self.openings += 1
        if done == full:
            return segment, done
        pieces = hashes[done // piece_blocks : -(-full // piece_blocks)]
        if pieces[0] in segment.children:
            return segment, done
        self.openings += 1
        if segment.references == 1 and segment.piece_blocks == piece_blocks and segment.blocks and not segment.children:
            segment.hashes += pieces
            segment.blocks += full - done
            return segment, full
        child = Segment(pieces, piece_blocks, full - done, segment)
        child.references = 1
        segment.children[pieces[0]] = child
        return child, full

    def release(self, segment: Segment, nameless_blocks: int) -> None:
        """Drop a user's reference and its blocks without a segment; of what is then free the tail goes first."""
        released = self._released
        freed = nameless_blocks
        if nameless_blocks:
            released[Segment((), 1, nameless_blocks, None)] = None
        above: Segment | None = segment
        while above is not None:
            above.references -= 1
            if not above.references and above.blocks:
                released[above] = None
                freed += above.blocks
            above = above.parent
        self._released_blocks += freed
        self.openings += 1

    def _give_out(self, blocks: int) -> None:
        if blocks <= self._unused:
            self._unused -= blocks
            return
        released = self._released
        evicted = blocks - self._unused
        self._unused = 0
        self._released_blocks -= evicted
        while evicted:
            segment = next(iter(released))
            left = segment.blocks - evicted
            if left > 0:
                segment.blocks = left
                pieces = -(-left // segment.piece_blocks)
                if pieces < len(segment.hashes):
                    segment.hashes = segment.hashes[:pieces]
                return
            evicted = -left
            del released[segment]
            # What was below it was released no later than it, and so is gone.
            if segment.parent is not None:
                del segment.parent.children[segment.hashes[0]]


def _common(one: Hashes, other: Hashes) -> int:
    """Length of the longest common prefix."""
    for at, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return at
    return min(len(one), len(other))


def _idle_blocks(match: Match) -> int:
    """Matched blocks that nobody references."""
    idle, segment = 0, match.segment
    below = match.next_segment
    if below is not None and not below.references:
        idle = match.next_pieces * below.piece_blocks
    while not segment.references and segment.parent is not None:
        idle += segment.blocks
        segment = segment.parent
    return idle


def _split(segment: Segment, pieces: int) -> Segment:
    """Make the first pieces of a segment one of their own, above the rest, for whoever uses both; the upper one."""
    blocks = pieces * segment.piece_blocks
    upper = Segment(segment.hashes[:pieces], segment.piece_blocks, blocks, segment.parent)
    upper.references = segment.references
    assert segment.parent is not None
    segment.parent.children[upper.hashes[0]] = upper
    segment.parent = upper
    segment.hashes = segment.hashes[pieces:]
    segment.blocks -= blocks
    upper.children[segment.hashes[0]] = segment
    return upper
