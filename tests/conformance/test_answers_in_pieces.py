"""However an answer is cut into reads, and however its body is framed, the client gets the same answer."""

from collections.abc import Iterable

import pytest

from tests.conformance.planes import CHAT, Answer, Plane, body, request
from tests.conformance.wires import ANSWER_BYTES, Said, answer, chunks, halves, singles

pytestmark = pytest.mark.asyncio(loop_scope="session")

EVENTS = (
    b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n',
    b'data: {"choices":[{"index":0,"delta":{"content":"b"},"finish_reason":"stop"}]}\n\n',
    b"data: [DONE]\n\n",
)
SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
JSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n\r\n"
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"
STREAM = SSE + CHUNKED + chunks(*EVENTS)
CLOSE_DELIMITED = JSON + b"\r\n" + ANSWER_BYTES

ANSWERS = {
    "length": (answer(ANSWER_BYTES), False, ANSWER_BYTES),
    "chunks": (JSON + CHUNKED + chunks(ANSWER_BYTES[:30], ANSWER_BYTES[30:]), False, ANSWER_BYTES),
    "extensions and trailers": (
        JSON + CHUNKED + chunks(ANSWER_BYTES, extension=b";a=b", trailers=b"x-late: yes\r\n"),
        False,
        ANSWER_BYTES,
    ),
    "interim answers first": (INTERIM + answer(ANSWER_BYTES), False, ANSWER_BYTES),
    "until the close": (CLOSE_DELIMITED, True, ANSWER_BYTES),
    "events": (STREAM, False, b"".join(EVENTS)),
    "an error": (answer(b'{"error":{"message":"no"}}', status=b"422 Odd"), False, b'{"error":{"message":"no"}}'),
}


async def got(plane: Plane, reads: Iterable[bytes], *, closes: bool = False, stream: bool = False) -> Answer:
    plane.worker.script = lambda _: Said(reads=reads, closes=closes)
    return await plane.ask(request(body(stream=stream)))


@pytest.mark.parametrize(("raw", "closes", "content"), ANSWERS.values(), ids=ANSWERS.keys())
async def test_cut_anywhere_it_is_the_same_answer(plane: Plane, raw: bytes, closes: bool, content: bytes) -> None:
    stream = b"event-stream" in raw
    for reads in (*halves(raw), singles(raw), [raw]):
        received = await got(plane, reads, closes=closes, stream=stream)
        assert received.body == content
        assert received.status == (422 if b"422" in raw else 200)
        assert received.header(b"x-late") is None
        assert received.header(b"link") is None
        has_length = b"content-length" in raw
        assert (received.header(b"content-length") is not None) == has_length
        assert (received.header(b"transfer-encoding") == b"chunked") != has_length


@pytest.mark.parametrize("edited", [False, True], ids=["as it comes", "edited"])
async def test_a_stream_goes_on_event_by_event(plane: Plane, edited: bool) -> None:
    client = plane.client()
    seen: list[bytes] = []

    def told() -> Iterable[bytes]:
        yield SSE + CHUNKED
        for event in EVENTS:
            seen.append(client.answers[-1].body if client.answers else b"")
            yield b"%x\r\n%b\r\n" % (len(event), event)
        yield b"0\r\n\r\n"

    plane.worker.script = lambda _: Said(reads=_slowly(told()))
    client.send(request(body(stream=True, stream_options={"include_usage": not edited})))
    (received,) = await client.whole()
    assert received.body == b"".join(EVENTS)
    assert seen == [b"", EVENTS[0], b"".join(EVENTS[:2])]
    client.wire.leave()


def _slowly(reads: Iterable[bytes]) -> Iterable[bytes]:
    """With turns in between in which a server may catch up."""
    for read in reads:
        yield read
        yield from [b""] * 20


async def test_the_head_does_not_wait_for_the_body(plane: Plane) -> None:
    raw = answer(ANSWER_BYTES)
    head = raw[: -len(ANSWER_BYTES)]
    client = plane.client()
    seen: list[int] = []

    def told() -> Iterable[bytes]:
        yield head
        yield from [b""] * 20
        seen.append(client.answers[-1].status)
        yield ANSWER_BYTES

    plane.worker.script = lambda _: Said(reads=told())
    client.send(request())
    await client.whole()
    assert seen == [200]
    client.wire.leave()


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
@pytest.mark.parametrize("framing", [b"", b"content-length: 7\r\n"], ids=["no length", "a length"])
async def test_an_answer_without_a_body(plane: Plane, status: bytes, framing: bytes) -> None:
    raw = b"HTTP/1.1 " + status + b"\r\nx-nonce: n\r\n" + framing + b"\r\n"
    client = plane.client()
    plane.worker.script = lambda _: Said(reads=[raw])
    client.send(request())
    await client.whole()
    plane.worker.script = lambda _: Said(reads=[answer(ANSWER_BYTES)])
    client.send(request())
    first, second = await client.whole(2)
    assert (first.status, first.body, first.header(b"transfer-encoding")) == (int(status[:3]), b"", None)
    assert first.header(b"x-nonce") == b"n"
    assert (second.status, second.body) == (200, ANSWER_BYTES)
    client.wire.leave()


async def test_what_is_of_one_hop_stays_there(plane: Plane) -> None:
    raw = answer(ANSWER_BYTES, b"connection: keep-alive, x-hop", b"x-hop: 1", b"keep-alive: timeout=5", b"server: w")
    received = await got(plane, [raw])
    for name in (b"connection", b"x-hop", b"keep-alive"):
        assert received.header(name) is None
    assert received.header(b"server") == b"uvicorn"


async def test_old_clients_get_bodies_that_the_close_ends(plane: Plane) -> None:
    plane.worker.script = lambda _: Said(reads=[STREAM])
    client = plane.client()
    client.send(request(body(stream=True), start=b"POST " + CHAT + b" HTTP/1.0"))
    await client.closed()
    head, _, content = bytes(client.wire.taken).partition(b"\r\n\r\n")
    assert b"connection: close" in head
    if plane.kind == "auto":
        assert b"transfer-encoding" not in head
        assert content == b"".join(EVENTS)
    else:
        # Uvicorn sends chunks to clients that cannot know them.
        assert b"transfer-encoding: chunked" in head


async def test_old_clients_get_lengths_as_they_are(plane: Plane) -> None:
    client = plane.client()
    client.send(request(start=b"POST " + CHAT + b" HTTP/1.0"))
    (received,) = await client.whole()
    assert received.body == ANSWER_BYTES
    await client.closed()


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
async def test_an_answer_that_breaks_off_is_seen_to(plane: Plane, version: bytes) -> None:
    raw = JSON + CHUNKED + chunks(ANSWER_BYTES)[:-20]
    plane.worker.script = lambda _: Said(reads=[raw], closes=True)
    client = plane.client()
    client.send(request(start=b"POST " + CHAT + b" HTTP/" + version))
    await client.closed()
    if version == b"1.1" or plane.kind == "asgi":
        assert not client.answers[0].whole
    else:
        assert client.wire.aborted
