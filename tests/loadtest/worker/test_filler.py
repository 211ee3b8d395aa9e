from statistics import fmean

from hypothesis import given
from hypothesis import strategies as st

from loadtest.worker import filler, tokenizer

KEYS = st.integers(min_value=0, max_value=2**64 - 1)
COUNTS = st.integers(min_value=0, max_value=700)


@given(KEYS, COUNTS, COUNTS)
def test_parts_of_an_answer_join_to_the_whole(key: int, first: int, rest: int) -> None:
    whole = filler.words(key, first=0, count=first + rest)
    assert filler.words(key, first=0, count=first) + filler.words(key, first=first, count=rest) == whole


@given(KEYS, COUNTS)
def test_an_answer_costs_as_many_tokens_as_were_made(key: int, count: int) -> None:
    assert tokenizer.count_tokens(filler.words(key, first=0, count=count)) == count


def test_words_need_no_escaping_in_json() -> None:
    text = filler.words(0, first=0, count=256).decode()
    assert text.isascii()
    assert set(text) <= set("abcdefghijklmnopqrstuvwxyz ")
    assert len({text[at : at + 4] for at in range(0, len(text), 4)}) == 256


def test_natural_lengths_have_the_documented_mean_and_are_never_empty() -> None:
    lengths = [filler.natural_length(filler.answer_key(f"request {n}")) for n in range(20_000)]
    assert min(lengths) >= 2
    assert abs(fmean(lengths) / filler.MEAN_LENGTH_TOKENS - 1) < 0.05


@given(KEYS)
def test_every_key_draws_a_length(key: int) -> None:
    assert 2 <= filler.natural_length(key) < 10**6
