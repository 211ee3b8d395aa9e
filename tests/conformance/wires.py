"""Connections without sockets: a client's that reads when it is told to, and workers' that do what a script says.

Both turn as the event loop turns and never wait for a clock.
"""

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from gateway.upstream.origin import Origin
from tests.recordings.exchanges import Message, parse, parse_head

HIGH_WATER_BYTES = 64 * 1024
"""As much as asyncio's transports hold before they say so."""
ANSWER_BYTES = b'{"object":"chat.completion","choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}'


class Wire(asyncio.Transport):
    """One end of a connection: what the gateway's side of it does, and what was written to it."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.protocol = protocol
        self.taken = bytearray()
        """What the other side has read."""
        self.waiting = bytearray()
        """What it has not."""
        self.most_waiting_bytes = 0
        self.reads = True
        """The other side reads as it comes."""
        self.over = False
        """The connection is gone."""
        self.aborted = False
        self.writes = 0
        self._inbox: deque[bytes | None] = deque()
        self._is_paused = False
        self._holds_writer = False
        self._is_closing = False
        self._loop = asyncio.get_running_loop()

    # -- the other side --------------------------------------------------------------------------------------------

    def send(self, *pieces: bytes) -> None:
        """Bytes arrive, each piece by a read of its own."""
        self._inbox.extend(pieces)
        self._deliver()

    def leave(self) -> None:
        """The other side closes; noticed like bytes, in their order."""
        self._inbox.append(None)
        self._deliver()

    def reset(self) -> None:
        """The other side is gone at once, and nobody can read what it had not."""
        self._is_closing = True
        self._loop.call_soon(self._lose, ConnectionResetError("reset"))

    def read_on(self) -> None:
        """The other side takes all that waits, and all that comes."""
        self.reads = True
        self._drain()

    # -- the gateway's side ----------------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.over, "written after the end"
        if self._is_closing:
            return
        self.writes += 1
        self.waiting += data
        if self.reads:
            self._drain()
        self.most_waiting_bytes = max(self.most_waiting_bytes, len(self.waiting))
        if len(self.waiting) > HIGH_WATER_BYTES and not self._holds_writer:
            self._holds_writer = True
            self.protocol.pause_writing()

    def writelines(self, pieces: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(pieces))

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            if not self.waiting:
                self._loop.call_soon(self._lose, None)

    def abort(self) -> None:
        self.aborted = self._is_closing = True
        self.waiting.clear()
        self._loop.call_soon(self._lose, None)

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        self._is_paused = False
        self._loop.call_soon(self._deliver)

    @property
    def is_paused(self) -> bool:
        return self._is_paused

    def get_write_buffer_size(self) -> int:
        return len(self.waiting)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name in {"peername", "sockname"} else default

    # -- details ---------------------------------------------------------------------------------------------------

    def _deliver(self) -> None:
        while self._inbox and not self._is_paused and not self._is_closing:
            piece = self._inbox.popleft()
            if piece is None:
                self.protocol.eof_received()
                self.close()
            elif piece:
                self.protocol.data_received(piece)

    def _drain(self) -> None:
        self.taken += self.waiting
        self.waiting.clear()
        if self._holds_writer:
            self._holds_writer = False
            self.protocol.resume_writing()
        if self._is_closing:
            self._loop.call_soon(self._lose, None)

    def _lose(self, error: Exception | None) -> None:
        if not self.over:
            self.over = True
            self.protocol.connection_lost(error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What a worker answers, by reads."""

    reads: Iterable[bytes]
    closes: bool = False
    """It closes behind the last."""


Script = Callable[[Message], Said | None]
"""What a worker says to a request; None says nothing."""


def answer(body: bytes, *headers: bytes, status: bytes = b"200 OK", kind: bytes = b"application/json") -> bytes:
    """An answer with a length."""
    lines = [b"HTTP/1.1 " + status, b"content-type: " + kind, *headers, b"content-length: %d" % len(body)]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def plain(request: Message) -> Said:
    """What most workers here say: the nonce of the request, in JSON."""
    return Said(reads=[answer(ANSWER_BYTES, b"x-nonce: " + (request.header(b"x-nonce") or b""))])


@dataclass(slots=True)
class Worker:
    """All connections to one worker. `script` may be changed at any time."""

    script: Script = plain
    asked: list[Message] = field(default_factory=list)
    wires: list["WorkerWire"] = field(default_factory=list)
    by: list["WorkerWire"] = field(default_factory=list)
    """The connection by which each of `asked` came."""
    hold: bool = False
    """Requests are kept, until `release`."""
    _held: list[Callable[[], None]] = field(default_factory=list)

    async def connect(self, protocol: asyncio.Protocol, origin: Origin) -> None:
        """Stands for `gateway.upstream.connection.open_tcp`."""
        wire = WorkerWire(protocol, self)
        self.wires.append(wire)
        protocol.connection_made(wire)

    def reset(self) -> None:
        """Forget what was, for the next case."""
        self.script, self.hold = plain, False
        self.asked.clear()
        self.by.clear()
        self._held.clear()
        self.wires[:] = [wire for wire in self.wires if not wire.over]

    def release(self) -> None:
        """Answer what was held."""
        held, self._held[:] = list(self._held), []
        for say in held:
            say()

    def hear(self, wire: "WorkerWire", request: Message) -> None:
        """A whole request has come."""
        self.asked.append(request)
        self.by.append(wire)

        def say() -> None:
            said = self.script(request)
            if said is not None and not wire.over:
                wire.say(said)

        if self.hold:
            self._held.append(say)
        else:
            say()


class WorkerWire(Wire):
    """One connection to a worker."""

    def __init__(self, protocol: asyncio.Protocol, worker: Worker) -> None:
        super().__init__(protocol)
        self._worker = worker
        self._saying: Iterator[bytes] = iter(())
        self._closes = False
        self._is_going_on = False
        self.said_bytes = 0
        """Of the present answer."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        super().write(data)
        while (request := self._whole()) is not None:
            self._worker.hear(self, request)

    def say(self, said: Said) -> None:
        """Answer, one read in a turn of the loop, as long as somebody reads."""
        self._saying, self._closes, self.said_bytes = iter(said.reads), said.closes, 0
        self._soon()

    def resume_reading(self) -> None:
        super().resume_reading()
        self._soon()

    def _soon(self) -> None:
        if not self._is_going_on:
            self._is_going_on = True
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._is_going_on = False
        if self.over or self.is_closing() or self.is_paused:
            return
        piece = next(self._saying, None)
        if piece is not None:
            self.said_bytes += len(piece)
            self._soon()
            self.send(piece)
        elif self._closes:
            self.leave()

    def _whole(self) -> Message | None:
        head, found, rest = bytes(self.taken).partition(b"\r\n\r\n")
        if not found:
            return None
        length = int(parse_head(head + found).header(b"content-length") or b"0")
        if len(rest) < length:
            return None
        size = len(head) + len(found) + length
        request = parse(bytes(self.taken[:size]))
        del self.taken[:size]
        return request


# -- cuts ------------------------------------------------------------------------------------------------------------


def halves(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The data in two pieces, cut at every place in turn."""
    return ((data[:at], data[at:]) for at in range(1, len(data)))


def singles(data: bytes) -> list[bytes]:
    """Byte by byte."""
    return [bytes([byte]) for byte in data]


def chunks(*pieces: bytes, extension: bytes = b"", trailers: bytes = b"") -> bytes:
    """A chunked body."""
    framed = [b"%x%b\r\n%b\r\n" % (len(piece), extension, piece) for piece in pieces]
    return b"".join((*framed, b"0", extension, b"\r\n", trailers, b"\r\n"))


def endless(piece: bytes, total_bytes: int) -> Iterator[bytes]:
    """So many bytes, piece by piece."""
    return itertools.repeat(piece, total_bytes // len(piece))
