import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.output_length.prompt_features import PROMPT_FEATURES, prompt_features
from gateway.core.output_length.shape import SHAPE_FEATURES, shape_features
from gateway.core.output_length.text import HEAD_BYTES, TAIL_BYTES, read_text


def features(text: str, prompt_tokens: float = 10.0) -> dict[str, float]:
    return dict(zip(PROMPT_FEATURES, prompt_features(read_text(text), prompt_tokens), strict=True))


def shape(text: str) -> dict[str, float]:
    return dict(zip(SHAPE_FEATURES, shape_features(read_text(text)), strict=True))


def verb(text: str) -> str:
    (name,) = [name for name, value in features(text).items() if name.startswith("verb_") and value]
    return name.removeprefix("verb_")


def test_there_are_the_papers_nineteen_in_its_order() -> None:
    assert len(PROMPT_FEATURES) == 19
    assert PROMPT_FEATURES[:7] == (
        "prompt_token_len",
        "has_code_keyword",
        "has_length_constraint",
        "ends_with_question",
        "has_format_keyword",
        "clause_count",
        "verb_what",
    )
    assert PROMPT_FEATURES[-1] == "verb_other"


def test_the_prompts_length_is_the_callers_estimate() -> None:
    assert features("hello", 42.5)["prompt_token_len"] == 42.5


@pytest.mark.parametrize("text", ["Write a FUNCTION.", "a React page", "my sql: select"])
def test_a_code_keyword_is_a_whole_word_of_any_case(text: str) -> None:
    assert features(text)["has_code_keyword"] == 1.0


@pytest.mark.parametrize("text", ["classical music", "functional", "my_function"])
def test_a_part_of_a_word_is_no_code_keyword(text: str) -> None:
    assert features(text)["has_code_keyword"] == 0.0


@pytest.mark.parametrize(
    "text",
    [
        "in 50 words", "In 3 sentences please", "no more than 5 items", "under 100 words", "answer briefly",
        "Concisely!", "a one-liner", "one liner", "tl;dr this", "TLDR", "shortly",
    ],
)  # fmt: skip
def test_length_constraints_are_found(text: str) -> None:
    assert features(text)["has_length_constraint"] == 1.0


@pytest.mark.parametrize("text", ["in other words", "more than words", "begin 5 words", "a liner", "the sentence"])
def test_what_only_looks_like_a_constraint_is_none(text: str) -> None:
    assert features(text)["has_length_constraint"] == 0.0


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("What is it, and explain why", "explain"),
        ("Summarizing this", "summarize"),
        ("comparing a and b", "compare"),
        ("write a list", "list"),
        ("please translate what I write", "other"),
        ("debug how it fails", "other"),
        ("hello there", "other"),
        ("How and why", "how"),
    ],
)
def test_the_first_verb_in_the_papers_priority_counts(text: str, found: str) -> None:
    assert verb(text) == found


def test_clauses_and_questions_do_not_depend_on_case() -> None:
    counted = features("This, that; one AND two but BECAUSE because of it?  \n")
    assert counted["clause_count"] == 5.0
    assert counted["ends_with_question"] == 1.0


def test_what_is_asked_for_is_estimated_in_tokens() -> None:
    assert shape("Write 3 short paragraphs.")["asked_tokens"] == 330.0
    assert shape("an essay of 1000 words")["asked_tokens"] == pytest.approx(1400.0)
    assert shape("give 20 ideas")["asked_tokens"] == 800.0
    assert shape("in room 1000 we met for words")["asked_tokens"] == 0.0
    assert shape("give me 12 of 99")["largest_count"] == 12.0


def test_of_a_long_text_the_beginning_and_the_end_are_read() -> None:
    text = "explain " + "x " * 10_000 + "briefly"
    read = read_text(text)
    assert len(read.text) == HEAD_BYTES + TAIL_BYTES + 1
    assert read.text_bytes == len(text)
    assert features(text)["verb_explain"] == features(text)["has_length_constraint"] == 1.0


@given(st.text())
def test_every_text_gives_finite_features_that_are_not_negative(text: str) -> None:
    read = read_text(text)
    values = (*prompt_features(read, 1.0), *shape_features(read))
    assert len(values) == len(PROMPT_FEATURES) + len(SHAPE_FEATURES)
    assert all(math.isfinite(value) and value >= 0.0 for value in values)
    assert sum(prompt_features(read, 1.0)[6:]) == 1.0


def test_a_lone_surrogate_is_read_as_bytes() -> None:
    read = read_text("\ud800 explain")
    assert [read.word(at) for at in range(2)] == [b"\xed\xa0\x80", b"explain"]
