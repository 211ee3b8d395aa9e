"""Request heads over a real socket: large ones pass, endless ones are refused and cost nothing."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
import uvicorn

from gateway.api.asgi import Receive, Scope, Send
from gateway.api.protocol import MAX_HEAD_BYTES, BoundedHeads

pytestmark = pytest.mark.e2e

PATIENCE_S = 20.0


async def _answer(scope: Scope, receive: Receive, send: Send) -> None:
    del scope
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture
async def port() -> AsyncIterator[int]:
    config = uvicorn.Config(_answer, host="127.0.0.1", port=0, http=BoundedHeads, lifespan="off", log_config=None)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server._serve())
    while not server.started:  # noqa: ASYNC110 (uvicorn has no event for it)
        await asyncio.sleep(0.01)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    await serving


async def exchange(port: int, *pieces: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for piece in pieces:
        writer.write(piece)
        await asyncio.sleep(0)
    try:
        async with asyncio.timeout(PATIENCE_S):
            answer = await reader.read(4096)
    except ConnectionResetError:
        answer = b""
    writer.close()
    return answer


async def test_64_kb_of_headers_pass(port: int) -> None:
    headers = b"".join(b"x-%04d: %s\r\n" % (number, b"v" * 110) for number in range(540))
    assert 64_000 < len(headers) <= 64 * 1024
    assert (await exchange(port, b"GET / HTTP/1.1\r\nhost: a\r\n", headers, b"\r\n")).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("filler", [b"v", b"x: y\r\n"], ids=["one long header", "many headers"])
async def test_a_head_without_end_is_refused(port: int, filler: bytes) -> None:
    endless = filler * (MAX_HEAD_BYTES // len(filler) + 1)
    answer = await exchange(port, b"GET / HTTP/1.1\r\nhost: a\r\nx-long: ", endless)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 431 ")
    assert b"content-length: %d" % len(body) in head
    assert json.loads(body)["error"]["code"] == "head_too_large"


async def test_a_large_body_is_no_head(port: int) -> None:
    body = b"x" * (4 * MAX_HEAD_BYTES)
    head = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % len(body)
    assert (await exchange(port, head, body)).startswith(b"HTTP/1.1 200")
