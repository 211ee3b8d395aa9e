import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.multipart import MAX_PARTS, Part, boundary_of, parts_of

HEAD = b'Content-Disposition: form-data; name="a"'


def body(*parts: bytes, close: bytes = b"--B--") -> bytes:
    return b"".join(b"--B\r\n" + part + b"\r\n" for part in parts) + close


@pytest.mark.parametrize(
    ("content_type", "boundary"),
    [
        (b"multipart/form-data; boundary=B", b"B"),
        (b"Multipart/Form-Data;charset=utf-8;Boundary=----x.y", b"----x.y"),
        (b'multipart/form-data; boundary="a b"; x=y', b"a b"),
        (b"multipart/form-data; boundary=", None),
        (b'multipart/form-data; boundary="', None),
        (b"multipart/form-data; boundary=a b", None),
        (b"multipart/mixed; boundary=B", None),
        (b"", None),
    ],
)
def test_the_boundary(content_type: bytes, boundary: bytes | None) -> None:
    assert boundary_of(content_type) == boundary


def test_parts_are_found_where_they_stand() -> None:
    data = body(
        HEAD + b"\r\n\r\nx",
        b'content-disposition:form-data;filename=f;name="b"\r\nX: y\r\n\r\n\r\n--',
        HEAD + b"\r\n\r\n",
    )
    parts = parts_of(b"preamble\r\n" + data + b"epilogue", b"B")
    assert [(part.name, part.is_file) for part in parts] == [("a", False), ("b", True), ("a", False)]
    assert [(b"preamble\r\n" + data)[part.start : part.end] for part in parts] == [b"x", b"\r\n--", b""]


def test_a_body_without_parts() -> None:
    assert parts_of(b"--B--", b"B") == []


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"--B",
        b"--B\r\n",
        b"--B \r\n" + HEAD + b"\r\n\r\nx\r\n--B--",
        body(HEAD + b"\r\n\r\nx", close=b""),
        body(HEAD + b"\r\n\r\nx", close=b"--B"),
        body(HEAD),
        body(b"X: y\r\n\r\nx"),
        body(HEAD + b"\r\n" + HEAD + b"\r\n\r\nx"),
        body(HEAD + b'; name="b"\r\n\r\nx'),
        body(HEAD + b';\r\n filename="f"\r\n\r\nx'),
        body(HEAD + b'; filename="f; x=y\r\n\r\nx'),
        body(HEAD + b" junk\r\n\r\nx"),
        body(HEAD + b"\r\nX: " + b"y" * 9000 + b"\r\n\r\nx"),
        body(*[HEAD + b"\r\n\r\nx"] * (MAX_PARTS + 1)),
    ],
)
def test_what_could_be_read_in_two_ways_is_refused(damaged: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parts_of(damaged, b"B")


@given(st.lists(st.sampled_from([b"--B", b"\r\n", HEAD, b"\r\n\r\n", b"x", b"--", b'"', b";"])).map(b"".join))
def test_parts_never_overlap(data: bytes) -> None:
    try:
        parts = parts_of(data, b"B")
    except ValueError:
        return
    ends = [0]
    for part in parts:
        assert isinstance(part, Part)
        assert ends[-1] <= part.start <= part.end <= len(data)
        assert b"\r\n--B" not in data[part.start : part.end]
        ends.append(part.end)
