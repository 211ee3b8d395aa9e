from loadtest.engine.kv_cache import KvCache, Run


def stored(cache: KvCache, *hashes: int, piece_blocks: int = 1) -> list[Run]:
    """Pieces with this content, still referenced."""
    assert cache.take(len(hashes) * piece_blocks)
    runs = [cache.register(piece_hash, 0, piece_blocks) for piece_hash in hashes]
    assert None not in runs
    return [run for run in runs if run is not None]


def known(cache: KvCache, *hashes: int, piece_blocks: int = 1) -> int:
    """How many leading blocks of these pieces are found."""
    return cache.match(hashes, piece_blocks, 1000)[1]


def test_only_whole_leading_blocks_are_found() -> None:
    cache = KvCache(8)
    first, second, _ = stored(cache, 1, 2, 3)
    assert cache.match((1, 2, 9, 3), 1, 4) == ([first, second], 2)
    assert cache.match((9, 1), 1, 2) == ([], 0)
    assert cache.match((1, 2, 3), 1, 1) == ([first], 1)


def test_released_content_is_found_until_its_block_is_given_out_again() -> None:
    cache = KvCache(2)
    cache.release(stored(cache, 1, 2), 0)
    assert known(cache, 1, 2) == 2
    assert cache.used_blocks == 0
    assert cache.claim([], 2)
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
    cache.register(1, 0, 3)
    assert known(cache, 1, 2, piece_blocks=4) == 3
    cache.register(1, 3, 1)
    cache.register(2, 0, 2)
    assert known(cache, 1, 2, piece_blocks=4) == 6


def test_a_match_ends_with_the_run_in_which_the_last_wanted_block_lies() -> None:
    cache = KvCache(8)
    first, _ = stored(cache, 1, 2, piece_blocks=4)
    assert cache.match((1, 2), 4, 3) == ([first], 4)
    assert cache.match((1, 2), 4, 0) == ([], 0)


def test_what_lies_behind_a_lost_end_is_lost_too() -> None:
    cache = KvCache(4)
    cache.take(4)
    front, back = cache.register(1, 0, 2), cache.register(1, 2, 2)
    assert front is not None
    assert back is not None
    cache.release([front], 0)
    cache.take(1)
    assert known(cache, 1, piece_blocks=4) == 1
    cache.release([back], 0)
    cache.take(2)
    assert known(cache, 1, piece_blocks=4) == 0
    assert cache.available_blocks == 1


def test_use_moves_a_block_to_the_end_of_the_line() -> None:
    cache = KvCache(2)
    old, new = stored(cache, 1), stored(cache, 2)
    cache.release(old, 0)
    cache.release(new, 0)
    cache.claim(old, 0)
    cache.release(old, 0)
    cache.take(1)
    assert (known(cache, 1), known(cache, 2)) == (1, 0)


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
    shared = stored(cache, 1, 2)
    assert cache.claim(shared, 0)
    cache.release(shared, 0)
    assert cache.available_blocks == 1
    assert cache.take(1)
    assert not cache.take(1)
    assert known(cache, 1, 2) == 2


def test_a_claim_that_does_not_fit_changes_nothing() -> None:
    cache = KvCache(4)
    cached = stored(cache, 1, 2)
    cache.release(cached, 0)
    assert not cache.claim(cached, 3)
    assert (cache.used_blocks, cache.available_blocks) == (0, 4)
    assert cache.claim(cached, 2)
    assert (cache.used_blocks, cache.available_blocks) == (4, 0)


def test_of_equal_content_only_the_oldest_copy_is_found() -> None:
    cache = KvCache(3)
    older = stored(cache, 1)
    cache.take(1)
    assert cache.register(1, 0, 1) is None
    assert cache.match((1,), 1, 1) == (older, 1)
    cache.release([], 1)
    cache.release(older, 0)
    cache.take(2)
    assert known(cache, 1) == 1
    cache.take(1)
    assert known(cache, 1) == 0


def test_only_a_release_or_new_content_can_make_a_refused_claim_fit() -> None:
    cache = KvCache(2)
    before = cache.openings
    assert cache.claim([], 2)
    assert not cache.claim([], 1)
    assert cache.openings == before
    run = cache.register(1, 0, 1)
    assert run is not None
    assert cache.openings == before + 1
    cache.release([run], 1)
    assert cache.openings == before + 2
