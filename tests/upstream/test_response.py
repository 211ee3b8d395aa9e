"""What is a response, however it is cut into reads. Fed to a connection on a fake transport."""

from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.upstream.errors import BrokenResponse, ErrorKind
from gateway.upstream.response import HEAD_LIMIT_BYTES
from tests.upstream.upstream_fakes import Bench, cuts

CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
TWO = b"content-length: 2\r\n\r\nhi"


@dataclass(frozen=True, kw_only=True)
class Good:
    """A whole response and what must come of it."""

    data: bytes
    body: bytes = b"hi"
    status: int = 200
    head_only: bool = False
    eof: bool = False
    kept: bool = True


GOOD = {
    "sized": Good(data=b"HTTP/1.1 200 OK\r\n" + TWO),
    "sized, no reason": Good(data=b"HTTP/1.1 200\r\n" + TWO),
    "empty": Good(data=b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", body=b""),
    "error status": Good(data=b"HTTP/1.1 503 Busy\r\nretry-after: 1\r\n" + TWO, status=503),
    "chunked": Good(data=CHUNKED + b"1\r\nh\r\n1\r\ni\r\n0\r\n\r\n"),
    "chunked, long size lines": Good(data=CHUNKED + b"0000000A\r\n0123456789\r\n000\r\n\r\n", body=b"0123456789"),
    "chunked, terminator inside data": Good(data=CHUNKED + b"7\r\n0\r\n\r\nhi\r\n0\r\n\r\n", body=b"0\r\n\r\nhi"),
    "chunked, extensions": Good(data=CHUNKED + b'2;a=b;c="d e"\r\nhi\r\n0;last\r\n\r\n'),
    "chunked, trailers": Good(data=CHUNKED + b"2\r\nhi\r\n0\r\nx-t: 1\r\nx-empty:\r\n\r\n"),
    "chunked, capital coding": Good(data=b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked \r\n\r\n2\r\nhi\r\n0\r\n\r\n"),
    "close-delimited": Good(data=b"HTTP/1.1 200 OK\r\n\r\nhi", eof=True, kept=False),
    "close-delimited, empty": Good(data=b"HTTP/1.1 200 OK\r\n\r\n", body=b"", eof=True, kept=False),
    "close announced": Good(data=b"HTTP/1.1 200 OK\r\nconnection: close\r\n" + TWO, kept=False),
    "HTTP/1.0": Good(data=b"HTTP/1.0 200 OK\r\n" + TWO, kept=False),
    "HTTP/1.0, close-delimited": Good(data=b"HTTP/1.0 200 OK\r\n\r\nhi", eof=True, kept=False),
    "HTTP/1.0, kept alive": Good(data=b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\n" + TWO),
    "continue": Good(data=b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n" + TWO),
    "early hints": Good(
        data=b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" * 2 + b"HTTP/1.1 200 OK\r\n" + TWO,
    ),
    "interim with a length": Good(
        data=b"HTTP/1.1 102 Processing\r\ncontent-length: 9\r\n\r\nHTTP/1.1 200 OK\r\n" + TWO
    ),
    "no content": Good(data=b"HTTP/1.1 204 No Content\r\n\r\n", status=204, body=b""),
    "not modified": Good(data=b"HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n", status=304, body=b""),
    "head": Good(data=b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n", body=b"", head_only=True, kept=False),
    "head, chunked": Good(data=CHUNKED, body=b"", head_only=True, kept=False),
    "upgrade offered": Good(data=b"HTTP/1.1 200 OK\r\nupgrade: h2c\r\nconnection: upgrade\r\n" + TWO),
}

CLASHING = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n"
BAD = {
    "not HTTP": b"220 mail.example ESMTP\r\n",
    "another protocol": b"RTSP/1.0 200 OK\r\n" + TWO,
    "blank line first": b"\r\nHTTP/1.1 200 OK\r\n" + TWO,
    "HTTP/2": b"HTTP/2.0 200 OK\r\n" + TWO,
    "HTTP/0.9": b"HTTP/0.9 200 OK\r\n" + TWO,
    "status 0": b"HTTP/1.1 000 OK\r\n" + TWO,
    "status 999": b"HTTP/1.1 999 OK\r\n" + TWO,
    "short status": b"HTTP/1.1 20 OK\r\n" + TWO,
    "switching protocols": b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nabc",
    "switching, unasked": b"HTTP/1.1 101 Switching\r\n\r\nabc",
    "bare line feeds": b"HTTP/1.1 200 OK\ncontent-length: 2\n\nhi",
    "folded header": b"HTTP/1.1 200 OK\r\nx-a: 1\r\n 2\r\n" + TWO,
    "space before colon": b"HTTP/1.1 200 OK\r\ncontent-length : 2\r\n\r\nhi",
    "header without colon": b"HTTP/1.1 200 OK\r\nx-a\r\n" + TWO,
    "NUL in header": b"HTTP/1.1 200 OK\r\nx-a: \0\r\n" + TWO,
    "equal lengths": CLASHING + TWO,
    "different lengths": CLASHING + b"content-length: 3\r\n\r\nhi",
    "list of lengths": b"HTTP/1.1 200 OK\r\ncontent-length: 2, 2\r\n\r\nhi",
    "signed length": b"HTTP/1.1 200 OK\r\ncontent-length: +2\r\n\r\nhi",
    "endless length": b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999999999999\r\n\r\nhi",
    "length, then chunked": CLASHING + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked, then length": CHUNKED[:-2] + b"content-length: 5\r\n\r\n0\r\n\r\n",
    "unknown coding": b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\nhi",
    "like chunked": b"HTTP/1.1 200 OK\r\ntransfer-encoding: xchunked\r\n\r\nhi",
    "coding under chunked": b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "chunked twice": CHUNKED[:-2] + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked in HTTP/1.0": CHUNKED.replace(b"1.1", b"1.0") + b"0\r\n\r\n",
}
BAD_CHUNKS = {
    "no size": b"\r\nhi",
    "letters": b"G\r\nhi",
    "prefixed": b"0x2\r\nhi",
    "negative": b"-2\r\nhi",
    "spaced": b"2 \r\nhi",
    "overflow": b"FFFFFFFFFFFFFFFFF\r\nhi",
    "bare line feed": b"2\nhi\n0\n\n",
    "data past its size": b"2\r\nhiX\r\n0\r\n\r\n",
    "broken extension": b'2;a="b\r\nhi\r\n0\r\n\r\n',
    "broken trailer": b"0\r\nx y: 1\r\n\r\n",
}


def fed(*reads: bytes, head_only: bool = False, eof: bool = False) -> Bench:
    bench = Bench(head_only=head_only)
    bench.receive(*reads, eof=eof)
    return bench


@pytest.mark.parametrize("good", GOOD.values(), ids=GOOD)
def test_response_is_understood(good: Good) -> None:
    bench = fed(good.data, head_only=good.head_only, eof=good.eof)
    told = bench.listener
    assert (told.status, told.body, told.ended, told.error) == (good.status, good.body, True, None)
    assert ("freed" in bench.owner.said) == good.kept
    assert bench.closed != good.kept


@pytest.mark.parametrize("good", GOOD.values(), ids=GOOD)
def test_every_cut_of_a_response_means_the_same(good: Good) -> None:
    whole = fed(good.data, head_only=good.head_only, eof=good.eof)
    for reads in cuts(good.data):
        parts = fed(*reads, head_only=good.head_only, eof=good.eof)
        assert parts.listener.outcome == whole.listener.outcome
        assert parts.owner.said == whole.owner.said


@pytest.mark.parametrize("good", [good for good in GOOD.values() if good.kept])
def test_next_response_on_the_connection_is_understood(good: Good) -> None:
    bench = fed(good.data)
    for following in GOOD.values():
        again = type(bench.listener)()
        bench.connection.send(bench.exchange_for(again, head_only=following.head_only))
        bench.receive(following.data, eof=following.eof)
        assert (again.status, again.body, again.ended) == (following.status, following.body, True)
        if not following.kept:
            bench = fed(good.data)


@pytest.mark.parametrize("good", GOOD.values(), ids=GOOD)
def test_every_truncation_is_an_error(good: Good) -> None:
    """Only a body without a length may end anywhere; all others say how much is to come."""
    for end in range(1, len(good.data)):
        bench = fed(good.data[:end], head_only=good.head_only, eof=True)
        told = bench.listener
        open_ended = good.eof and told.status is not None
        assert told.ended == open_ended
        if not open_ended:
            assert isinstance(told.error, BrokenResponse)
            assert told.error.kind in {ErrorKind.CLOSED_BEFORE_HEAD, ErrorKind.TRUNCATED}
            assert told.error.retryable_elsewhere == (told.status is None)


@pytest.mark.parametrize("data", BAD.values(), ids=BAD)
def test_unsafe_head_is_refused_however_cut(data: bytes) -> None:
    for reads in [(data,), *cuts(data)]:
        bench = fed(*reads)
        told = bench.listener
        assert told.status is None
        assert isinstance(told.error, BrokenResponse)
        assert told.error.kind is ErrorKind.MALFORMED
        assert told.error.retryable_elsewhere
        assert bench.closed


@pytest.mark.parametrize("data", BAD_CHUNKS.values(), ids=BAD_CHUNKS)
def test_bad_chunk_breaks_the_body_however_cut(data: bytes) -> None:
    whole = fed(CHUNKED, data).listener.outcome
    for reads in [(data,), *cuts(data)]:
        bench = fed(CHUNKED, *reads)
        told = bench.listener
        assert told.outcome == whole
        assert isinstance(told.error, BrokenResponse)
        assert told.error.kind is ErrorKind.MALFORMED
        assert not told.error.retryable_elsewhere
        assert bench.closed


@pytest.mark.parametrize("surplus", [b"x", b"hello", b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nno"])
@pytest.mark.parametrize("name", ["sized", "chunked", "no content", "not modified", "head", "close announced"])
def test_bytes_after_the_end_are_ignored_and_cost_the_connection(name: str, surplus: bytes) -> None:
    good = GOOD[name]
    for reads in [(good.data + surplus,), (good.data, surplus)]:
        bench = fed(*reads, head_only=good.head_only)
        told = bench.listener
        assert (told.status, told.body, told.ended, told.error) == (good.status, good.body, True, None)
        assert bench.closed


def test_header_names_are_in_lower_case_and_values_are_stripped() -> None:
    bench = fed(b"HTTP/1.1 200 OK\r\nX-A:  1 \t\r\nSet-Cookie: a\r\nSet-Cookie: b\r\nX-E:\r\n" + TWO)
    assert bench.listener.headers == [
        (b"x-a", b"1"),
        (b"set-cookie", b"a"),
        (b"set-cookie", b"b"),
        (b"x-e", b""),
        (b"content-length", b"2"),
    ]


def test_interim_headers_and_trailers_are_not_passed_on() -> None:
    bench = fed(b"HTTP/1.1 103 Hints\r\nlink: x\r\n\r\n" + CHUNKED + b"0\r\nx-t: 1\r\n\r\n")
    assert bench.listener.headers == [(b"transfer-encoding", b"chunked")]


def test_events_of_one_read_are_passed_on_together() -> None:
    bench = fed(CHUNKED + b"1\r\na\r\n1\r\nb\r\n", b"1\r\nc\r\n")
    assert bench.listener.reads == [b"ab", b"c"]


def head_of(size: int) -> bytes:
    start, end = b"HTTP/1.1 200 OK\r\nx-a: ", b"\r\n" + TWO[:-2]
    return start + b"a" * (size - len(start) - len(end)) + end


@pytest.mark.parametrize("cut", [1, 1000, HEAD_LIMIT_BYTES - 1, HEAD_LIMIT_BYTES, HEAD_LIMIT_BYTES + 1])
def test_largest_head_passes_and_one_byte_more_does_not(cut: int) -> None:
    for size, passes in [(HEAD_LIMIT_BYTES, True), (HEAD_LIMIT_BYTES + 1, False)]:
        data = head_of(size) + b"hi"
        told = fed(data[:cut], data[cut:]).listener
        assert told.ended == passes
        assert (told.error is None) == passes


def test_endless_interim_heads_are_cut_off() -> None:
    hint = b"HTTP/1.1 103 Hints\r\nlink: x\r\n\r\n"
    told = fed(*[hint] * (HEAD_LIMIT_BYTES // len(hint) + 1)).listener
    assert told.error is not None


@pytest.mark.parametrize("endless", [b"0\r\nx-t: ", b"0\r\n", b"2;"])
@pytest.mark.parametrize("piece", [b"a" * 1000, b"x-t: 1\r\n"])
def test_endless_trailers_and_extensions_are_cut_off(endless: bytes, piece: bytes) -> None:
    told = fed(CHUNKED, endless, *[piece] * (HEAD_LIMIT_BYTES // len(piece) + 2)).listener
    assert told.error is not None


def test_long_stream_of_long_extensions_passes() -> None:
    reads = [b"1;" + b"a" * 1000 + b"\r\n", b"x\r\n"] * 100
    told = fed(CHUNKED, *reads, b"0\r\n\r\n").listener
    assert told.ended
    assert told.body == b"x" * 100


@st.composite
def responses(draw: st.DrawFn) -> tuple[bytes, bytes, bool]:
    """A well-formed response, its body, and whether only the close ends it."""
    pieces = draw(st.lists(st.binary(min_size=1, max_size=30), max_size=6))
    body = b"".join(pieces)
    interim = b"HTTP/1.1 103 Hints\r\nlink: x\r\n\r\n" * draw(st.integers(0, 2))
    extra = b"".join(draw(st.lists(st.sampled_from([b"x-a: 1\r\n", b"x-b:\r\n", b"set-cookie: c\r\n"]))))
    start = interim + b"HTTP/1.1 200 OK\r\n" + extra
    framing = draw(st.sampled_from(["sized", "chunked", "close"]))
    if framing == "sized":
        return start + b"content-length: %d\r\n\r\n" % len(body) + body, body, False
    if framing == "close":
        return start + b"\r\n" + body, body, True
    extension = draw(st.sampled_from([b"", b";a", b";a=b"]))
    chunks = [b"%x%b\r\n%b\r\n" % (len(piece), extension, piece) for piece in pieces]
    trailer = draw(st.sampled_from([b"", b"x-t: 1\r\n"]))
    return start + b"transfer-encoding: chunked\r\n\r\n" + b"".join(chunks) + b"0\r\n" + trailer + b"\r\n", body, False


def cut_at(data: bytes, places: set[int]) -> list[bytes]:
    edges = [0, *sorted(place for place in places if 0 < place < len(data)), len(data)]
    return [data[a:b] for a, b in pairwise(edges) if a < b]


places = st.sets(st.integers(0, 600), max_size=40)


@given(responses(), places)
def test_any_response_cut_anyhow_means_the_same(response: tuple[bytes, bytes, bool], places: set[int]) -> None:
    data, body, eof = response
    told = fed(*cut_at(data, places), eof=eof).listener
    assert told.ended
    assert told.body == body
    assert told.outcome == fed(data, eof=eof).listener.outcome


@given(responses(), places, st.integers(0, 600), st.binary(max_size=4), st.booleans())
def test_any_damaged_response_ends_once_and_alike(
    response: tuple[bytes, bytes, bool], places: set[int], at: int, damage: bytes, replace: bool
) -> None:
    data = response[0][:at] + damage + response[0][at + len(damage) * replace :]
    parts, whole = fed(*cut_at(data, places), eof=True), fed(data, eof=True)
    assert parts.listener.finished.is_set()
    assert parts.listener.outcome == whole.listener.outcome


@given(st.binary(min_size=1, max_size=300), places)
def test_garbage_ends_in_exactly_one_error(data: bytes, places: set[int]) -> None:
    bench = fed(*cut_at(data, places), eof=True)
    assert bench.listener.error is not None
    assert bench.listener.calls == 1


WORDS = [
    *(b"HTTP/1.1 ", b"HTTP/1.0 ", b"200", b"103", b"204", b" OK", b"\r\n", b"\n", b": ", b";", b"\0", b"0", b"5"),
    *(b"content-length: ", b"transfer-encoding: chunked", b"connection: close", b"upgrade: x", b"hello"),
]


@given(st.lists(st.sampled_from(WORDS), max_size=40), places)
def test_nearly_http_ends_once_and_alike(words: list[bytes], places: set[int]) -> None:
    data = b"HTTP/1.1 200 OK\r\n" + b"".join(words)
    parts, whole = fed(*cut_at(data, places), eof=True), fed(data, eof=True)
    assert parts.listener.finished.is_set()
    assert parts.listener.outcome == whole.listener.outcome
