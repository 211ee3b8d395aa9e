from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.engine.kv_cache import KvCache, Segment


def stored(cache: KvCache, *hashes: int, piece_blocks: int = 1) -> Segment:
    """A prompt with this content, computed and still in use."""
    blocks = len(hashes) * piece_blocks
    match = cache.match(hashes, piece_blocks, blocks)
    segment = cache.claim(match, blocks - match.blocks)
    assert segment is not None
    if match.blocks < blocks:
        segment, named = cache.register(segment, hashes, piece_blocks, match.blocks, blocks)
        assert named == blocks
    return segment


def known(cache: KvCache, *hashes: int, piece_blocks: int = 1) -> int:
    """How many leading blocks of a prompt are found."""
    return cache.match(hashes, piece_blocks, 1000).blocks


def test_only_whole_leading_blocks_are_found() -> None:
    cache = KvCache(8)
    stored(cache, 1, 2, 3)
    assert known(cache, 1, 2, 9, 3) == 2
    assert known(cache, 9, 1) == 0
    assert cache.match((1, 2, 3), 1, 1).blocks == 1


def test_prompts_that_part_share_what_lies_before() -> None:
    cache = KvCache(8)
    one = stored(cache, 1, 2, 3)
    other = stored(cache, 1, 2, 7, 8)
    assert cache.used_blocks == 5
    cache.release(one, 0)
    assert cache.used_blocks == 4
    assert (known(cache, 1, 2, 3), known(cache, 1, 2, 7, 8)) == (3, 4)
    cache.release(other, 0)
    assert cache.used_blocks == 0


def test_released_content_is_found_until_its_block_is_given_out_again() -> None:
    cache = KvCache(2)
    cache.release(stored(cache, 1, 2), 0)
    assert known(cache, 1, 2) == 2
    assert cache.used_blocks == 0
    assert cache.take(2)
    assert known(cache, 1) == 0


def test_never_used_blocks_are_given_out_before_cached_ones() -> None:
    cache = KvCache(3)
    cache.release(stored(cache, 1, 2), 0)
    cache.take(1)
    assert known(cache, 1, 2) == 2
    cache.take(1)
    assert known(cache, 1, 2) == 1


def test_the_tail_of_what_was_released_first_is_evicted_first() -> None:
    cache = KvCache(6)
    old, new = stored(cache, 1, 2, 3), stored(cache, 7, 8, 9)
    cache.release(old, 0)
    cache.release(new, 0)
    lengths = []
    for _ in range(6):
        cache.take(1)
        lengths.append((known(cache, 1, 2, 3), known(cache, 7, 8, 9)))
    assert lengths == [(2, 3), (1, 3), (0, 3), (0, 2), (0, 1), (0, 0)]


def test_a_piece_of_several_blocks_is_evicted_from_its_tail() -> None:
    cache = KvCache(8)
    cache.release(stored(cache, 1, 2, piece_blocks=4), 0)
    lengths = []
    for _ in range(8):
        cache.take(1)
        lengths.append(known(cache, 1, 2, piece_blocks=4))
    assert lengths == [7, 6, 5, 4, 3, 2, 1, 0]


def test_a_piece_is_found_as_far_as_it_has_been_registered() -> None:
    cache = KvCache(8)
    cache.take(8)
    segment, named = cache.register(cache.root, (1, 2), 4, 0, 3)
    assert (named, known(cache, 1, 2, piece_blocks=4)) == (3, 3)
    assert segment is not cache.root
    segment, named = cache.register(segment, (1, 2), 4, 3, 6)
    assert (named, known(cache, 1, 2, piece_blocks=4)) == (6, 6)


def test_a_match_ends_with_the_piece_in_which_the_last_wanted_block_lies() -> None:
    cache = KvCache(12)
    stored(cache, 1, 2, 3, piece_blocks=4)
    assert [cache.match((1, 2, 3), 4, wanted).blocks for wanted in (0, 1, 4, 5, 12)] == [0, 4, 4, 8, 12]


def test_use_moves_content_to_the_end_of_the_line() -> None:
    cache = KvCache(2)
    old, new = stored(cache, 1), stored(cache, 2)
    cache.release(old, 0)
    cache.release(new, 0)
    cache.release(stored(cache, 1), 0)
    cache.take(1)
    assert (known(cache, 1), known(cache, 2)) == (1, 0)


def test_use_of_a_prefix_leaves_its_old_rest_where_it_was_in_the_line() -> None:
    cache = KvCache(4)
    cache.release(stored(cache, 1, 2), 0)
    cache.release(stored(cache, 7, 8), 0)
    cache.release(stored(cache, 1), 0)
    lengths = []
    for _ in range(4):
        cache.take(1)
        lengths.append((known(cache, 1, 2), known(cache, 7, 8)))
    assert lengths == [(1, 2), (1, 1), (1, 0), (0, 0)]


def test_blocks_without_content_take_their_turn_in_the_line() -> None:
    cache = KvCache(5)
    first, second = stored(cache, 1), stored(cache, 2)
    cache.take(3)
    cache.release(first, 3)
    cache.release(second, 0)
    lengths = []
    for _ in range(5):
        cache.take(1)
        lengths.append((known(cache, 1), known(cache, 2)))
    assert lengths == [(1, 1), (1, 1), (1, 1), (0, 1), (0, 0)]


def test_referenced_blocks_are_never_given_out() -> None:
    cache = KvCache(3)
    one, other = stored(cache, 1, 2), stored(cache, 1, 2)
    assert one is other
    cache.release(one, 0)
    assert cache.available_blocks == 1
    assert cache.take(1)
    assert not cache.take(1)
    assert known(cache, 1, 2) == 2


def test_a_claim_that_does_not_fit_changes_nothing() -> None:
    cache = KvCache(4)
    cache.release(stored(cache, 1, 2), 0)
    whole, part = cache.match((1, 2), 1, 2), cache.match((1, 9), 1, 2)
    assert cache.claim(whole, 3) is None
    assert cache.claim(part, 4) is None
    assert (cache.used_blocks, cache.available_blocks) == (0, 4)
    assert cache.claim(whole, 2) is not None
    assert (cache.used_blocks, cache.available_blocks) == (4, 0)


def test_of_equal_content_only_the_oldest_copy_is_found() -> None:
    cache = KvCache(3)
    older = stored(cache, 1)
    newer = cache.claim(cache.match((), 1, 0), 1)
    assert newer is not None
    assert cache.register(newer, (1,), 1, 0, 1) == (newer, 0)
    cache.release(newer, 1)
    cache.release(older, 0)
    cache.take(2)
    assert known(cache, 1) == 1
    cache.take(1)
    assert known(cache, 1) == 0


def test_only_the_first_to_go_on_from_a_shared_part_of_a_piece_makes_it_longer() -> None:
    cache = KvCache(16)
    cache.take(8)
    one, _ = cache.register(cache.root, (1, 2), 4, 0, 2)
    other = cache.claim(cache.match((1, 2), 4, 8), 6)
    assert other is one
    one, named = cache.register(one, (1, 2), 4, 2, 8)
    assert (named, known(cache, 1, 2, piece_blocks=4)) == (8, 8)
    assert cache.register(other, (1, 2), 4, 2, 8) == (other, 2)


def test_only_a_release_or_new_content_can_make_a_refused_claim_fit() -> None:
    cache = KvCache(2)
    before = cache.openings
    segment = cache.claim(cache.match((), 1, 0), 2)
    assert segment is not None
    assert cache.claim(cache.match((), 1, 0), 1) is None
    assert cache.openings == before
    segment, _ = cache.register(segment, (1,), 1, 0, 1)
    assert cache.openings == before + 1
    cache.release(segment, 1)
    assert cache.openings == before + 2


class NumberedBlocks:
    """The same memory kept block by block: each has a number, a content and a place in one line of released ones."""

    def __init__(self, total: int) -> None:
        self.fresh = total
        self.content: dict[int, tuple[int, int]] = {}
        self.block_of: dict[tuple[int, int], int] = {}
        self.users: dict[int, int] = {}
        self.line: list[int] = []
        self.numbers = count()

    def use(self, blocks: list[tuple[int, int]]) -> tuple[int, list[int]] | None:
        """Hits, and the blocks of a prompt that is computed at once; None where it does not fit."""
        hits = []
        for block in blocks:
            if block not in self.block_of:
                break
            hits.append(self.block_of[block])
        idle = sum(not self.users[number] for number in hits)
        if len(blocks) - len(hits) > self.fresh + len(self.line) - idle:
            return None
        for number in hits:
            if not self.users[number]:
                self.line.remove(number)
            self.users[number] += 1
        return len(hits), hits + [self._give_out(block) for block in blocks[len(hits) :]]

    def release(self, numbers: list[int]) -> None:
        for number in reversed(numbers):
            self.users[number] -= 1
            if not self.users[number]:
                self.line.append(number)

    def _give_out(self, block: tuple[int, int]) -> int:
        if self.fresh:
            self.fresh -= 1
        else:
            old = self.line.pop(0)
            self.block_of.pop(self.content.pop(old))
            del self.users[old]
        number = next(self.numbers)
        self.content[number], self.block_of[block], self.users[number] = block, number, 1
        return number


PROMPT = st.lists(st.integers(0, 1), min_size=1, max_size=5)


@settings(max_examples=300, deadline=None)
@given(
    total=st.integers(3, 30),
    piece=st.integers(1, 3),
    actions=st.lists(st.one_of(PROMPT, st.integers(0, 9)), max_size=40),
)
def test_segments_are_numbered_blocks_seen_from_further_away(
    total: int, piece: int, actions: list[list[int] | int]
) -> None:
    cache, blocks = KvCache(total), NumberedBlocks(total)
    live: list[tuple[Segment, list[int]]] = []
    for action in actions:
        if isinstance(action, int):
            if action < len(live):
                segment, numbers = live.pop(action)
                cache.release(segment, 0)
                blocks.release(numbers)
            continue
        hashes = tuple(int("1" + "".join(map(str, action[: end + 1]))) for end in range(len(action)))
        wanted = len(hashes) * piece
        expected = blocks.use([(name, place) for name in hashes for place in range(piece)])
        match = cache.match(hashes, piece, wanted)
        claimed = cache.claim(match, wanted - match.blocks)
        assert (claimed is None) == (expected is None)
        if claimed is not None and expected is not None:
            hits, numbers = expected
            assert match.blocks == hits
            if hits < wanted:
                claimed, named = cache.register(claimed, hashes, piece, hits, wanted)
                assert named == wanted
            live.append((claimed, numbers))
        assert cache.available_blocks == blocks.fresh + len(blocks.line)
