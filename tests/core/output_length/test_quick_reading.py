"""The quick reading of a text against a plain one."""

import random
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.core.output_length.prompt_features import prompt_features
from gateway.core.output_length.shape import shape_features
from gateway.core.output_length.terms import term_buckets
from gateway.core.output_length.text import HEAD_BYTES, TAIL_BYTES, read_text
from tests.core.output_length.plain_features import plain_prompt, plain_read, plain_shape

PIECES = (
    "and", "but", "because", " and ", " and and ", ",", ";", " ", "\n", "\t", "?", "```", "code", "Code", "function",
    "implement", "debug", "listing", "list", "summarizing", "translate", "why", "my_sql", "sql", "briefly", "TLDR",
    "tl;dr", "one-liner", "in 50 words", "no more than 3", "3", "12", "007", "123456", "paragraphs", "short", "words",
    "ideas", "w123", "é", "日本", "\ud800", "\x00", "step by step", "Explain", "nextjs", "def", "define", "x", "_",
)  # fmt: skip
pieces = st.lists(st.sampled_from(PIECES), max_size=60)
texts = pieces.map(" ".join) | pieces.map("".join)


def agrees(text: str) -> None:
    size, read, words = plain_read(text)
    quick = read_text(text)
    assert (quick.text_bytes, quick.text, quick.lower) == (size, read, read.lower())
    assert [quick.word(at) for at in range(len(quick.words))] == words
    assert len(set(quick.words.tolist())) == len(set(words))
    assert prompt_features(quick, 7.5) == plain_prompt(text, 7.5)
    assert shape_features(quick) == plain_shape(text)


@example("ONE-LINER\x80")
@given(texts | st.text())
def test_every_text_has_the_features_of_the_plain_reading(text: str) -> None:
    agrees(text)


@pytest.mark.parametrize("seed", range(20))
def test_long_texts_have_the_features_of_the_plain_reading(seed: int) -> None:
    rng = random.Random(seed)
    words = [f"{rng.choice('abcdeXYZ')}{rng.randrange(300)}" for _ in range(200)]
    chosen = rng.choices((*PIECES, *words), k=rng.randrange(2, 2000))
    agrees(rng.choice((" ", "", ", ")).join(chosen))


@pytest.mark.parametrize("extra", [-1, 0, 1, 2])
def test_texts_as_long_as_what_is_read_are_read_whole(extra: int) -> None:
    agrees("a" * (HEAD_BYTES + TAIL_BYTES + extra))
    agrees("é7 " * ((HEAD_BYTES + TAIL_BYTES) // 4 + extra))


def test_a_word_has_one_number_wherever_it_stands() -> None:
    numbers = read_text("explain x Explain, " + "y" * 3000 + " explain").words
    assert numbers[0] == numbers[2] == numbers[4]
    assert len({int(number) for number in numbers}) == 3


def test_a_words_number_is_the_same_on_every_machine() -> None:
    assert read_text("to be").words.tolist() == [0x7FB2_BA25_1F1F_20BB, 0xA722_67BE_1D0E_E607]


@given(texts)
def test_a_term_is_a_word_or_two_in_a_row(text: str) -> None:
    read = read_text(text)
    words = [read.word(at).decode("utf-8", "surrogatepass") for at in range(len(read.words))]
    terms = {*words, *map(" ".join, pairwise(words))}
    found = {bucket for term in terms for bucket in term_buckets(read_text(term), 1 << 15).tolist()}
    assert term_buckets(read, 1 << 15).tolist() == sorted(found)
