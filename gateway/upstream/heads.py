"""Heads are rebuilt, never copied.

Whatever frames or routes one hop (Host, Content-Length, Transfer-Encoding, Connection and what it names) is the
gateway's own on each side; everything else passes in its order. No client byte can start a new header line.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache

from gateway.core.record import record
from gateway.upstream.origin import Origin

HeaderPairs = Sequence[tuple[bytes, bytes]]

HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"http2-settings",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
# Accept-Encoding goes so that streams stay readable; Expect, since the whole body is already here.
_NOT_FORWARDED = HOP_BY_HOP | {b"accept-encoding", b"content-length", b"expect", b"host"}
# The gateway's own server writes its own Date and Server.
_NOT_RETURNED = HOP_BY_HOP | {b"date", b"server"}
_NOT_RETURNED_WHEN_REFRAMED = _NOT_RETURNED | {b"content-length"}

MAX_NAME_BYTES = 256
"""Longest header name sent; bounds the cache of names, and that of targets."""

_TOKEN = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_NOT_IN_TARGET = bytes([*range(0x21), 0x7F])
_NONE: frozenset[bytes] = frozenset()
_PLAIN_CONNECTION = frozenset({b"close", b"keep-alive"})
_METHODS_WITH_BODY = frozenset({b"POST", b"PUT", b"PATCH"})


class UnsafeHead(ValueError):  # noqa: N818 - it describes the head
    """A request head that could be read in two ways was not sent; the client's doing, so 400."""


@record
class UpstreamRequest:
    """One request as the gateway means it; the pool turns it into bytes for the origin at hand."""

    method: bytes
    target: bytes
    """Path and query as the client sent them, in origin form; the origin's base path is put before it."""
    headers: HeaderPairs = ()
    """The client's headers; those of one hop are dropped."""
    own_headers: HeaderPairs = ()
    """The gateway's headers: they replace the client's of the same name, and Connection cannot remove them."""
    body: bytes | tuple[bytes, ...] = b""
    """The whole body; segments are written one after the other without being joined here."""

    @property
    def segments(self) -> tuple[bytes, ...]:
        """The body as segments, none where it is empty."""
        if isinstance(self.body, tuple):
            return self.body
        return (self.body,) if self.body else ()

    @property
    def body_bytes(self) -> int:
        """The Content-Length."""
        return sum(map(len, self.body)) if isinstance(self.body, tuple) else len(self.body)


def build_head(request: UpstreamRequest, origin: Origin) -> bytes:
    """Return the request head for `origin`, up to and including the blank line.

    Raises UnsafeHead for a header name that is too long or not a token, for CR, LF or NUL in a value, and for a
    method or target that does not fit on a request line.
    """
    request_line = _request_line if len(request.target) <= MAX_NAME_BYTES else _request_line.__wrapped__
    lines = [request_line(request.method, origin.base_path, request.target), b"host: " + origin.authority]
    own = _add_own(lines, request.own_headers) if request.own_headers else _NONE
    _add_clients(lines, request.headers, own)
    length = request.body_bytes
    if length or request.method in _METHODS_WITH_BODY:
        lines.append(b"content-length: %d" % length)
    return _join(lines)


def filter_response_headers(headers: HeaderPairs, *, reframed: bool = False) -> list[tuple[bytes, bytes]]:
    """Return what goes back to the client, in order and with repeats; names must be in lower case.

    `reframed` says that the body will not reach the client byte for byte, so the worker's Content-Length is
    dropped with the headers of one hop.
    """
    dropped = _NOT_RETURNED_WHEN_REFRAMED if reframed else _NOT_RETURNED
    kept = [pair for pair in headers if pair[0] not in dropped]
    if len(kept) == len(headers) or not (named := _named(headers)):
        return kept
    return [pair for pair in kept if pair[0] not in named]


@lru_cache(maxsize=128)
def _request_line(method: bytes, base_path: bytes, target: bytes) -> bytes:
    if not method or method.translate(None, _TOKEN):
        raise UnsafeHead("the method is not a token")
    if target[:1] != b"/" or len(target.translate(None, _NOT_IN_TARGET)) != len(target):
        raise UnsafeHead("the target is not a path in printable characters")
    return b"%b %b%b HTTP/1.1" % (method, base_path, target)


def _named(headers: Iterable[tuple[bytes, bytes]]) -> frozenset[bytes]:
    """Return the names that Connection headers declare to be of one hop, in lower case."""
    named = _NONE
    for name, value in headers:
        if len(name) == len(b"connection") and name.lower() == b"connection":
            options = value.lower()
            if options not in _PLAIN_CONNECTION:
                named = named.union(option.strip() for option in options.split(b","))
    return named


@lru_cache(maxsize=512)
def _line_start(name: bytes) -> tuple[bytes, bytes]:
    """Return `name: `, or nothing for a header that is not forwarded, and the name in lower case.

    The same few names come with every request.
    """
    # "Transfer-Encoding " with a space is no name that we know, and a lenient worker would heed it.
    if not name or name.translate(None, _TOKEN):
        raise UnsafeHead("a header name is not a token")
    if len(name) > MAX_NAME_BYTES:
        raise UnsafeHead(f"a header name is over {MAX_NAME_BYTES} bytes")
    lowered = name.lower()
    return b"" if lowered in _NOT_FORWARDED else name + b": ", lowered


def _add_own(lines: list[bytes], headers: HeaderPairs) -> frozenset[bytes]:
    """Add the gateway's headers; return their names in lower case."""
    names = []
    for name, value in headers:
        start, lowered = _line_start(name)
        names.append(lowered)
        if start:
            lines.append(start + value)
    return frozenset(names)


def _add_clients(lines: list[bytes], headers: HeaderPairs, own: frozenset[bytes]) -> None:
    """Add the client's headers, but for those that the gateway replaces and those that Connection names."""
    began = len(lines)
    for name, value in headers:
        start, lowered = _line_start(name)
        if start:
            if lowered not in own:
                lines.append(start + value)
        elif lowered == b"connection" and value.lower() not in _PLAIN_CONNECTION:
            # Some may have gone before it that it names: once more, and without them.
            del lines[began:]
            dropped = own | _named(headers)
            lines += [name + b": " + value for name, value in _forwarded(headers) if name.lower() not in dropped]
            return


def _forwarded(headers: HeaderPairs) -> list[tuple[bytes, bytes]]:
    return [pair for pair in headers if _line_start(pair[0])[0]]


def _join(lines: list[bytes]) -> bytes:
    head = b"\r\n".join(lines) + b"\r\n\r\n"
    # Counting is cheaper than a check per header: any break beyond our own came from a value.
    breaks = len(lines) + 1
    if head.count(b"\r") != breaks or head.count(b"\n") != breaks or b"\0" in head:
        raise UnsafeHead("a header value holds CR, LF or NUL")
    return head
