import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy_store.ubjson import UbjsonError, read_ubjson


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"Z", None),
        (b"T", True),
        (b"i\xff", -1),
        (b"U\xff", 255),
        (b"I\x01\x00", 256),
        (b"d" + struct.pack(">f", 1.5), 1.5),
        (b"D" + struct.pack(">d", 0.1), 0.1),
        (b"Si\x02hi", "hi"),
        (b"Cx", "x"),
        (b"[i\x01T]", [1, True]),
        (b"[#i\x02i\x01i\x02", [1, 2]),
        (b"[$U#i\x03\x01\x02\x03", [1, 2, 3]),
        (b"[$l#L" + struct.pack(">q", 1) + struct.pack(">i", -7), [-7]),
        (b"{i\x01aU\x05}", {"a": 5}),
        (b"{#i\x01i\x01a[]", {"a": []}),
    ],
)
def test_values_are_read(data: bytes, value: object) -> None:
    assert read_ubjson(data) == value


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "cut short"),
        (b"I\x01", "cut short"),
        (b"Sd", "cannot be 'd'"),
        (b"Si\xff", "a length of -1"),
        (b"Si\x01\xff", "not UTF-8"),
        (b"[$U", "without a length"),
        (b"[$d#l\x00\xff\xff\xff", "cut short"),
        (b"Q", "unknown marker"),
        (b"TT", "1 bytes follow"),
        (b"[" * 50, "deeper"),
        (b"{i\x01aTi\x01aT}", "twice"),
    ],
)
def test_what_is_malformed_is_refused_with_the_reason(data: bytes, words: str) -> None:
    with pytest.raises(UbjsonError, match=words):
        read_ubjson(data)


@given(st.binary(max_size=64))
def test_bytes_that_are_no_ubjson_never_raise_anything_else(data: bytes) -> None:
    with suppress(UbjsonError):
        read_ubjson(data)
