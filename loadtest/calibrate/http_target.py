"""A worker over HTTP, as a calibration asks it.

The rule of this module: the clock is read where bytes are read. Requests are plain streamed completions with
`ignore_eos`, as any client could send them.
"""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec

from gateway.core.types import Endpoint
from gateway.wire.disagg.nixl import decode_body, parse_prefill_answer, prefill_body
from loadtest.calibrate.target import Ask, AskError, Heard
from loadtest.client.answer import error_message
from loadtest.client.attempt import auth_headers
from loadtest.client.http import Collected, HttpClient, HttpError, Origin, Sink
from loadtest.client.sse import SseSplitter

COMPLETIONS = "/v1/completions"
DONE = b"[DONE]"


class _Details(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Choice(msgspec.Struct, frozen=True):
    text: str = ""


class _Event(msgspec.Struct, frozen=True):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: object = None


_EVENT = msgspec.json.Decoder(_Event)


@dataclass(slots=True)
class _Listener:
    """The sink of one streamed answer.

    Tokens are counted by the usage of each event: some have no text of their own. Where events carry no usage, each
    that has text is one.
    """

    speed: float
    sent_s: float = 0.0
    status: int = 0
    token_s: list[float] = field(default_factory=list)
    usage: _Usage | None = None
    body: bytearray = field(default_factory=bytearray)
    _splitter: SseSplitter = field(default_factory=SseSplitter)

    def on_sent(self) -> None:
        self.sent_s = self._now()

    def on_head(self, status: int, headers: Mapping[str, str]) -> None:
        del headers
        self.status = status

    def on_body(self, data: bytes) -> None:
        if self.status != 200:
            self.body += data
            return
        now_s = self._now()
        for event in self._splitter.feed(data):
            if event != DONE:
                self._take(event, now_s)

    def heard(self, ask: Ask) -> Heard:
        """The answer once it has ended; raises AskError where it is not what was asked for."""
        if self.status != 200:
            raise AskError(f"status {self.status}: {error_message(bytes(self.body))}")
        if self.usage is None or len(self.token_s) != ask.output_tokens:
            raise AskError(f"{len(self.token_s)} of {ask.output_tokens} tokens came, usage {self.usage}")
        details = self.usage.prompt_tokens_details
        return Heard(
            sent_s=self.sent_s,
            token_s=tuple(self.token_s),
            prompt_tokens=self.usage.prompt_tokens,
            cached_tokens=None if details is None else details.cached_tokens,
        )

    def _take(self, event: bytes, now_s: float) -> None:
        told = _EVENT.decode(event)
        if told.error is not None:
            raise ValueError(error_message(event))
        if told.usage is not None:
            self.usage = told.usage
        if told.usage is None:
            self.token_s += [now_s for choice in told.choices if choice.text]
        elif told.choices:
            self.token_s += [now_s] * (told.usage.completion_tokens - len(self.token_s))

    def _now(self) -> float:
        return time.perf_counter() * self.speed


class _Page(Collected):
    """A page of the worker's."""

    def page(self, name: str) -> bytes:
        """The body of a 200; raises AskError for any other answer."""
        if self.status != 200:
            raise AskError(f"{name}: status {self.status}: {error_message(bytes(self.body))}")
        return bytes(self.body)


@contextmanager
def _as_ask_error(url: str, timeout_s: float) -> Iterator[None]:
    try:
        yield
    except (HttpError, ValueError) as error:
        raise AskError(f"{url}: {error}") from error
    except TimeoutError as error:
        raise AskError(f"{url}: no answer within {timeout_s:g} s") from error


async def read_page(url: str, name: str, *, api_key: str | None, timeout_s: float) -> bytes:
    """A page of a server, such as `/v1/models`; raises AskError."""
    collected = _Page()
    with _as_ask_error(url, timeout_s):
        client = HttpClient(Origin.of(url))
        try:
            async with asyncio.timeout(timeout_s):
                await client.send("GET", name, collected, headers=auth_headers(api_key))
        finally:
            client.close()
    return collected.page(name)


class HttpTarget:
    """A worker; `url` is the server's, without `/v1`."""

    def __init__(self, url: str, *, model: str, api_key: str | None, speed: float, timeout_s: float) -> None:
        self.url = url
        self._model = model
        self._speed = speed
        self._timeout_s = timeout_s
        self._client = HttpClient(Origin.of(self.url))
        self._headers = {"content-type": "application/json", **auth_headers(api_key)}

    async def stream(self, asks: Sequence[Ask]) -> list[Heard]:
        """Ask all at once and hear all to their ends."""
        return list(await asyncio.gather(*map(self._one, asks)))

    async def prefill(self, ask: Ask) -> bytes:
        """The prefill leg as the gateway sends it."""
        collected = _Page()
        await self._send(prefill_body(self._body(ask), Endpoint.COMPLETIONS), collected)
        params = parse_prefill_answer(collected.page("prefill leg")).kv_transfer_params
        if params is None:
            raise AskError("the prefill leg's answer has no kv_transfer_params")
        return params

    async def metrics(self) -> str:
        """The worker's /metrics page."""
        collected = _Page()
        await self._send(b"", collected, method="GET", target="/metrics")
        return collected.page("/metrics").decode()

    def close(self) -> None:
        """Cut idle connections."""
        self._client.close()

    async def _one(self, ask: Ask) -> Heard:
        listener = _Listener(self._speed)
        body = self._body(ask)
        if ask.kv_transfer_params is not None:
            body = decode_body(body, ask.kv_transfer_params)
        await self._send(body, listener)
        return listener.heard(ask)

    async def _send(self, body: bytes, sink: Sink, *, method: str = "POST", target: str = COMPLETIONS) -> None:
        with _as_ask_error(self.url, self._timeout_s):
            async with asyncio.timeout(self._timeout_s):
                await self._client.send(method, target, sink, headers=self._headers, body=body)

    def _body(self, ask: Ask) -> bytes:
        return msgspec.json.encode(
            {
                "model": self._model,
                "prompt": ask.text,
                "max_tokens": ask.output_tokens,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            }
        )
