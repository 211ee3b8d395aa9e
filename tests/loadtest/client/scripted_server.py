"""A loopback HTTP server whose every answer is written by the test, byte for byte."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

Answer = AsyncIterator[bytes | None]
"""Pieces of the answer, each its own write; None closes the connection."""


@dataclass(frozen=True)
class Seen:
    """A request as it came, and on which connection (counted from 0)."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    connection: int

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class ScriptedServer:
    """Serves on a free port of 127.0.0.1 while it is entered."""

    def __init__(self, script: Callable[[Seen], Answer]) -> None:
        self.script = script
        self.seen: list[Seen] = []
        self.connections = 0
        self.hung_up = asyncio.Event()
        """Set when the first connection ends."""
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        self._tasks: set[asyncio.Task[None]] = set()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        number, self.connections = self.connections, self.connections + 1
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                while await self._answer(await _read(reader, number), writer):
                    pass
        finally:
            self.hung_up.set()
            self._tasks.discard(task)
            writer.transport.abort() if task.cancelling() else writer.close()

    async def _answer(self, request: Seen, writer: asyncio.StreamWriter) -> bool:
        self.seen.append(request)
        async for piece in self.script(request):
            if piece is None:
                return False
            writer.write(piece)
            await writer.drain()
        return True


async def _read(reader: asyncio.StreamReader, connection: int) -> Seen:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.removesuffix("\r\n\r\n").split("\r\n")
    method, target, _ = first.split(" ")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Seen(method=method, target=target, headers=headers, body=body, connection=connection)


def whole(body: bytes, status: int = 200, *headers: str) -> bytes:
    """An answer with Content-Length."""
    lines = (f"HTTP/1.1 {status} X", f"content-length: {len(body)}", *headers, "", "")
    return "\r\n".join(lines).encode() + body


def stream_head(*headers: str) -> bytes:
    """The head of a chunked event stream."""
    lines = ("HTTP/1.1 200 OK", "content-type: text/event-stream", "transfer-encoding: chunked", *headers, "", "")
    return "\r\n".join(lines).encode()


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body; an empty one ends it."""
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def event(payload: object) -> bytes:
    """One server-sent event."""
    data = payload if isinstance(payload, str) else json.dumps(payload)
    return f"data: {data}\n\n".encode()


def content(text: str = "cat ") -> bytes:
    return event({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]})


def role() -> bytes:
    return event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int | None = None) -> bytes:
    details = None if cached_tokens is None else {"cached_tokens": cached_tokens}
    return event(
        {
            "choices": [],
            "usage": {
                "prompt_tokens": prompt_tokens,
                "completion_tokens": completion_tokens,
                "prompt_tokens_details": details,
            },
        }
    )


def finish() -> bytes:
    return event({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})


DONE = event("[DONE]")


async def replay(pieces: Iterable[bytes | None]) -> Answer:
    """Writes the pieces one after another."""
    for piece in pieces:
        yield piece


def completion(request: Seen, *headers: str) -> Answer:
    """What a worker with a token of four bytes answers: as many tokens as asked for, then the usage."""
    tokens = request.json["max_tokens"]
    text = request.json["messages"][0]["content"]
    events = (role(), *[content()] * tokens, finish(), usage(len(text) // 4, tokens, 0), DONE)
    return replay((stream_head(*headers), *(chunk(data) for data in events), chunk(b"")))
