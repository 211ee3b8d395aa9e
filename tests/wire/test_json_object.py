import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.json_object import replace, splice

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)
spellings = st.tuples(values, st.sampled_from([None, 1]), st.booleans()).map(
    lambda given: json.dumps(given[0], indent=given[1], ensure_ascii=given[2]).encode()
)
members = st.dictionaries(st.text(), spellings, max_size=6)


def spelled(members: dict[str, bytes]) -> bytes:
    return b" { " + b" , ".join(json.dumps(key).encode() + b" : " + raw for key, raw in members.items()) + b" }\n"


@given(members=members, edits=st.dictionaries(st.text(), st.none() | spellings, max_size=3))
def test_other_values_keep_their_bytes_and_keys_their_order(
    members: dict[str, bytes], edits: dict[str, bytes | None]
) -> None:
    edited = replace(spelled(members), edits)
    expected = dict(members)
    for key, raw in edits.items():
        if raw is None:
            expected.pop(key, None)
        else:
            expected[key] = raw
    assert json.loads(edited) == {key: json.loads(raw) for key, raw in expected.items()}
    assert list(json.loads(edited)) == list(expected)
    rest = edited
    for raw in expected.values():
        before, found, rest = rest.partition(raw)
        assert found, f"{raw!r} was respelled after {before!r}"


def test_big_integers_floats_and_escapes_survive() -> None:
    body = rb'{"seed":123456789012345678901234567890,"t":0.10000000000000001,"x":1E+2,"s":"\u00e9\/","max_tokens":5}'
    assert replace(body, {"max_tokens": b"1"}) == body.replace(b'"max_tokens":5', b'"max_tokens":1')


def test_a_new_key_goes_last() -> None:
    assert replace(b'{"a":1}', {"b": b"[2]"}) == b'{"a":1,"b":[2]}'


def test_removing_what_is_absent_returns_the_same_bytes() -> None:
    body = b'{ "a" : 1 }'
    assert replace(body, {"b": None}) is body


def test_removing_the_only_key_leaves_an_object() -> None:
    assert replace(b'{"a":1}', {"a": None}) == b"{}"


def test_a_repeated_key_is_edited_as_one() -> None:
    assert replace(b'{"kv":1,"a":2,"kv":3}', {"kv": None}) == b'{"a":2}'
    assert replace(b'{"a":1,"b":0,"a":2}', {"b": b"9"}) == b'{"a":2,"b":9}'


def test_an_escaped_key_is_the_same_key() -> None:
    assert replace(rb'{"\u006bv":1,"a":2}', {"kv": None}) == b'{"a":2}'


@pytest.mark.parametrize("body", [b"", b"[]", b"null", b'{"a":', b'{"a":1}x', b'{"a":' + b"[" * 5000])
def test_what_is_no_object_is_a_value_error(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        replace(body, {"a": b"1"})


@pytest.mark.parametrize(
    ("body", "spliced"),
    [
        (b'{ "a" : 1 ,\n "b":[ ] }\n', b'{ "a" : true ,\n "b":[ ] }\n'),
        (b'{"b": 1.0 }', b'{"b": 1.0 ,"a":true}'),
        (b"{}", b'{"a":true}'),
        (b'{"x":{"a":2},"a":1}', b'{"x":{"a":2},"a":true}'),
        (b'{"x":"\\"a\\":1","a":1}', b'{"x":"\\"a\\":1","a":true}'),
        (b'{"a":1,"a":2}', b'{"a":1,"a":true}'),
    ],
)
def test_a_spliced_member_is_the_only_change(body: bytes, spliced: bytes) -> None:
    assert splice(body, "a", b"true") == spliced


@pytest.mark.parametrize("body", [b'{"x": {"a": 1}, "a": 1}', b'{"a": 1, "x": {"a": 1}}', b'{"a": 1, "a": 1}'])
def test_a_member_that_stands_in_two_places_is_set_at_the_top(body: bytes) -> None:
    assert json.loads(splice(body, "a", b"true")) == {**json.loads(body), "a": True}


@pytest.mark.parametrize("body", [b"[]", b"", b"1", b'{"a":', b'{"a":' + b"[" * 100_000])
def test_what_is_no_object_cannot_be_spliced(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        splice(body, "a", b"1")
