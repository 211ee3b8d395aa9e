"""However a request is cut into reads, and however its body is framed, it is the same request."""

import pytest

from tests.conformance.planes import CHAT, Plane, body, request
from tests.conformance.wires import ANSWER_BYTES, chunks, halves, singles

pytestmark = pytest.mark.asyncio(loop_scope="session")

HEAD = b"POST " + CHAT + b" HTTP/1.1\r\nhost: gateway\r\nx-nonce: n\r\n"
LENGTH = request(nonce=b"n")
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunks(body()[:20], body()[20:])
ADORNED = (
    HEAD
    + b"transfer-encoding: chunked\r\ntrailer: x-late\r\n\r\n"
    + chunks(body()[:20], body()[20:], extension=b';name="a b"', trailers=b"x-late: yes\r\nauthorization: Bearer x\r\n")
)


@pytest.mark.parametrize("whole", [LENGTH, CHUNKED, ADORNED], ids=["length", "chunks", "extensions and trailers"])
async def test_cut_anywhere_it_is_the_same_request(plane: Plane, whole: bytes) -> None:
    for pieces in (*halves(whole), singles(whole), [whole]):
        answer = await plane.ask(*pieces)
        assert (answer.status, answer.body, answer.header(b"x-nonce")) == (200, ANSWER_BYTES, b"n")
        (asked,) = plane.worker.asked
        assert asked.body == body()
        assert asked.header(b"content-length") == b"%d" % len(body())
        plane.worker.asked.clear()


async def test_trailers_are_no_headers(plane: Plane) -> None:
    await plane.ask(ADORNED)
    (asked,) = plane.worker.asked
    for name in (b"x-late", b"authorization", b"trailer", b"transfer-encoding"):
        assert asked.header(name) is None


async def test_a_request_without_a_body_is_refused_in_good_order(plane: Plane) -> None:
    for framing in (b"content-length: 0\r\n\r\n", b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n", b"\r\n"):
        answer = await plane.ask(HEAD + framing)
        assert answer.status == 400
        assert answer.json()["error"]["type"] == "invalid_request_error"
    assert plane.worker.asked == []


async def test_line_ends_before_a_request_are_passed_over(plane: Plane) -> None:
    assert (await plane.ask(b"\r\n\r\n" + LENGTH)).status == 200


async def test_the_client_is_told_of_the_server_and_the_decision(plane: Plane) -> None:
    answer = await plane.ask(request(None, b"x-request-id: mine"))
    assert answer.header(b"server") == b"uvicorn"
    assert answer.header(b"date")
    assert answer.header(b"x-request-id") == b"mine"
    assert answer.header(b"x-tidegate-worker") == b"w0"
    assert plane.state.total_requests == 1
