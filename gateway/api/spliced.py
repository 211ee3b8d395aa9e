"""One spliced request: its body is gathered from the client's connection, and its answer written to it.

The rule of this module: for a client it does what uvicorn and `gateway.api.hot` do together, in the same order. It has
no task and no queue, and is over with its answer.
"""

import asyncio
import logging
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from uvicorn.protocols.http.flow_control import FlowControl

from gateway.api.asgi import READ_OFF_BYTES, READ_OFF_S, Headers, Scope, declares_too_large
from gateway.api.auth import IDENTITY, RequireKey
from gateway.api.reception import Reception
from gateway.api.refusal import WholeAnswer
from gateway.api.request_id import request_id_of
from gateway.upstream.answers import BODILESS
from gateway.upstream.journey import Journey
from gateway.upstream.services import ClientRequest
from gateway.wire import errors as api_errors
from gateway.wire.errors import ApiError
from gateway.wire.peeked import Peeked

INTERNAL_ERROR = WholeAnswer(
    status=500, headers=[(b"content-type", b"text/plain; charset=utf-8")], body=b"Internal Server Error"
)
"""What uvicorn says where an application fails."""

_log = logging.getLogger("uvicorn.error")


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontDoor:
    """What stands between a connection and a journey, the same as before the ASGI handler."""

    guard: RequireKey
    reception: Reception


class Line(Protocol):
    """The connection of a request."""

    front_door: FrontDoor
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    flow: FlowControl

    def head_start(self, status: int) -> bytes:
        """The status line, and the headers that the server adds to every answer."""

    def answered(self, request: "SplicedRequest") -> None:
        """The answer is whole: the next one's turn has come."""

    def given_up(self, request: "SplicedRequest") -> None:
        """The request is over without a whole answer, and the connection with it."""


class SplicedRequest:
    """Stands where uvicorn has a `RequestResponseCycle`, and is the sink of its journey.

    Args:
        line: its connection.
        path: a hot route.
        target: as the client wrote it.
        headers: names in lower case.
        keep_alive: the connection may be used on.
        close_delimited: the client knows no chunks (HTTP/1.0).
    """

    __slots__ = (
        "_arrived_s",
        "_chunked",
        "_close_delimited",
        "_headers",
        "_is_admitted",
        "_journey",
        "_line",
        "_out",
        "_path",
        "_pieces",
        "_read_off_bytes",
        "_read_off_timer",
        "_request_id",
        "_scope",
        "_size",
        "_target",
        "_waits_for",
        "keep_alive",
        "more_body",
        "response_complete",
        "response_started",
    )

    def __init__(
        self, line: Line, path: str, target: bytes, headers: Headers, *, keep_alive: bool, close_delimited: bool
    ) -> None:
        self._line = line
        self._path = path
        self._target = target
        self._headers = headers
        self._close_delimited = close_delimited
        self.keep_alive = keep_alive
        self.more_body = True
        """The request's body has not ended."""
        self.response_started = False
        self.response_complete = False
        """The request is over."""
        self._is_admitted = False
        self._pieces: list[bytes] = []
        self._size = 0
        self._read_off_timer: asyncio.TimerHandle | None = None
        """Set while a body that is refused is read off."""
        self._waits_for: asyncio.Future[object] | None = None
        self._journey: Journey | None = None
        self._chunked = False
        self._out: list[bytes] = []
        """Of the answer, what was not given to the transport yet."""

    # -- the request ---------------------------------------------------------------------------------------------------

    def add_body(self, piece: bytes) -> None:
        """Keep a piece of the body, unless it is refused; one too many is seen to when the read is over."""
        self._size += len(piece)
        if self._read_off_timer is None:
            self._pieces.append(piece)

    def advance(self) -> None:
        """Go on as far as what has come allows; for the request whose turn it is, after every read."""
        try:
            if not self._is_admitted:
                self._admit()
            if not self.response_complete and self._journey is None and self._waits_for is None:
                self._read()
        except Exception:  # noqa: BLE001 (as before an application: the client is told, and the connection ends)
            self._fail("Exception in a spliced request\n")

    def _admit(self) -> None:
        self._is_admitted = True
        door, headers = self._line.front_door, self._headers
        caller = door.guard.examine(headers)
        if isinstance(caller, ApiError):
            self._answer(door.guard.refuse(caller, self._path, headers))
            return
        self._arrived_s = door.reception.clock()
        self._request_id = request_id_of(headers)
        self._scope: Scope = {"path": self._path, "raw_path": self._target, "headers": headers}
        if caller is not None:
            self._scope[IDENTITY] = caller
        if self.more_body and declares_too_large(headers, door.reception.max_body_bytes):
            self._refuse_body()

    def _read(self) -> None:
        reception = self._line.front_door.reception
        if self._read_off_timer is not None:
            if not self.more_body or self._size > self._read_off_bytes:
                self._answer(self._too_large())
        elif self._size > reception.max_body_bytes:
            self._refuse_body()
        elif not self.more_body:
            pieces, self._pieces = self._pieces, []
            body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            taken = reception.take(self._scope, body, self._request_id, self._arrived_s)
            if isinstance(taken, WholeAnswer):
                self._answer(taken)
            else:
                self._travel(*taken)

    def _refuse_body(self) -> None:
        """Read some more of it first: closed on unread bytes, the socket would be reset under the answer."""
        self._pieces.clear()
        if self.more_body and not any(name == b"expect" for name, _ in self._headers):
            self._read_off_bytes = self._size + READ_OFF_BYTES
            self._read_off_timer = self._line.loop.call_later(READ_OFF_S, self._read_off_ends)
        else:
            self._answer(self._too_large())

    def _read_off_ends(self) -> None:
        if not self.response_complete:
            self._answer(self._too_large())

    def _too_large(self) -> WholeAnswer:
        if self._read_off_timer is not None:
            self._read_off_timer.cancel()
        reception = self._line.front_door.reception
        error = api_errors.body_too_large(reception.max_body_bytes)
        taken = reception.take(self._scope, error, self._request_id, self._arrived_s)
        assert isinstance(taken, WholeAnswer)
        return taken

    def _travel(self, request: ClientRequest, peeked: Peeked) -> None:
        wanted = self._line.front_door.reception.wanted(peeked)
        if wanted is None:
            self._begin(request, peeked)
        else:
            self._waits_for = asyncio.ensure_future(wanted)
            self._waits_for.add_done_callback(partial(self._waited, request, peeked))

    def _waited(self, request: ClientRequest, peeked: Peeked, waited: asyncio.Future[object]) -> None:
        self._waits_for = None
        if self.response_complete:
            return  # the client left meanwhile
        try:
            waited.result()
            self._begin(request, peeked)
        except (Exception, asyncio.CancelledError):  # noqa: BLE001 (see `advance`)
            self._fail("Exception before a spliced request\n")

    def _begin(self, request: ClientRequest, peeked: Peeked) -> None:
        journey = self._line.front_door.reception.journey(request, peeked, self)
        if isinstance(journey, WholeAnswer):
            self._answer(journey)
            return
        self._journey = journey
        journey.begin()

    # -- what becomes of the client ------------------------------------------------------------------------------------

    def lost(self) -> None:
        """The client is gone."""
        if self.response_complete:
            return
        self.response_complete = True
        if self._journey is not None:
            self._journey.client_gone()
        elif self._read_off_timer is not None:
            self._too_large()
        elif self._is_admitted:
            if self._waits_for is not None:
                self._waits_for.cancel()
            self._line.front_door.reception.left(self._request_id, self._arrived_s)

    def caught_up(self) -> None:
        """The client has read what was written."""
        if self._journey is not None:
            self._journey.resume()

    def cancel(self, msg: str | None = None) -> None:  # noqa: ARG002 (a task's signature)
        """End soon, like a task; a server that ends at once cancels all."""
        self._line.loop.call_soon(self._cancelled)

    def _cancelled(self) -> None:
        if not self.response_complete:
            self.lost()
            self._end_with_error()

    def _fail(self, words: str) -> None:
        _log.exception(words)
        if not self.response_complete:
            self.lost()
            self._end_with_error()

    def _end_with_error(self) -> None:
        if not self.response_started:
            self.keep_alive = False
            self.start(INTERNAL_ERROR.status, [*INTERNAL_ERROR.headers, _length_of(INTERNAL_ERROR.body)])
            self.write(INTERNAL_ERROR.body)
            self.flush()
        self._line.given_up(self)
        self._line.transport.close()

    # -- the answer ----------------------------------------------------------------------------------------------------

    def start(self, status: int, headers: Headers) -> None:
        """The head; it goes out with what follows at once."""
        self.response_started = True
        lines, has_length = [], False
        for name, value in headers:
            if name == b"content-length":
                has_length = True
            lines.append(b"%b: %b\r\n" % (name, value))
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        if not (has_length or self._close_delimited or status in BODILESS):
            self._chunked = True
            lines.append(b"transfer-encoding: chunked\r\n")
        rest = b"".join(lines)
        if rest.count(b"\n") != len(lines):
            raise ValueError("a header of the answer holds a line break")
        self._out.append(b"%b%b\r\n" % (self._line.head_start(status), rest))

    def write(self, data: bytes) -> None:
        """A piece of the body."""
        if not self._chunked:
            self._out.append(data)
        elif data:
            self._out.append(b"%x\r\n%b\r\n" % (len(data), data))

    def flush(self) -> None:
        """Give all of it to the transport; where the client does not take it, the worker is read no further."""
        line, out = self._line, self._out
        if out:
            line.transport.write(out[0] if len(out) == 1 else b"".join(out))
            out.clear()
            if line.flow.write_paused and self._journey is not None:
                self._journey.pause()

    def finish(self) -> None:
        """The answer is whole."""
        if self._chunked:
            self._out.append(b"0\r\n\r\n")
        self.flush()
        self.response_complete = True
        self._line.answered(self)

    def break_off(self) -> None:
        """Close before the end, so that the client sees it."""
        self.flush()
        self.response_complete = True
        self._line.given_up(self)
        if self._close_delimited:
            # A close would be its end.
            self._line.transport.abort()
        else:
            self._line.transport.close()

    def _answer(self, answer: WholeAnswer) -> None:
        self.start(answer.status, [*answer.headers, _length_of(answer.body)])
        self.write(answer.body)
        self.finish()


def _length_of(body: bytes) -> tuple[bytes, bytes]:
    return b"content-length", b"%d" % len(body)
