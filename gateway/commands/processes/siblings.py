"""The processes of one gateway, as their parent calls them.

The rule of this module: only a process that has said that it is there is called, and none after it has ended. What a
process does not answer in time is None: it may be on its way to its end.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx

from gateway.commands.processes.identity import INNER

ANSWER_S: Final = 30.0
"""For a change, which may read a large policy bundle."""
BASE_URL: Final = "http://gateway"
_HOP: Final = frozenset({b"connection", b"content-length", b"date", b"keep-alive", b"server", b"transfer-encoding"})

Headers = Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A client's request, whole."""

    method: str
    path: str
    target: bytes
    """Path and query, as the client wrote them."""
    headers: Headers = ()
    body: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A process's answer, whole."""

    status: int
    headers: Headers
    body: bytes

    @property
    def is_well(self) -> bool:
        """It was done."""
        return self.status < 400


class Sibling:
    """One process that has said that it is there.

    Args:
        number: its own.
        path: where it listens.
        transport: instead of its socket.
    """

    def __init__(self, number: int, path: Path, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self.number = number
        self._client = httpx.AsyncClient(
            transport=transport or httpx.AsyncHTTPTransport(uds=str(path)), base_url=BASE_URL, trust_env=False
        )

    async def ask(self, call: Call) -> Answer | None:
        """Pass a client's call on, with what it brought; None where it is not answered."""
        headers = [(name, value) for name, value in call.headers if name.lower() not in _HOP | {INNER.encode()}]
        url = httpx.URL(BASE_URL).copy_with(raw_path=call.target)
        return await self._send(call.method, url, headers, call.body, ANSWER_S)

    async def order(self, method: str, path: str, within_s: float = ANSWER_S) -> Answer | None:
        """Call it in the parent's own name; None where that is not answered."""
        return await self._send(method, httpx.URL(BASE_URL + path), [(INNER.encode(), b"1")], b"", within_s)

    async def aclose(self) -> None:
        """Call it no more."""
        await self._client.aclose()

    async def _send(self, method: str, url: httpx.URL, headers: Headers, body: bytes, within_s: float) -> Answer | None:
        request = httpx.Request(method, url, headers=[*headers], content=body)
        try:
            async with asyncio.timeout(within_s):
                response = await self._client.send(request)
        except (TimeoutError, httpx.HTTPError):
            return None
        kept = [(name.lower(), value) for name, value in response.headers.raw if name.lower() not in _HOP]
        return Answer(status=response.status_code, headers=kept, body=response.content)


class Siblings:
    """Those that are there."""

    def __init__(self) -> None:
        self._present: dict[int, Sibling] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def __iter__(self) -> Iterator[Sibling]:
        """By their numbers."""
        return iter([self._present[number] for number in sorted(self._present)])

    def __contains__(self, sibling: Sibling) -> bool:
        return self._present.get(sibling.number) is sibling

    def add(self, sibling: Sibling) -> None:
        """One has said that it is there."""
        self.ended(sibling.number)
        self._present[sibling.number] = sibling

    def ended(self, number: int) -> None:
        """One has ended."""
        gone = self._present.pop(number, None)
        if gone is not None:
            task = asyncio.get_running_loop().create_task(gone.aclose())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
