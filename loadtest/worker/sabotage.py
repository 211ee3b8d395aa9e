"""A worker's application with its faults. Without a switch that may fire it costs a look at an empty table.

A call that gets a fault is read wholly first, to see which leg it is. Whatever the fault, the worker's own code runs
as usual or not at all, so that nothing stays behind in the engine.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from loadtest.worker.app import CUT_EXTENSION, Headers, HttpCall, Message, Receive, Scope, Send, WorkerApp
from loadtest.worker.bodies import KvTransferParams
from loadtest.worker.cuts import HangUp, cut_of
from loadtest.worker.errors import ApiError
from loadtest.worker.faults import Fault, FaultKind, FaultSwitches, Leg
from loadtest.worker.generation import ClientLeft
from loadtest.worker.pd import CLAIM_PATH
from loadtest.worker.transport import Connection

CONTROL_PREFIX = "/emulator/"
"""The emulator's own routes have no faults."""
GARBAGE = b"220 mail.example.org ESMTP ready\r\n502 command not implemented\r\n"
MISSING_BYTES = 64
"""By so much a wrong content length differs from the true one, where the answer is as long."""
T = TypeVar("T")
_PROBES = frozenset({"/health", "/ping", "/version", "/metrics", "/v1/models"})


class _Peek(msgspec.Struct):
    stream: bool | None = False
    kv_transfer_params: KvTransferParams | None = None


class _Answered(msgspec.Struct):
    kv_transfer_params: KvTransferParams | None = None


@dataclass(slots=True)
class _Call:
    """One call that gets a fault, its body already read."""

    scope: Scope
    body: bytes
    receive: Receive
    send: Send
    connection: Connection


@dataclass(slots=True)
class _Answer:
    """An answer that was caught before it left."""

    status: int | None = None
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""

    async def take(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], message["headers"]
        else:
            self.body += message.get("body", b"")


class Saboteur:
    """The ASGI application; `drop_kv` frees what a prefill leg holds under a request id."""

    def __init__(self, app: WorkerApp, switches: FaultSwitches, *, drop_kv: Callable[[str], bool]) -> None:
        self._app = app
        self._switches = switches
        self._drop_kv = drop_kv
        self._lost_kv: set[str] = set()
        self._stopping = asyncio.Event()
        self._harm = {
            FaultKind.HANG: self._hang,
            FaultKind.SLOW: self._slow,
            FaultKind.STATUS: self._status,
            FaultKind.DIE_BEFORE_FIRST_BYTE: self._die,
            FaultKind.DIE_AFTER_TOKENS: self._cut,
            FaultKind.DIE_BETWEEN_LEGS: self._lose_kv,
            FaultKind.WRONG_JSON: self._wrong_json,
            FaultKind.NO_KV_PARAMS: self._no_kv_params,
            FaultKind.DRIP: self._drip,
            FaultKind.WRONG_CONTENT_LENGTH: self._wrong_length,
            FaultKind.SHORT_CONTENT_LENGTH: self._wrong_length,
            FaultKind.ERROR_EVENT: self._cut,
            FaultKind.GARBAGE: self._garbage,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one call."""
        if scope["path"].startswith(CONTROL_PREFIX):
            claims = self._lost_kv and scope["path"] == CLAIM_PATH
            await (self._claim if claims else self._app)(scope, receive, send)
        elif self._switches.may_fire():
            with suppress(ClientLeft):
                await self._take_up(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def break_off(self) -> None:
        """End the calls that are made to wait: the server stops."""
        self._stopping.set()

    async def _take_up(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await HttpCall(scope, receive, send).body()
        leg, stream = _what_is(scope["path"], body)
        fault = self._switches.take(leg, stream=stream)
        if fault is None:
            await self._app(scope, _again(body, receive), send)
            return
        call = _Call(scope, body, receive, send, Connection(scope, receive))
        try:
            await self._harm[fault.kind](fault, call)
        except HangUp:
            await call.connection.hang_up()

    async def _claim(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A claim on KV that was lost between the legs ends its connection; others are served."""
        body = await HttpCall(scope, receive, send).body()
        asked = _decoded(body, dict[str, object])
        if asked is not None and asked.get("request_id") in self._lost_kv:
            await Connection(scope, receive).hang_up()
        else:
            await self._app(scope, _again(body, receive), send)

    async def _serve(self, call: _Call, send: Send) -> None:
        await self._app(call.scope, _again(call.body, call.receive), send)

    async def _caught(self, call: _Call) -> _Answer:
        answer = _Answer()
        await self._serve(call, answer.take)
        if answer.status is None:
            raise ClientLeft
        return answer

    async def _hang(self, fault: Fault, call: _Call) -> None:  # noqa: ARG002 - one signature for all
        await self._let_wait(call, None)

    async def _slow(self, fault: Fault, call: _Call) -> None:
        await self._let_wait(call, fault.delay_s)
        await self._serve(call, call.send)

    async def _let_wait(self, call: _Call, delay_s: float | None) -> None:
        """Let a call wait, without end where `delay_s` is None; raises HangUp once its client leaves or we stop."""
        ends = {asyncio.ensure_future(_until_left(call.receive)), asyncio.ensure_future(self._stopping.wait())}
        try:
            ended, _ = await asyncio.wait(ends, timeout=delay_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()
        if ended:
            raise HangUp

    async def _status(self, fault: Fault, call: _Call) -> None:
        retry = [] if fault.retry_after_s is None else [(b"retry-after", b"%d" % fault.retry_after_s)]
        error = ApiError.of_status(fault.status)
        await HttpCall(call.scope, call.receive, call.send).reply(fault.status, error.body(), headers=retry)

    async def _die(self, fault: Fault, call: _Call) -> None:  # noqa: ARG002 - one signature for all
        raise HangUp

    async def _cut(self, fault: Fault, call: _Call) -> None:
        call.scope["extensions"][CUT_EXTENSION] = cut_of(fault)
        await self._serve(call, call.send)

    async def _lose_kv(self, fault: Fault, call: _Call) -> None:  # noqa: ARG002 - one signature for all
        answer = await self._caught(call)
        request_id = self._drop_kv_of(answer)
        if request_id is not None:
            self._lost_kv.add(request_id)
        await _send(call, answer)

    async def _no_kv_params(self, fault: Fault, call: _Call) -> None:  # noqa: ARG002 - one signature for all
        answer = await self._caught(call)
        if self._drop_kv_of(answer) is not None:
            document = msgspec.json.decode(answer.body) | {"kv_transfer_params": None}
            answer.body = msgspec.json.encode(document)
        await _send(call, answer)

    def _drop_kv_of(self, answer: _Answer) -> str | None:
        answered = _decoded(answer.body, _Answered)
        params = None if answered is None else answered.kv_transfer_params
        request_id = None if params is None else params.remote_request_id
        if request_id is not None:
            self._drop_kv(request_id)
        return request_id

    async def _wrong_json(self, fault: Fault, call: _Call) -> None:  # noqa: ARG002 - one signature for all
        answer = await self._caught(call)
        answer.body = answer.body[: len(answer.body) // 2]
        await _send(call, answer)

    async def _drip(self, fault: Fault, call: _Call) -> None:
        async def send(message: Message) -> None:
            data: bytes = message.get("body", b"")
            if not data:
                await call.send(message)
            for place in range(len(data)):
                await asyncio.sleep(fault.delay_s)
                if call.connection.closing:
                    raise ClientLeft
                more = message.get("more_body", False) or place + 1 < len(data)
                part = {"type": "http.response.body", "body": data[place : place + 1], "more_body": more}
                await call.send(part)

        await self._serve(call, send)

    async def _wrong_length(self, fault: Fault, call: _Call) -> None:
        answer = await self._caught(call)
        more = fault.kind is FaultKind.WRONG_CONTENT_LENGTH
        length = len(answer.body) + MISSING_BYTES if more else max(0, len(answer.body) - MISSING_BYTES)
        call.connection.write(_raw_head(answer, length) + answer.body)
        raise HangUp

    async def _garbage(self, fault: Fault, call: _Call) -> None:  # noqa: ARG002 - one signature for all
        call.connection.write(GARBAGE)
        raise HangUp


def _what_is(path: str, body: bytes) -> tuple[Leg, bool]:
    if path in _PROBES:
        return Leg.PROBE, False
    peek = _decoded(body, _Peek) or _Peek()
    params = peek.kv_transfer_params or KvTransferParams()
    leg = Leg.PREFILL if params.do_remote_decode else Leg.DECODE if params.do_remote_prefill else Leg.PLAIN
    return leg, bool(peek.stream)


def _decoded(raw: bytes, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(raw, type=kind, strict=False)
    except msgspec.MsgspecError:
        return None


async def _until_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _again(body: bytes, receive: Receive) -> Receive:
    """`receive`, with the body that was taken from it in front."""
    unread: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return unread.pop() if unread else await receive()

    return receive_again


async def _send(call: _Call, answer: _Answer) -> None:
    headers = [*_without_length(answer.headers), (b"content-length", b"%d" % len(answer.body))]
    await call.send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await call.send({"type": "http.response.body", "body": answer.body})


def _raw_head(answer: _Answer, length: int) -> bytes:
    lines = [b"%b: %b\r\n" % header for header in _without_length(answer.headers)]
    return b"HTTP/1.1 %d \r\n%bcontent-length: %d\r\n\r\n" % (answer.status or 200, b"".join(lines), length)


def _without_length(headers: Headers) -> Headers:
    return [(name, value) for name, value in headers if name != b"content-length"]
