"""Uvicorn's HTTP protocol with a bound on request heads.

The rule of this module: a head that does not end within the bound is answered with 431 and the connection is closed;
httptools itself would gather it without end.
"""

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 * 1024 + 8 * 1024
"""64 KB of headers, and room for the request line."""
TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-type: application/json\r\n"
    b'content-length: 122\r\n\r\n{"error":{"message":"The request head is too large.","type":"invalid_request_error",'
    b'"param":null,"code":"head_too_large"}}'
)

LINGER_S = 1.0


class BoundedHeads(HttpToolsProtocol):
    """Counts the bytes of a head as they come."""

    _head_bytes = 0
    _in_head = False
    _refused = False

    def data_received(self, data: bytes) -> None:
        """Read on, unless the head under way has grown too large."""
        if self._refused:
            return
        # A read that also ends an earlier body is not counted: what it brings of the next head is unknown, but bounded.
        counts = self._in_head or self.cycle is None or self.cycle.response_complete  # type: ignore[redundant-expr]
        super().data_received(data)
        if not self._in_head:
            self._head_bytes = 0
            return
        self._head_bytes += len(data) if counts else 0
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse()

    def on_message_begin(self) -> None:
        """A head begins."""
        self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The head is whole."""
        self._in_head = False
        super().on_headers_complete()

    def _refuse(self) -> None:
        self._refused = True
        if not self.transport.is_closing():
            self.transport.write(TOO_LARGE)
            # Closed on unread bytes, the socket would be reset under the answer: some more is read and dropped.
            self.loop.call_later(LINGER_S, self.transport.close)
