"""A wire to a worker that is listened in on: what the gateway sends, as the bytes that it sends."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from loadtest.worker.server import BoundWorker

_HEAD = re.compile(rb"POST (\S+) HTTP/1\.1\r\n(.*?)\r\n\r\n", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One request."""

    target: str
    headers: list[tuple[str, str]]
    body: Any

    def values(self, name: str) -> list[str]:
        """All values of a header."""
        return [value for key, value in self.headers if key.lower() == name]


@dataclass(slots=True)
class Tap:
    """The requests to one worker; each came on a connection of its own or behind others."""

    port: int = 0
    _streams: list[bytearray] = field(default_factory=list)

    @property
    def host_port(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.host_port}"

    def requests(self) -> list[Sent]:
        """Every POST, in order of arrival within its connection."""
        return [_read(stream, found) for stream in self._streams for found in _HEAD.finditer(stream)]

    async def join(self, worker: BoundWorker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection, until either side ends it."""
        kept = bytearray()
        self._streams.append(kept)
        try:
            there_reader, there_writer = await asyncio.open_connection(worker.host, worker.port)
        except OSError:
            writer.close()
            return
        ways = {
            asyncio.create_task(_carry(reader, there_writer, kept)),
            asyncio.create_task(_carry(there_reader, writer, bytearray())),
        }
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for end in (writer, there_writer):
            end.close()
        await asyncio.wait(ways)


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kept: bytearray) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65536):
            kept += data
            writer.write(data)


def _read(stream: bytearray, found: re.Match[bytes]) -> Sent:
    lines = [line.partition(": ") for line in found[2].decode("latin-1").split("\r\n")]
    headers = [(name, value) for name, _, value in lines]
    length = next(int(value) for name, value in headers if name == "content-length")
    body = bytes(stream[found.end() : found.end() + length])
    return Sent(target=found[1].decode(), headers=headers, body=json.loads(body))


@asynccontextmanager
async def tapped(worker: BoundWorker) -> AsyncIterator[Tap]:
    """Listen before a worker."""
    tap = Tap()
    server = await asyncio.start_server(lambda reader, writer: tap.join(worker, reader, writer), "127.0.0.1", 0)
    tap.port = server.sockets[0].getsockname()[1]
    try:
        yield tap
    finally:
        server.close()
