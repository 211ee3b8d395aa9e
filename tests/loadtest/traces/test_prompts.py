import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.traces.prompts import BYTES_PER_TOKEN, WORDS, PromptBuilder
from loadtest.traces.types import TraceRequest

BLOCK = 32
ids = st.lists(st.integers(0, 50), unique=True, max_size=6).map(tuple)


def request(*, index: int = 0, tokens: int = 3 * BLOCK, hash_ids: tuple[int, ...] = ()) -> TraceRequest:
    return TraceRequest(
        index=index, arrival_s=0.0, input_tokens=tokens, output_tokens=1, hash_ids=hash_ids, block_tokens=BLOCK
    )


def emulated_tokens(text: str) -> int:
    """As the emulated worker counts: four bytes are a token."""
    return -(-len(text.encode()) // 4)


@given(tokens=st.integers(1, 8 * BLOCK), hash_ids=ids)
def test_the_token_count_is_exact(tokens: int, hash_ids: tuple[int, ...]) -> None:
    assert emulated_tokens(PromptBuilder(1).text(request(tokens=tokens, hash_ids=hash_ids))) == tokens


@given(shared=ids, tails=st.tuples(st.integers(100, 150), st.integers(151, 200)), seed=st.integers(0, 9))
def test_equal_leading_ids_give_equal_leading_text(shared: tuple[int, ...], tails: tuple[int, int], seed: int) -> None:
    prompts = PromptBuilder(seed)
    tokens = (len(shared) + 1) * BLOCK
    one, other = (prompts.text(request(tokens=tokens, hash_ids=(*shared, tail))) for tail in tails)
    prefix = len(shared) * BLOCK * BYTES_PER_TOKEN
    assert one[:prefix] == other[:prefix]
    assert one[prefix:] != other[prefix:]


@given(tokens=st.integers(1, 3 * BLOCK))
def test_a_partial_last_block_is_the_start_of_the_whole_one(tokens: int) -> None:
    prompts = PromptBuilder(1)
    whole = prompts.text(request(hash_ids=(1, 2, 3)))
    assert whole.startswith(prompts.text(request(tokens=tokens, hash_ids=(1, 2, 3))))


def test_prompts_without_ids_are_all_different() -> None:
    prompts = PromptBuilder(1)
    assert len({prompts.text(request(index=index))[:40] for index in range(200)}) == 200


def test_what_ids_do_not_cover_is_the_requests_own() -> None:
    prompts = PromptBuilder(1)
    one, other = (prompts.text(request(index=index, hash_ids=(7,))) for index in (0, 1))
    cut = BLOCK * BYTES_PER_TOKEN
    assert one[:cut] == other[:cut]
    assert one[cut:] != other[cut:]


def test_the_seed_changes_all_text_and_nothing_else_does() -> None:
    asked = request(hash_ids=(1, 2, 3))
    assert PromptBuilder(1).text(asked) == PromptBuilder(1).text(asked)
    assert PromptBuilder(1).text(asked)[:20] != PromptBuilder(2).text(asked)[:20]


@pytest.mark.parametrize("cached_blocks", [0, 1, 2, 100])
def test_the_cache_is_bounded_and_changes_no_text(cached_blocks: int) -> None:
    prompts = PromptBuilder(1, cached_blocks=cached_blocks)
    for first in (1, 2, 3, 1, 2, 3):
        asked = request(hash_ids=(first, first + 10, first + 20))
        assert prompts.text(asked) == PromptBuilder(1).text(asked)
        assert len(prompts._texts) <= cached_blocks


def test_the_block_used_longest_ago_leaves_the_cache() -> None:
    prompts = PromptBuilder(1, cached_blocks=2)
    for block in (1, 2, 1, 3):
        prompts.text(request(tokens=BLOCK, hash_ids=(block,)))
    assert [block for block, _ in prompts._texts] == [1, 3]


def test_words_are_256_different_ones_of_three_letters() -> None:
    words = WORDS.split()
    assert len(set(words)) == 256
    assert all(re.fullmatch("[a-z]{3}", word) for word in words)
    assert len(WORDS) == 256 * BYTES_PER_TOKEN
