"""Requests that are not let through: by whichever way they come, the client sees the same and no worker sees them."""

import pytest

from gateway.api.asgi import READ_OFF_BYTES
from gateway.api.auth import Keyring, key_hash
from gateway.api.protocol import MAX_HEAD_BYTES
from gateway.settings import KeySettings
from tests.conformance.planes import CHAT, MAX_BODY_BYTES, Plane, body, idle, request, settle
from tests.conformance.wires import ANSWER_BYTES, chunks, singles

pytestmark = pytest.mark.asyncio(loop_scope="session")

START = b"POST " + CHAT + b" HTTP/1.1\r\n"
HOST = b"host: gateway\r\n"
LENGTH = b"content-length: %d\r\n" % len(body())
CHUNKED = b"transfer-encoding: chunked\r\n"
OTHER = b"GET /livez HTTP/1.1\r\nhost: gateway\r\n\r\n"

SMUGGLED = {
    "a length and chunks": START + HOST + LENGTH + CHUNKED + b"\r\n0\r\n\r\n" + OTHER,
    "chunks and a length": START + HOST + CHUNKED + LENGTH + b"\r\n0\r\n\r\n" + OTHER,
    "two lengths": START + HOST + LENGTH + b"content-length: 5\r\n\r\n" + body(),
    "the same length twice": START + HOST + LENGTH + LENGTH + b"\r\n" + body(),
    "a list of lengths": START + HOST + b"content-length: 5, 5\r\n\r\nhello",
    "a signed length": START + HOST + b"content-length: +5\r\n\r\nhello",
    "a length in hexadecimal": START + HOST + b"content-length: 0x5\r\n\r\nhello",
    "a length beyond 64 bits": START + HOST + b"content-length: 18446744073709551621\r\n\r\nhello",
    "a folded header": START + HOST + b"x-folded: a\r\n b\r\n" + LENGTH + b"\r\n" + body(),
    "a folded coding": START + HOST + b"transfer-encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    "chunked twice": START + HOST + CHUNKED + CHUNKED + b"\r\n0\r\n\r\n",
    "chunked, but not last": START + HOST + b"transfer-encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
    "an unknown coding": START + HOST + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
    "a space before the colon": START + HOST + b"transfer-encoding : chunked\r\n\r\n0\r\n\r\n",
    "a tab in a name": START + HOST + b"transfer\t-encoding: chunked\r\n\r\n0\r\n\r\n",
    "a bare line feed in the head": START + b"host: gateway\n" + LENGTH + b"\r\n" + body(),
    "a bare carriage return": START + HOST + b"x-a: b\rtransfer-encoding: chunked\r\n" + LENGTH + b"\r\n" + body(),
    "a chunk without a size": START + HOST + CHUNKED + b"\r\n\r\n{}\r\n0\r\n\r\n",
    "a chunk of no number": START + HOST + CHUNKED + b"\r\nxyz\r\n{}\r\n0\r\n\r\n",
    "a chunk of a negative size": START + HOST + CHUNKED + b"\r\n-2\r\n{}\r\n0\r\n\r\n",
    "a chunk with a prefix": START + HOST + CHUNKED + b"\r\n0x2\r\n{}\r\n0\r\n\r\n",
    "a chunk beyond 64 bits": START + HOST + CHUNKED + b"\r\n10000000000000002\r\n{}\r\n0\r\n\r\n",
    "a chunk that is longer than it says": START + HOST + CHUNKED + b"\r\n1\r\n{}\r\n0\r\n\r\n",
    "a size that a bare line feed ends": START + HOST + CHUNKED + b"\r\n2\n{}\r\n0\r\n\r\n",
    "a space behind a size": START + HOST + CHUNKED + b"\r\n2 \r\n{}\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("raw", SMUGGLED.values(), ids=SMUGGLED.keys())
async def test_what_can_be_read_in_two_ways_is_not_read(plane: Plane, raw: bytes) -> None:
    for pieces in ([raw], singles(raw)):
        client = plane.client()
        client.send(*pieces)
        await client.closed()
        (refused,) = client.answers
        assert (refused.status, refused.header(b"connection"), refused.whole) == (400, b"close", True)
        await idle()
    assert plane.worker.asked == []
    assert {outcome.kind for outcome in plane.outcomes} <= {"cancelled"}


@pytest.mark.parametrize("raw", [b"\x16\x03\x01\x02", b"hello\r\n\r\n", START + b"x\r\n\r\n", SMUGGLED["two lengths"]])
async def test_what_is_no_http_does_not_spoil_the_answer_before_it(plane: Plane, raw: bytes) -> None:
    plane.worker.hold = True
    client = plane.client()
    client.send(request(nonce=b"n"))
    await settle(lambda: plane.worker.asked)
    client.send(raw, b"more of it")
    await idle()
    assert client.answers == []
    plane.worker.release()
    (answer,) = await client.whole()
    assert (answer.status, answer.header(b"x-nonce"), answer.body) == (200, b"n", ANSWER_BYTES)
    await client.closed()
    assert len(plane.worker.asked) == 1


async def test_a_bad_body_behind_others_does_not_spoil_their_answers(plane: Plane) -> None:
    plane.worker.hold = True
    client = plane.client()
    client.send(request(nonce=b"a") + request(nonce=b"b") + START + HOST + CHUNKED + b"\r\nxyz\r\n")
    await settle(lambda: plane.worker.asked)
    plane.worker.release()
    await client.whole(1)
    await settle(lambda: len(plane.worker.asked) == 2)
    plane.worker.release()
    answers = await client.whole(2)
    assert [answer.header(b"x-nonce") for answer in answers] == [b"a", b"b"]
    await client.closed()
    assert [outcome.kind for outcome in plane.outcomes] == ["ok", "ok"]


# -- heads ------------------------------------------------------------------------------------------------------------


def many(count: int) -> bytes:
    return b"".join(b"x-%04d: %b\r\n" % (number, b"v" * 110) for number in range(count))


async def test_64_kilobytes_of_headers_pass(plane: Plane) -> None:
    for headers in (many(540), b"x-long: " + b"v" * 65_000 + b"\r\n"):
        for size in (len(headers), 1000):
            head = START + HOST + headers + LENGTH + b"\r\n"
            pieces = [head[at : at + size] for at in range(0, len(head), size)]
            assert (await plane.ask(*pieces, body())).status == 200
    assert {len(asked.headers) > 540 for asked in plane.worker.asked} == {True, False}


async def test_a_head_without_end_is_refused(plane: Plane) -> None:
    for filler in (b"v", b"x: y\r\n"):
        client = plane.client()
        client.send(START + HOST + b"x-long: ", *[filler * 1000] * (MAX_HEAD_BYTES // len(filler * 1000) + 1))
        (refused,) = await client.whole()
        assert (refused.status, refused.header(b"connection")) == (431, b"close")
        client.wire.leave()
    assert plane.worker.asked == []
    assert plane.outcomes == []


async def test_a_head_without_end_does_not_spoil_the_answer_before_it(plane: Plane) -> None:
    plane.worker.hold = True
    client = plane.client()
    client.send(request(nonce=b"n"))
    await settle(lambda: plane.worker.asked)
    client.send(START + HOST, *[b"v" * 1000] * (MAX_HEAD_BYTES // 1000 + 1))
    await idle()
    plane.worker.release()
    (answer,) = await client.whole()
    assert (answer.status, answer.header(b"x-nonce")) == (200, b"n")
    await client.closed()


@pytest.mark.parametrize("where", ["in an extension", "in a trailer", "in many trailers"])
async def test_nothing_beside_a_body_is_endless(plane: Plane, where: str) -> None:
    begin = {"in an extension": b"2;a=", "in a trailer": b"0\r\nx-late: ", "in many trailers": b"0\r\n"}[where]
    filler = b"x-late: yes\r\n" * 77 if where == "in many trailers" else b"v" * 1000
    client = plane.client()
    client.send(START + HOST + CHUNKED + b"\r\n" + begin, *[filler] * (MAX_HEAD_BYTES // len(filler) + 2))
    (refused,) = await client.whole()
    assert refused.status == 431
    client.wire.leave()
    await settle(lambda: plane.outcomes)
    assert [outcome.kind for outcome in plane.outcomes] == ["cancelled"]
    assert plane.worker.asked == []


# -- keys -------------------------------------------------------------------------------------------------------------


async def test_a_request_without_a_key_is_refused_before_its_body(plane: Plane) -> None:
    plane.gateway.live.keyring = Keyring([KeySettings(name="a", sha256=key_hash("tg-good"))])
    client = plane.client()
    content = body()
    client.send(request(content)[: -len(content)])
    (refused,) = await client.whole()
    assert (refused.status, refused.header(b"www-authenticate")) == (401, b"Bearer")
    assert refused.header(b"x-request-id")
    client.send(content)
    client.send(request(None, b"authorization: Bearer tg-good", nonce=b"n"))
    answers = await client.whole(2)
    assert (answers[1].status, answers[1].header(b"x-nonce")) == (200, b"n")
    (asked,) = plane.worker.asked
    assert asked.header(b"authorization") is None
    assert [outcome.status for outcome in plane.outcomes] == [401, 200]
    client.wire.leave()


async def test_many_without_a_key_at_once(plane: Plane) -> None:
    plane.gateway.live.keyring = Keyring([KeySettings(name="a", sha256=key_hash("tg-good"), scopes=("admin",))])
    client = plane.client()
    client.send((request() + request(None, b"x-api-key: tg-good")) * 50)
    answers = await client.whole(100)
    assert [answer.status for answer in answers] == [401, 403] * 50
    assert plane.worker.asked == []
    client.wire.leave()


# -- bodies over the limit ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("framing", ["length", "chunks"])
async def test_a_body_over_the_limit_is_refused_and_the_connection_used_on(plane: Plane, framing: str) -> None:
    content = b" " * (MAX_BODY_BYTES + 1)
    big = request(content) if framing == "length" else START + HOST + CHUNKED + b"\r\n" + chunks(*[content[:1000]] * 66)
    for size in (len(big), 10_000):
        client = plane.client()
        client.send(*[big[at : at + size] for at in range(0, len(big), size)])
        client.send(request(nonce=b"n"))
        refused, answer = await client.whole(2)
        assert (refused.status, refused.json()["error"]["code"]) == (413, "request_too_large")
        assert (answer.status, answer.header(b"x-nonce")) == (200, b"n")
        client.wire.leave()
    assert [outcome.status for outcome in plane.outcomes] == [413, 200] * 2
    assert len(plane.worker.asked) == 2


async def test_no_more_of_a_body_is_waited_for_than_is_worth_it(plane: Plane) -> None:
    client = plane.client()
    client.send(START + HOST + b"content-length: %d\r\n\r\n" % (READ_OFF_BYTES * 100))
    piece = b" " * 2**20
    for _ in range(READ_OFF_BYTES // len(piece)):
        client.send(piece)
        await idle(5)
    assert client.answers == []
    client.send(piece)
    (refused,) = await client.whole()
    assert refused.status == 413
    client.wire.leave()


async def test_a_client_that_asks_first_is_told_at_once(plane: Plane) -> None:
    for expects in (b"expect: 100-continue", b"expect: a miracle"):
        client = plane.client()
        client.send(START + HOST + expects + b"\r\ncontent-length: %d\r\n\r\n" % (MAX_BODY_BYTES + 1))
        (refused,) = await client.whole()
        assert refused.status == 413
        client.wire.leave()


async def test_a_client_that_leaves_inside_a_body_that_is_refused(plane: Plane) -> None:
    client = plane.client()
    client.send(START + HOST + b"content-length: %d\r\n\r\nsome" % (MAX_BODY_BYTES + 1))
    await idle()
    client.wire.leave()
    await settle(lambda: plane.outcomes)
    assert [(outcome.kind, outcome.status) for outcome in plane.outcomes] == [("client_error", 413)]
