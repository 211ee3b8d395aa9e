"""The hot routes at the level of the connection: no ASGI, no task, no queue between a client and a worker.

The rule of this module: it takes the requests that it knows wholly and declines all else, request by request. What it
declines goes the way of every uvicorn server on the same connection, in its turn.
"""

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, cast

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle
from uvicorn.server import ServerState

from gateway.api.protocol import BoundedHeads
from gateway.api.spliced import FrontDoor, SplicedRequest
from gateway.upstream.alarm import Alarm
from gateway.wire.dialects import ROUTES

TARGETS: Mapping[bytes, str] = MappingProxyType({path.encode(): path for path in ROUTES})
"""Request targets that are taken. One with a query or an escape is declined."""
VERSIONS = frozenset({"1.0", "1.1"})


class Splice(BoundedHeads):
    """One client's connection. `spliced_into` makes the class that uvicorn is given."""

    front_door: FrontDoor
    head_starts: "HeadStarts"

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._coming: SplicedRequest | None = None
        """Whose body is being read."""
        self._turn: SplicedRequest | None = None
        """That is being answered."""
        self._is_advancing = False
        self._idle = Alarm(self.loop, self.timeout_keep_alive_handler)
        """One timer for all of a connection's pauses; uvicorn makes one for each."""

    # -- what the transport tells --------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Parse, then answer: no answer is begun inside a callback of the parser, which would take every error for
        the client's."""
        super().data_received(data)
        if self._turn is not None and not self.transport.is_closing():
            self._advance()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop what was on its way for this client."""
        self._idle.close()
        turn, self._turn = self._turn, None
        # A spliced one has no task to wake, whom uvicorn would look for.
        if isinstance(self.cycle, SplicedRequest):
            self.cycle = None  # type: ignore[assignment]
        if turn is not None:
            self._current = None
        super().connection_lost(exc)
        if turn is not None:
            self.tasks.discard(turn)
            turn.lost()

    def resume_writing(self) -> None:
        """The client has read on."""
        super().resume_writing()
        if self._turn is not None:
            self._turn.caught_up()

    # -- what the parser tells -----------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A head begins; what ASGI wants to know of it is gathered where it is declined."""
        self._begin_head()
        self._coming = None
        self.url = b""
        self.expect_100_continue = False
        self.headers = []

    def on_headers_complete(self) -> None:
        """Take the request, or leave it to uvicorn."""
        path, parser = TARGETS.get(self.url), self.parser
        if (
            path is None
            or parser.get_method() != b"POST"
            or self.expect_100_continue
            or parser.should_upgrade()
            or (version := parser.get_http_version()) not in VERSIONS
            or self._is_crowded()
        ):
            self._decline()
            return
        self._in_head = False
        is_old = version == "1.0"
        request = SplicedRequest(
            self,
            path,
            self.url,
            self.headers,
            keep_alive=not is_old and parser.should_keep_alive(),
            close_delimited=is_old,
        )
        # Trailers are told of like headers; the request is not to have them as such.
        self.headers = []
        former, cycle = self.cycle, cast("RequestResponseCycle", request)
        self._coming, self.cycle = request, cycle
        if former is None or former.response_complete:  # type: ignore[redundant-expr]
            self._begin_turn(request)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, self.app))

    def on_body(self, body: bytes) -> None:
        """Some of a body."""
        request = self._coming
        if request is None:
            super().on_body(body)
            return
        self._got_on = True
        if not request.response_complete:
            request.add_body(body)

    def on_message_complete(self) -> None:
        """The body is whole."""
        if self._coming is None:
            super().on_message_complete()
        else:
            self._coming.more_body = False

    def _is_crowded(self) -> bool:
        limit = self.limit_concurrency
        return limit is not None and (len(self.connections) >= limit or len(self.tasks) >= limit)

    def _decline(self) -> None:
        """Do what uvicorn does at the begin of a head, then what it does at its end."""
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        self.headers = self.scope["headers"] = headers
        super().on_headers_complete()

    # -- whose turn it is ----------------------------------------------------------------------------------------------

    def _begin_turn(self, request: SplicedRequest) -> None:
        self._turn = request
        self._current = cast("RequestResponseCycle", request)
        # Uvicorn waits for its tasks, counts them and cancels them; that is all it does with them.
        self.tasks.add(request)  # type: ignore[arg-type]

    def _advance(self) -> None:
        """Go on with whose turn it is, and with those after it, as far as they are answered at once."""
        if self._is_advancing:
            return
        self._is_advancing = True
        try:
            while (request := self._turn) is not None:
                request.advance()
                if self._turn is request:
                    return
        finally:
            self._is_advancing = False

    def answered(self, request: SplicedRequest) -> None:
        """The answer is whole."""
        self._turn = None
        self.tasks.discard(request)
        if not request.keep_alive:
            self.transport.close()
        self.on_response_complete()

    def given_up(self, request: SplicedRequest) -> None:
        """The request is over without a whole answer."""
        self._turn = None
        self.tasks.discard(request)

    def on_response_complete(self) -> None:
        """Begin with the next request, or wait for one; an answer of either kind has ended."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if not self.pipeline:
            self._idle.set(self.timeout_keep_alive)
            return
        cycle, app = self.pipeline.pop()
        if isinstance(cycle, SplicedRequest):
            self._begin_turn(cycle)
            self._advance()
        else:
            self._start_asgi_task(cycle, app)

    def _unset_keepalive_if_required(self) -> None:
        self._idle.clear()

    # -- heads of answers ----------------------------------------------------------------------------------------------

    def head_start(self, status: int) -> bytes:
        """The status line, and the headers that the server adds to every answer."""
        return self.head_starts.of(status, self.server_state.default_headers)


class HeadStarts:
    """How heads of answers begin; made once for each status and every list of headers, which uvicorn renews each
    second."""

    def __init__(self) -> None:
        self._defaults: list[tuple[bytes, bytes]] = []
        self._starts: dict[int, bytes] = {}

    def of(self, status: int, defaults: list[tuple[bytes, bytes]]) -> bytes:
        """Status line and the server's own headers."""
        if defaults is not self._defaults:
            self._defaults = defaults
            self._starts.clear()
        start = self._starts.get(status)
        if start is None:
            lines = [b"%b: %b\r\n" % pair for pair in defaults]
            start = self._starts[status] = b"".join((STATUS_LINE[status], *lines))
        return start


def spliced_into(front_door: FrontDoor) -> type[Splice]:
    """The protocol of all clients' connections behind one front door."""
    return type("Splice", (Splice,), {"front_door": front_door, "head_starts": HeadStarts()})
