from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy_store.learn.continued import common_prefix


@pytest.mark.parametrize(
    ("one", "other", "length"),
    [("", "", 0), ("", "abc", 0), ("abc", "abc", 3), ("abc", "abcd", 3), ("abcd", "abxd", 2), ("xbc", "abc", 0)],
)
def test_the_common_prefix_ends_where_the_prompts_differ(one: str, other: str, length: int) -> None:
    assert common_prefix(one, other) == common_prefix(other, one) == length


@given(head=st.text("ab"), one=st.text("ab"), other=st.text("ab"))
def test_it_is_what_a_comparison_of_characters_finds(head: str, one: str, other: str) -> None:
    pairs = zip(head + one, head + other, strict=False)
    expected = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
    assert common_prefix(head + one, head + other) == expected
