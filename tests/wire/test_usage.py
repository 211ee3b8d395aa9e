import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.usage import Usage, usage_from_json


def test_usage_of_a_plain_answer() -> None:
    body = b'{"choices":[],"usage":{"prompt_tokens":26,"completion_tokens":7,"total_tokens":33}}'
    assert usage_from_json(body) == Usage(input_tokens=26, cached_tokens=None, output_tokens=7)


def test_cached_tokens_come_from_the_details() -> None:
    body = b'{"usage":{"prompt_tokens":33,"completion_tokens":8,"prompt_tokens_details":{"cached_tokens":32,"x":1}}}'
    assert usage_from_json(body) == Usage(input_tokens=33, cached_tokens=32, output_tokens=8)


@pytest.mark.parametrize("details", [b"null", b"{}", b'{"cached_tokens":null}'])
def test_null_cached_tokens_are_unknown_not_zero(details: bytes) -> None:
    body = b'{"usage":{"prompt_tokens":33,"completion_tokens":8,"prompt_tokens_details":%b}}' % details
    usage = usage_from_json(body)
    assert usage is not None
    assert usage.cached_tokens is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"usage":null}',
        b'{"usage":{}}',
        b'{"usage":[1]}',
        b'{"usage":{"prompt_tokens":-1,"completion_tokens":1}}',
        b'{"usage":{"prompt_tokens":"many","completion_tokens":1}}',
        b'{"usage":' + b"[" * 5000 + b"]" * 5000 + b"}",
    ],
)
def test_what_is_no_usage_is_none(body: bytes) -> None:
    assert usage_from_json(body) is None


@given(st.binary())
def test_never_raises(body: bytes) -> None:
    assert usage_from_json(body) is None or body.lstrip().startswith(b"{")
