from loadtest.engine.kv_cache import BlockPool


def stored(pool: BlockPool, *hashes: int) -> list[int]:
    """Blocks with this content, still referenced."""
    blocks = pool.claim([], len(hashes))
    assert blocks is not None
    pool.register(blocks, hashes)
    return blocks


def test_only_whole_leading_blocks_are_found() -> None:
    pool = BlockPool(8)
    first, second, _ = stored(pool, 1, 2, 3)
    assert pool.match((1, 2, 9, 3), limit=4) == [first, second]
    assert pool.match((2, 3), limit=2) != []
    assert pool.match((9, 1), limit=2) == []
    assert pool.match((1, 2, 3), limit=1) == [first]


def test_released_content_is_found_until_its_block_is_given_out_again() -> None:
    pool = BlockPool(2)
    blocks = stored(pool, 1, 2)
    pool.release(blocks)
    assert pool.match((1, 2), limit=2) == blocks
    assert pool.used_blocks == 0
    assert pool.claim([], 2) is not None
    assert pool.match((1,), limit=1) == []


def test_never_used_blocks_are_given_out_before_cached_ones() -> None:
    pool = BlockPool(3)
    pool.release(stored(pool, 1, 2))
    pool.take()
    assert len(pool.match((1, 2), limit=2)) == 2
    pool.take()
    assert len(pool.match((1, 2), limit=2)) == 1


def test_the_tail_of_what_was_released_first_is_evicted_first() -> None:
    pool = BlockPool(6)
    old, new = stored(pool, 1, 2, 3), stored(pool, 7, 8, 9)
    pool.release(old)
    pool.release(new)
    lengths = []
    for _ in range(6):
        pool.take()
        lengths.append((len(pool.match((1, 2, 3), limit=3)), len(pool.match((7, 8, 9), limit=3))))
    assert lengths == [(2, 3), (1, 3), (0, 3), (0, 2), (0, 1), (0, 0)]


def test_use_moves_a_block_to_the_end_of_the_line() -> None:
    pool = BlockPool(2)
    (old,), (new,) = stored(pool, 1), stored(pool, 2)
    pool.release([old])
    pool.release([new])
    pool.release(pool.claim([old], 0) or [])
    pool.take()
    assert pool.match((1,), limit=1) == [old]
    assert pool.match((2,), limit=1) == []


def test_referenced_blocks_are_never_given_out() -> None:
    pool = BlockPool(3)
    shared = stored(pool, 1, 2)
    again = pool.claim(pool.match((1, 2), limit=2), 0)
    assert again == shared
    pool.release(shared)
    assert pool.available_blocks == 1
    pool.take()
    assert pool.take() is None
    assert pool.match((1, 2), limit=2) == shared


def test_a_claim_that_does_not_fit_changes_nothing() -> None:
    pool = BlockPool(4)
    cached = stored(pool, 1, 2)
    pool.release(cached)
    assert pool.claim(cached, 3) is None
    assert (pool.used_blocks, pool.available_blocks) == (0, 4)
    assert pool.claim(cached, 2) is not None
    assert (pool.used_blocks, pool.available_blocks) == (4, 0)


def test_of_equal_content_only_the_newest_copy_is_found() -> None:
    pool = BlockPool(3)
    (older,), (newer,) = stored(pool, 1), stored(pool, 1)
    assert pool.match((1,), limit=1) == [newer]
    pool.release([older])
    pool.release([newer])
    assert [pool.take(), pool.take()] == [2, older]
    assert pool.match((1,), limit=1) == [newer]


def test_content_is_gone_with_its_newest_copy() -> None:
    pool = BlockPool(2)
    (older,), (newer,) = stored(pool, 1), stored(pool, 1)
    pool.release([newer])
    pool.release([older])
    assert pool.take() == newer
    assert pool.match((1,), limit=1) == []
    assert pool.take() == older


def test_only_a_release_or_new_content_can_make_a_refused_claim_fit() -> None:
    pool = BlockPool(2)
    before = pool.openings
    blocks = pool.claim([], 2)
    assert blocks is not None
    assert pool.claim([], 1) is None
    assert pool.openings == before
    pool.register(blocks, (1, 2))
    assert pool.openings == before + 1
    pool.release(blocks)
    assert pool.openings == before + 2
