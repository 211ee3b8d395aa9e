"""Requests in turn over replicas, as a plain balancer deals them out.

The rule of this module: a replica that refuses the connection is passed over, and left out until it is taken in again.
A request that has been sent is sent to nobody else: what becomes of it is its client's to see.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from loadtest.client.answer import Answer, error_message
from loadtest.client.http import ConnectError, HttpClient, HttpError, Origin
from loadtest.client.sse import SseSplitter

TARGET = "/v1/chat/completions"
WORKER_HEADER = "x-tidegate-worker"
MAX_ERROR_BYTES = 4096


class NobodyThere(Exception):  # noqa: N818 (it says what is the case)
    """Every replica refused the connection."""


@dataclass(slots=True)
class _Place:
    name: str
    client: HttpClient
    is_in: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanged:
    """What one request came to."""

    replica: str
    sent_s: float
    ended_s: float
    worker: str | None
    error: str | None
    text: str
    """Of the answer."""


class Balancer:
    """Deals requests out.

    Args:
        urls: of the replicas, by name, in their order.
        timeout_s: of one request, to the end of its answer.
    """

    def __init__(self, urls: Mapping[str, str], *, timeout_s: float = 60.0) -> None:
        self._places = [_Place(name, HttpClient(Origin.of(url))) for name, url in urls.items()]
        self._timeout_s = timeout_s

    def take_in(self, name: str) -> None:
        """A replica serves again."""
        for place in self._places:
            if place.name == name:
                place.client.close()
                place.is_in = True

    def close(self) -> None:
        """Cut what is idle."""
        for place in self._places:
            place.client.close()

    async def send(self, number: int, headers: Mapping[str, str], body: bytes) -> Exchanged:
        """Send a request to the replica whose turn it is, or to the next one that is there.

        Args:
            number: of the request among those that are dealt out in turn.
            headers: as sent.
            body: a streamed chat completion.

        Raises:
            NobodyThere: no replica took the connection.
        """
        for place in self._in_turn(number):
            sink = _Streamed()
            error = await self._exchange(place.client, headers, body, sink)
            if isinstance(error, ConnectError) and sink.sent_s is None:
                place.is_in = False
                continue
            ended_s = time.monotonic()
            return Exchanged(
                replica=place.name,
                sent_s=ended_s if sink.sent_s is None else sink.sent_s,
                ended_s=ended_s,
                worker=sink.worker,
                error=sink.error() if error is None else f"{getattr(error, 'kind', 'timeout')}: {error}",
                text=sink.text,
            )
        raise NobodyThere

    def _in_turn(self, number: int) -> Sequence[_Place]:
        first = number % len(self._places)
        return [place for place in self._places[first:] + self._places[:first] if place.is_in]

    async def _exchange(
        self, client: HttpClient, headers: Mapping[str, str], body: bytes, sink: "_Streamed"
    ) -> HttpError | TimeoutError | None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await client.send("POST", TARGET, sink, headers=headers, body=body)
        except (HttpError, TimeoutError) as error:
            return error
        return None


class _Delta(msgspec.Struct, frozen=True):
    content: str | None = None


class _Choice(msgspec.Struct, frozen=True):
    delta: _Delta | None = None


class _Event(msgspec.Struct, frozen=True):
    choices: list[_Choice] = []


_EVENT = msgspec.json.Decoder(_Event)


class _Streamed:
    """The sink of one answer; it keeps its text, which the next turn sends again."""

    def __init__(self) -> None:
        self.sent_s: float | None = None
        self.worker: str | None = None
        self._status: int | None = None
        self._answer = Answer()
        self._splitter = SseSplitter()
        self._pieces: list[str] = []
        self._error_body = b""

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def on_sent(self) -> None:
        self.sent_s = time.monotonic()

    def on_head(self, status: int, headers: Mapping[str, str]) -> None:
        self._status, self.worker = status, headers.get(WORKER_HEADER)

    def on_body(self, data: bytes) -> None:
        if self._status != 200:
            self._error_body = (self._error_body + data)[:MAX_ERROR_BYTES]
            return
        self._answer.feed(data, time.monotonic())
        for event in self._splitter.feed(data):
            if event.startswith(b"{"):
                for choice in _EVENT.decode(event).choices:
                    self._pieces.append((choice.delta and choice.delta.content) or "")

    def error(self) -> str | None:
        """What was wrong with an answer that HTTP brought to its end."""
        if self._status != 200:
            return f"http_{self._status}: {error_message(self._error_body)}"
        if self._answer.error is not None:
            return f"stream_error: {self._answer.error}"
        return None if self._answer.complete else "truncated"
