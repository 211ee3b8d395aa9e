"""Workers in this process that answer by a script and see when they are left.

The rule of this module: what a call is about is said by the first word of its prompt, its mark. A call ends once:
answered, or lost with its connection; both are noted on the caller's own clock.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import cast

import httptools
import msgspec

from gateway.core.types import Role
from loadtest.plane.building import hand_over_tail
from loadtest.plane.proxies import Worker

PREFILL_S = 0.3
FIRST_EVENT_S = 0.2
EVENT_S = 0.05
EVENTS = 16
WHOLE_S = FIRST_EVENT_S + EVENTS * EVENT_S
"""How long the decode leg takes, streamed or not; the prefill leg comes before it."""

_USAGE = '"usage":{"prompt_tokens":100,"total_tokens":116,"completion_tokens":16}'
_HEAD = '"id":"chatcmpl-1","created":1700000000,"model":"mock"'


@dataclass(slots=True)
class Call:
    """One request that reached a worker; times by `perf_counter`."""

    role: Role
    came_s: float
    answered_s: float | None = None
    lost_s: float | None = None

    @property
    def ended_s(self) -> float | None:
        """When nothing more could come of it."""
        return self.lost_s if self.answered_s is None else self.answered_s


@dataclass(slots=True)
class Seen:
    """All calls, by their mark."""

    calls: dict[str, list[Call]] = field(default_factory=dict)

    def begin(self, mark: str, role: Role) -> Call:
        """A call came."""
        call = Call(role=role, came_s=perf_counter())
        self.calls.setdefault(mark, []).append(call)
        return call


@asynccontextmanager
async def scripted_pair(seen: Seen) -> AsyncIterator[list[Worker]]:
    """A prefill and a decode worker on loopback."""
    loop = asyncio.get_running_loop()
    lines: set[asyncio.Transport] = set()
    roles = {"prefill-0": Role.PREFILL, "decode-0": Role.DECODE}
    servers = [
        await loop.create_server(partial(_Connection, role, seen, lines), "127.0.0.1", 0, backlog=1024)
        for role in roles.values()
    ]
    try:
        yield [
            Worker(name=name, role=role, port=server.sockets[0].getsockname()[1])
            for (name, role), server in zip(roles.items(), servers, strict=True)
        ]
    finally:
        for server in servers:
            server.close()
        for line in list(lines):
            line.abort()
        await asyncio.sleep(0)  # in which they end


class _Message(msgspec.Struct):
    content: str


class _Asked(msgspec.Struct):
    messages: list[_Message]
    stream: bool = False


class _Connection(asyncio.Protocol):
    """One connection from the gateway."""

    def __init__(self, role: Role, seen: Seen, lines: set[asyncio.Transport]) -> None:
        self._role = role
        self._seen = seen
        self._lines = lines
        self._parser = httptools.HttpRequestParser(self)
        self._body = bytearray()
        self._call: Call | None = None
        self._timer: asyncio.TimerHandle | None = None

    # asyncio's and httptools' callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._lines.add(self._transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._lines.discard(self._transport)
        if self._timer is not None:
            self._timer.cancel()
        if self._call is not None:
            self._call.lost_s = perf_counter()

    def on_message_begin(self) -> None:
        self._body.clear()

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_message_complete(self) -> None:
        if self._parser.get_method() != b"POST":
            self._transport.write(_json('{"object":"list","data":[]}'))
            return
        asked = msgspec.json.decode(self._body, type=_Asked)
        mark = asked.messages[0].content.partition(" ")[0]
        self._call = self._seen.begin(mark, self._role)
        if self._role is Role.PREFILL:
            self._later(PREFILL_S, lambda: self._answer(prefilled()))
        elif asked.stream:
            self._later(FIRST_EVENT_S, lambda: self._stream(stream_pieces(mark)))
        else:
            self._later(WHOLE_S, lambda: self._answer(whole(mark)))

    # what the script does

    def _later(self, after_s: float, then: Callable[[], None]) -> None:
        self._timer = asyncio.get_running_loop().call_later(after_s, then)

    def _answer(self, answer: bytes) -> None:
        self._transport.write(answer)
        self._end()

    def _stream(self, pieces: Iterator[bytes]) -> None:
        piece = next(pieces, None)
        if piece is None:
            self._end()
            return
        self._transport.write(piece)
        self._later(EVENT_S, lambda: self._stream(pieces))

    def _end(self) -> None:
        self._timer = None
        if self._call is not None:
            self._call.answered_s = perf_counter()
            self._call = None


def prefilled() -> bytes:
    """The answer of a prefill leg."""
    choices = '"choices":[{"index":0,"message":{"role":"assistant","content":"a"},"finish_reason":"length"}]'
    return _json(f'{{{_HEAD},"object":"chat.completion",{choices},{_USAGE}{hand_over_tail()}}}')


def whole(mark: str) -> bytes:
    """An unstreamed answer, which says the mark."""
    choices = f'"choices":[{{"index":0,"message":{{"role":"assistant","content":"{mark}"}},"finish_reason":"stop"}}]'
    return _json(f'{{{_HEAD},"object":"chat.completion",{choices},{_USAGE}}}')


def stream_pieces(mark: str) -> Iterator[bytes]:
    """A streamed answer, event by event, each of which says the mark; the last piece is its end."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    for number in range(EVENTS):
        choices = f'"choices":[{{"index":0,"delta":{{"content":"{mark} "}},"finish_reason":null}}]'
        yield (b"" if number else head) + _chunk(f'{{{_HEAD},"object":"chat.completion.chunk",{choices}}}')
    usage = _chunk(f'{{{_HEAD},"object":"chat.completion.chunk","choices":[],{_USAGE}}}')
    yield usage + _chunk("[DONE]") + b"0\r\n\r\n"


def _chunk(data: str) -> bytes:
    event = f"data: {data}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(event), event)


def _json(body: str) -> bytes:
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return (head + body).encode()
