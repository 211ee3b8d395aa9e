from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.upstream.heads import (
    HOP_BY_HOP,
    MAX_NAME_BYTES,
    UnsafeHead,
    UpstreamRequest,
    build_head,
    filter_response_headers,
)
from gateway.upstream.origin import Origin

ORIGIN = Origin(host="worker", port=8000)


def head(
    headers: Sequence[tuple[bytes, bytes]] = (),
    own: Sequence[tuple[bytes, bytes]] = (),
    method: bytes = b"POST",
    target: bytes = b"/v1/completions",
    body: bytes | tuple[bytes, ...] = b"{}",
    origin: Origin = ORIGIN,
) -> list[bytes]:
    request = UpstreamRequest(method=method, target=target, headers=headers, own_headers=own, body=body)
    built = build_head(request, origin)
    assert built.endswith(b"\r\n\r\n")
    return built[:-4].split(b"\r\n")


def test_head_has_the_origins_host_and_its_own_length() -> None:
    sent = [(b"Host", b"gateway.local"), (b"content-length", b"999"), (b"content-type", b"application/json")]
    assert head(sent) == [
        b"POST /v1/completions HTTP/1.1",
        b"host: worker:8000",
        b"content-type: application/json",
        b"content-length: 2",
    ]


def test_base_path_is_put_before_the_target() -> None:
    origin = Origin(host="worker", port=80, base_path=b"/prefix")
    lines = head(target=b"/v1/models?x=%20", method=b"GET", body=b"", origin=origin)
    assert lines == [b"GET /prefix/v1/models?x=%20 HTTP/1.1", b"host: worker"]


def test_other_headers_keep_order_repeats_and_spelling() -> None:
    sent = [(b"X-B", b"1"), (b"Authorization", b"Bearer k"), (b"x-b", b"2"), (b"X-Empty", b""), (b"X-Latin", b"\xe9")]
    assert head(sent)[2:-1] == [b"X-B: 1", b"Authorization: Bearer k", b"x-b: 2", b"X-Empty: ", b"X-Latin: \xe9"]


@pytest.mark.parametrize("name", sorted(HOP_BY_HOP | {b"accept-encoding", b"expect", b"host", b"content-length"}))
def test_headers_of_one_hop_are_dropped(name: bytes) -> None:
    assert len(head([(name.title(), b"x")])) == len(head())


def test_headers_named_in_any_connection_header_are_dropped() -> None:
    sent = [
        (b"X-Secret-Hop", b"1"),
        (b"Connection", b"close, X-SECRET-HOP"),
        (b"connection", b" x-other ,"),
        (b"x-other", b"2"),
        (b"x-kept", b"3"),
    ]
    assert head(sent)[2:-1] == [b"x-kept: 3"]


def test_connection_cannot_remove_the_gateways_own_headers() -> None:
    sent = [(b"Connection", b"x-request-id"), (b"X-Request-Id", b"client")]
    assert head(sent, own=[(b"x-request-id", b"ours")])[2:-1] == [b"x-request-id: ours"]


def test_own_headers_replace_the_clients_of_the_same_name() -> None:
    sent = [(b"AUTHORIZATION", b"Bearer client"), (b"x-kept", b"1")]
    lines = head(sent, own=[(b"authorization", b"Bearer worker")])
    assert lines[2:-1] == [b"authorization: Bearer worker", b"x-kept: 1"]


@pytest.mark.parametrize("values", [(b"5", b"6"), (b"5, 6",), (b"+2",), (b"0x2",)])
def test_client_lengths_never_pass(values: tuple[bytes, ...]) -> None:
    lines = head([(b"Content-Length", value) for value in values])
    assert [line for line in lines if line.lower().startswith(b"content-length")] == [b"content-length: 2"]


def test_length_of_segments_is_their_sum() -> None:
    assert head(body=(b"{", b'"a":1,', b"}"))[-1] == b"content-length: 8"


@pytest.mark.parametrize("method", [b"POST", b"PUT", b"PATCH"])
def test_empty_body_has_a_length_where_one_is_expected(method: bytes) -> None:
    assert head(method=method, body=b"")[-1] == b"content-length: 0"


@pytest.mark.parametrize("char", [b"\r", b"\n", b"\0", b"\r\n", b"\r\nx-injected: 1"])
@pytest.mark.parametrize("place", ["value", "name", "own value", "own name", "method", "target"])
def test_line_breaks_and_nul_are_refused_anywhere(char: bytes, place: str) -> None:
    bad = b"a" + char + b"b"
    arguments = {
        "value": {"headers": [(b"x-a", bad)]},
        "name": {"headers": [(bad, b"1")]},
        "own value": {"own": [(b"x-a", bad)]},
        "own name": {"own": [(bad, b"1")]},
        "method": {"method": bad},
        "target": {"target": b"/" + bad},
    }[place]
    with pytest.raises(UnsafeHead):
        head(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [b"", b"Transfer-Encoding ", b" host", b"host:", b"a\tb", b"a\x80", b"(a)"])
def test_header_name_that_is_no_token_is_refused(name: bytes) -> None:
    with pytest.raises(UnsafeHead):
        head([(name, b"chunked")])


def test_longest_header_name_passes_and_one_byte_more_does_not() -> None:
    name = b"x" * MAX_NAME_BYTES
    assert head([(name, b"1")])[2] == name + b": 1"
    with pytest.raises(UnsafeHead):
        head([(name + b"x", b"1")])


@pytest.mark.parametrize("target", [b"", b"*", b"v1", b"http://evil/", b"/a b", b"/a HTTP/1.1", b"/\x7f"])
def test_target_that_is_no_path_is_refused(target: bytes) -> None:
    with pytest.raises(UnsafeHead):
        head(target=target)


@given(st.lists(st.tuples(st.binary(max_size=20), st.binary(max_size=20)), max_size=6))
def test_any_headers_make_one_unambiguous_head_or_none(headers: list[tuple[bytes, bytes]]) -> None:
    try:
        lines = head(headers)
    except UnsafeHead:
        return
    names = [line.split(b":")[0].lower() for line in lines[1:]]
    assert names.count(b"host") == names.count(b"content-length") == 1
    assert not HOP_BY_HOP.intersection(names)
    assert len(lines) <= len(headers) + 3


def test_response_headers_lose_what_belongs_to_the_hop() -> None:
    headers = [
        (b"date", b"now"),
        (b"server", b"uvicorn"),
        (b"content-type", b"text/event-stream"),
        (b"transfer-encoding", b"chunked"),
        (b"connection", b"keep-alive, x-hop"),
        (b"keep-alive", b"timeout=5"),
        (b"x-hop", b"1"),
        (b"set-cookie", b"a=1"),
        (b"set-cookie", b"b=2"),
    ]
    assert filter_response_headers(headers) == [
        (b"content-type", b"text/event-stream"),
        (b"set-cookie", b"a=1"),
        (b"set-cookie", b"b=2"),
    ]


def test_length_is_returned_only_for_an_untouched_body() -> None:
    headers = [(b"content-length", b"5"), (b"x-a", b"1")]
    assert filter_response_headers(headers) == headers
    assert filter_response_headers(headers, reframed=True) == [(b"x-a", b"1")]
