"""Uvicorn's HTTP protocol, made safe for requests that are too long or no HTTP.

The rule of this module: what a client may make the gateway keep is bounded, and no refusal is written into an answer
that is under way: it would pass for a part of that answer's body.
"""

from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

MAX_HEAD_BYTES = 64 * 1024 + 8 * 1024
"""64 KB of headers, and room for the request line. As much may come of chunk extensions and trailers."""
TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-type: application/json\r\n"
    b'content-length: 122\r\n\r\n{"error":{"message":"The request head is too large.","type":"invalid_request_error",'
    b'"param":null,"code":"head_too_large"}}'
)

LINGER_S = 1.0


class BoundedHeads(HttpToolsProtocol):
    """Counts the bytes of a head as they come.

    A head that does not end within the bound is answered with 431 and the connection is closed; httptools itself would
    gather it without end.
    """

    _head_bytes = 0
    _quiet_bytes = 0
    """That came inside a body and were none of it: chunk sizes and their extensions, trailers."""
    _in_head = False
    _got_on = False
    """The read under way has brought some of a body, or another head."""
    _refused = False
    _current: RequestResponseCycle | None = None
    """The request that is being answered, or was last; those behind it wait in `pipeline`."""

    def data_received(self, data: bytes) -> None:
        """Read on, unless the head under way has grown too large."""
        if self._refused:
            return
        # A read that also ends an earlier body is not counted: what it brings of the next head is unknown, but bounded.
        counts = self._in_head or self.cycle is None or self.cycle.response_complete  # type: ignore[redundant-expr]
        self._got_on = False
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data) if counts else 0
        else:
            self._head_bytes = 0
            self._quiet_bytes = 0 if self._got_on else self._quiet_bytes + len(data)
        if self._head_bytes > MAX_HEAD_BYTES or self._quiet_bytes > MAX_HEAD_BYTES:
            self._refuse()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the request that is being answered too, where uvicorn tells only the last that came."""
        current = self._current
        super().connection_lost(exc)
        if current is not None and not current.response_complete:
            current.disconnected = True
            current.message_event.set()

    # -- what the parser tells -----------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A head begins."""
        self._begin_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The head is whole."""
        self._in_head = False
        super().on_headers_complete()
        # Trailers are told of like headers; the request is not to have them as such.
        self.headers = []

    def on_body(self, body: bytes) -> None:
        """Some of a body."""
        self._got_on = True
        super().on_body(body)

    def _begin_head(self) -> None:
        self._in_head = self._got_on = True

    # -- whose turn it is ----------------------------------------------------------------------------------------------

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._current = cycle
        super()._start_asgi_task(cycle, app)

    # -- refusals ------------------------------------------------------------------------------------------------------

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, and close."""
        self._refused = True
        if not self._ends_with_answer():
            super().send_400_response(msg)

    def _refuse(self) -> None:
        self._refused = True
        if not self.transport.is_closing() and not self._ends_with_answer():
            self.transport.write(TOO_LARGE)
            # Closed on unread bytes, the socket would be reset under the answer: some more is read and dropped.
            self.loop.call_later(LINGER_S, self.transport.close)

    def _ends_with_answer(self) -> bool:
        """Close after the answers that are owed, where there are any; False, and nothing changed, where not."""
        last: RequestResponseCycle | None = self.cycle
        if last is None or last.response_complete:
            return False
        if last.more_body:
            # It is this request that cannot be read.
            if not self.pipeline:
                if last.response_started:
                    self.transport.close()
                return last.response_started
            self.pipeline.popleft()
            last = self.pipeline[0][0] if self.pipeline else self._current
            assert last is not None
            self.cycle = last
        last.keep_alive = False
        return True
