"""Response bytes in; status, headers, body and end out. No I/O.

The parser records what one read held and the caller acts on it afterwards, so nothing is called back from inside
the C parser. However the bytes are cut into reads, the record adds up to the same response. llhttp does the
parsing; what it lets pass and we do not (every transfer coding but `chunked`, a coding in HTTP/1.0, other
protocol versions, status codes outside 200..599, heads without end) is refused here.
"""

import httptools

HEAD_LIMIT_BYTES = 65_536
"""Most bytes of a response that may come before its body, interim responses included, and of trailers."""

_VERSIONS = frozenset({"1.0", "1.1"})
_FIRST_BYTE = ord("H")


class _Stop(Exception):  # noqa: N818 - a signal, not an error
    """Raised in a parser callback to keep llhttp from reading on."""


class ResponseParser:
    """Parses one response after the other on one connection; `reset` comes before each.

    After `feed`: `head_seen` says that `status` and `headers` (final response, names in lower case) are there,
    `take_body` returns the body bytes of this read, `ended` says that the response is whole, `fault` why it can
    never be. A fault counts only while `ended` is False: bytes past the end just make the connection useless.
    """

    __slots__ = (
        "_dirty",
        "_ends_at_eof",
        "_head_bytes",
        "_head_only",
        "_interim",
        "_keep_alive",
        "_parser",
        "_pieces",
        "_quiet_bytes",
        "ended",
        "fault",
        "head_seen",
        "headers",
        "on_body",
        "status",
    )

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self.on_body = self._pieces.append  # called by llhttp without a Python frame
        self._parser = httptools.HttpResponseParser(self)
        self.reset(head_only=False)

    def reset(self, *, head_only: bool) -> None:
        """Expect a new response; `head_only` where the request was HEAD."""
        self._head_only = head_only
        self._head_bytes = 0
        self._quiet_bytes = 0
        self._interim = False
        self._keep_alive = False
        self._dirty = False
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.head_seen = False
        self._ends_at_eof = False
        self.ended = False
        self.fault: str | None = None

    @property
    def reusable(self) -> bool:
        """True where the response ended and left the connection fit for another request."""
        return self.ended and self._keep_alive and not self._dirty

    @property
    def may_end_here(self) -> bool:
        """True inside a body that only the close of the connection ends."""
        return self.head_seen and self._ends_at_eof and not self.ended and self.fault is None

    def take_body(self) -> bytes:
        """Return the body bytes recorded since the last call, joined."""
        pieces = self._pieces
        if not pieces:
            return b""
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        return body

    def feed(self, data: bytes) -> None:
        """Parse one read. Never raises."""
        if self.head_seen:
            self._parse_body(data)
        else:
            self._parse_head(data)

    def _parse_head(self, data: bytes) -> None:
        if self._head_bytes == 0 and data[0] != _FIRST_BYTE:
            self.fault = "the response does not begin with HTTP/"
            return
        room_bytes = HEAD_LIMIT_BYTES - self._head_bytes
        self._head_bytes += len(data)
        self._parse(data[:room_bytes])
        if len(data) <= room_bytes or self.fault is not None:
            return
        if self.head_seen:
            self._parse_body(data[room_bytes:])
        else:
            self.fault = f"the response head is over {HEAD_LIMIT_BYTES} bytes"

    def _parse_body(self, data: bytes) -> None:
        self._parse(data)
        if self._pieces:
            self._quiet_bytes = 0
            return
        self._quiet_bytes += len(data)
        if self._quiet_bytes > HEAD_LIMIT_BYTES and not self.ended:
            self.fault = f"over {HEAD_LIMIT_BYTES} bytes of chunk extensions or trailers"

    def _parse(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._dirty = True
            if self.fault is None:
                self.fault = str(error)

    # llhttp's callbacks

    def on_message_begin(self) -> None:
        """Stop where a second response follows the first: nothing was asked that it could answer."""
        if self.ended:
            raise _Stop

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header; trailers are dropped."""
        if not self.head_seen:
            self.headers.append((name.lower(), value.rstrip()))

    def on_headers_complete(self) -> None:
        """Skip an interim head; check the final one."""
        status = self._parser.get_status_code()
        if 100 <= status < 200 and status != 101:
            self._interim = True
            self.headers.clear()
            return
        self.fault = self._head_fault(status)
        if self.fault is not None:
            raise _Stop
        self.status = status
        self.head_seen = True
        if self._head_only:
            # llhttp would wait for the body that Content-Length tells of; stopped, it is of no further use.
            self.ended = True
            raise _Stop

    def on_message_complete(self) -> None:
        """Note the end of the final response."""
        if self._interim:
            self._interim = False
            return
        self.ended = True
        self._keep_alive = self._parser.should_keep_alive()

    def _head_fault(self, status: int) -> str | None:
        coding, sized = None, False
        for name, value in self.headers:
            if name == b"content-length":
                sized = True
            elif name == b"transfer-encoding":
                coding = value if coding is None else coding + b", " + value
        self._ends_at_eof = not sized and coding is None
        version = self._parser.get_http_version()
        if not 200 <= status < 600:
            return f"unexpected status {status}"
        if version not in _VERSIONS:
            return f"unexpected HTTP version {version}"
        if coding is not None and version == "1.0":
            return "Transfer-Encoding in an HTTP/1.0 response"
        if coding is not None and coding.lower() != b"chunked":
            return "a Transfer-Encoding other than chunked"
        return None
