import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.worker import tokenizer

TEXT = st.text(alphabet=st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=400)


@given(TEXT)
def test_a_token_is_four_bytes_and_the_last_may_be_shorter(text: str) -> None:
    data = text.encode()
    count = tokenizer.count_tokens(data)
    assert count == len(tokenizer.encode(data))
    assert 4 * (count - 1) < len(data) <= 4 * count or not data


@given(TEXT)
def test_text_comes_back_from_its_token_ids(text: str) -> None:
    ids = tokenizer.encode(text.encode())
    assert tokenizer.text_of(tokenizer.decode(ids)) == text


def test_ids_outside_the_vocabulary_are_refused() -> None:
    with pytest.raises(struct.error):
        tokenizer.decode([2**32])


@given(TEXT, TEXT, TEXT)
def test_equal_leading_blocks_have_equal_hashes_and_others_differ(stem: str, a: str, b: str) -> None:
    left, right = (stem + a).encode(), (stem + b).encode()
    hashes = [tokenizer.block_hashes(data, block_tokens=4, seed=9) for data in (left, right)]
    assert [len(each) for each in hashes] == [len(left) // 16, len(right) // 16]
    for place, (one, other) in enumerate(zip(*hashes, strict=False)):
        end = 16 * (place + 1)
        assert (one == other) == (left[:end] == right[:end])


def test_full_blocks_of_a_text_and_of_its_ids_have_the_same_hashes() -> None:
    data = b"the same prompt, seventeen or more bytes" * 5
    again = tokenizer.decode(tokenizer.encode(data))
    assert tokenizer.block_hashes(again, block_tokens=2, seed=1) == tokenizer.block_hashes(data, block_tokens=2, seed=1)


def test_models_and_cache_salts_do_not_share_blocks() -> None:
    seeds = {tokenizer.cache_seed(model, salt) for model in ("a", "b") for salt in (None, "x", "y")}
    assert len(seeds) == 6


@given(TEXT)
def test_template_adds_six_tokens_to_a_single_user_message(text: str) -> None:
    prompt = tokenizer.render_chat([("user", text)])
    added = tokenizer.count_tokens(prompt) - tokenizer.count_tokens(text.encode())
    assert added == tokenizer.ONE_USER_MESSAGE_TOKENS == 6


@given(st.lists(st.tuples(st.sampled_from(["system", "user", "tool"]), TEXT), min_size=1, max_size=4), TEXT)
def test_next_turn_starts_with_this_turn_and_its_answer(history: list[tuple[str, str]], answer: str) -> None:
    now = tokenizer.render_chat(history, tools=b"[1]")
    later = tokenizer.render_chat([*history, ("assistant", answer), ("user", "go on")], tools=b"[1]")
    assert later.startswith(now + answer.encode())
