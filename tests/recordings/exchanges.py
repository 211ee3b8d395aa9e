"""Recorded pairs of request and response: their exact bytes, and what they say."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from gateway.wire.dialects import ROUTES

HTTP = Path(os.environ.get("TIDEGATE_SHARED", Path(__file__).parents[3] / "shared")) / "fixtures" / "http"
Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One HTTP/1.1 message, header names in lower case, the body without its chunked framing."""

    start: bytes
    headers: Headers
    body: bytes

    @property
    def status(self) -> int:
        return int(self.start.split(b" ")[1])

    def header(self, name: bytes) -> bytes | None:
        return next((value for key, value in self.headers if key == name), None)


def parse_head(head: bytes) -> Message:
    """Read a head; the body is not there yet."""
    start, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    pairs = [line.partition(b":") for line in lines]
    return Message(start=start, headers=[(name.lower(), value.strip()) for name, _, value in pairs], body=b"")


def parse(raw: bytes) -> Message:
    """Read a whole message.

    Raises:
        ValueError: it is not whole.
    """
    head, found, body = raw.partition(b"\r\n\r\n")
    if not found:
        raise ValueError("the head has no end")
    message = parse_head(head)
    if message.header(b"transfer-encoding") == b"chunked":
        return replace(message, body=b"".join(_chunks(body)))
    length = message.header(b"content-length")
    if length is not None and int(length) != len(body):
        raise ValueError(f"{len(body)} bytes of body and a content-length of {int(length)}")
    return replace(message, body=body)


def _chunks(data: bytes) -> Iterator[bytes]:
    while True:
        size_line, found, data = data.partition(b"\r\n")
        if not found:
            raise ValueError("the chunked body has no end")
        size = int(size_line, 16)
        if data[size : size + 2] != b"\r\n":
            raise ValueError("a chunk is not whole")
        if size == 0:
            return
        yield data[:size]
        data = data[size + 2 :]


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """A recorded request and the engine's answer to it."""

    name: str
    request_bytes: bytes
    response_bytes: bytes

    @cached_property
    def request(self) -> Message:
        return parse(self.request_bytes)

    @cached_property
    def response(self) -> Message:
        return parse(self.response_bytes)

    @property
    def method(self) -> str:
        return self.request.start.split(b" ")[0].decode()

    @property
    def path(self) -> str:
        return self.request.start.split(b" ")[1].decode()

    @property
    def is_routed(self) -> bool:
        """Whether the gateway has a worker answer such requests."""
        return self.method == "POST" and self.path in ROUTES

    @property
    def is_stream(self) -> bool:
        """Whether the engine answered with events."""
        return (self.response.header(b"content-type") or b"").startswith(b"text/event-stream")


def exchange(folder: str, name: str) -> Exchange:
    """One recorded pair; the test skips where it is absent."""
    path = HTTP / folder / f"{name}.request.bin"
    if not path.exists():
        pytest.skip(f"the recording http/{folder}/{name} is absent")
    return _read(path)


def recorded(folder: str, keep: Callable[[Exchange], bool] = lambda _: True) -> list[Any]:
    """The pairs of a folder as parameters by name; one that skips where there are none."""
    pairs = [_read(path) for path in sorted((HTTP / folder).glob("*.request.bin"))]
    if not pairs:
        absent = pytest.mark.skip(reason=f"the recordings of real engines (shared/fixtures/http/{folder}) are absent")
        return [pytest.param(None, id="absent", marks=absent)]
    return [pytest.param(pair, id=pair.name) for pair in pairs if keep(pair)]


def _read(path: Path) -> Exchange:
    name = path.name.removesuffix(".request.bin")
    return Exchange(
        name=name,
        request_bytes=path.read_bytes(),
        response_bytes=path.with_name(f"{name}.response.bin").read_bytes(),
    )
