"""What only a socket can bring: bytes that are no HTTP, framing that lies, heads without end, clients that leave."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.core.types import OutcomeKind
from tests.malformed.front import good
from tests.recordings.exchanges import Message, parse
from tests.recordings.replay import Replay, ReplayWorker, framed, replay
from tests.upstream.journey_lab import MODEL, whole_answer

pytestmark = pytest.mark.e2e

CHAT = "/v1/chat/completions"
BODY = good(CHAT)
MAX_BODY_BYTES = 4096
MODELS_PAGE = b'{"data":[{"id":"%b"}]}' % MODEL.encode()
START = b"POST /v1/chat/completions HTTP/1.1\r\n"
HOST = b"host: gateway\r\nconnection: close\r\ncontent-type: application/json\r\n"
ALIVE = HOST.replace(b"connection: close\r\n", b"")
LENGTH = b"content-length: %d\r\n" % len(BODY)
REFUSALS = {400, 413, 414, 431}


def answering() -> ReplayWorker:
    answer = whole_answer()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return ReplayWorker(head % len(answer) + answer)


@pytest.fixture
def worker() -> ReplayWorker:
    return answering()


@pytest.fixture(params=["auto", "asgi"])
async def bench(worker: ReplayWorker, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Replay]:
    server = {"max_body_bytes": MAX_BODY_BYTES, "data_plane": request.param}
    async with replay({"w0": worker}, log=tmp_path / "log", models_page=MODELS_PAGE, server=server) as opened:
        yield opened


async def check_still_works(bench: Replay, worker: ReplayWorker, requests: int) -> None:
    """A good request passes, after so many others that were counted."""
    asked = len(worker.asked)
    request = Message(start=START.strip(), headers=[(b"content-type", b"application/json")], body=BODY)
    answer = parse(await bench.send(framed(request)))
    assert (answer.status, answer.body) == (200, whole_answer())
    assert len(worker.asked) == asked + 1
    await bench.check_settled(requests + 1)


def many(headers: int) -> bytes:
    return b"".join(b"x-many-%d: %b\r\n" % (number, b"y" * 60) for number in range(headers))


NO_HTTP = {
    "a TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
    "HTTP/2's preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "words": b"hello there\r\n\r\n",
    "zero bytes": bytes(100),
    "a version of tomorrow": b"POST /v1/chat/completions HTTP/9.9\r\n\r\n",
    "no version": b"POST /v1/chat/completions\r\n\r\n",
    "a control character in the target": b"POST /v1/\x01 HTTP/1.1\r\n" + HOST + b"\r\n",
    "a control character in a value": START + HOST + LENGTH + b"x-trace: a\x01b\r\n\r\n" + BODY,
    "a NUL in a value": START + HOST + LENGTH + b"x-trace: a\0b\r\n\r\n" + BODY,
    "a CR in a value": START + HOST + LENGTH + b"x-trace: a\rb\r\n\r\n" + BODY,
    "a space before the colon": START + HOST + LENGTH + b"x-trace : 1\r\n\r\n" + BODY,
    "a header without a name": START + HOST + LENGTH + b": 1\r\n\r\n" + BODY,
    "a header without a colon": START + HOST + LENGTH + b"x-trace\r\n\r\n" + BODY,
    "two lengths": START + HOST + LENGTH + b"content-length: 5\r\n\r\n" + BODY,
    "a negative length": START + HOST + b"content-length: -1\r\n\r\n" + BODY,
    "a length in words": START + HOST + b"content-length: many\r\n\r\n" + BODY,
    "a length beyond 64 bits": START + HOST + b"content-length: %d\r\n\r\n" % 10**30 + BODY,
    "a length and chunks": START + HOST + LENGTH + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "a chunk of no size": START + HOST + b"transfer-encoding: chunked\r\n\r\nxyz\r\n{}\r\n0\r\n\r\n",
    "a chunk of a negative size": START + HOST + b"transfer-encoding: chunked\r\n\r\n-5\r\n{}\r\n0\r\n\r\n",
    "a chunk longer than it says": START + HOST + b"transfer-encoding: chunked\r\n\r\n1\r\n{}\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("request_bytes", NO_HTTP.values(), ids=NO_HTTP.keys())
async def test_what_is_no_http_is_refused_or_cut_off(bench: Replay, worker: ReplayWorker, request_bytes: bytes) -> None:
    raw = await bench.send(request_bytes)
    assert not raw or parse(raw).status in REFUSALS
    assert worker.asked == []
    # One whose head could be read was begun, and ends as one that its client left.
    begun = int((await bench.metrics()).get("tidegate_requests_total", 0))
    assert begun <= 1
    await check_still_works(bench, worker, begun)


async def test_64_kilobytes_of_headers_reach_the_worker(bench: Replay, worker: ReplayWorker) -> None:
    for number, headers in enumerate((many(900), b"x-large: " + b"y" * 65_000 + b"\r\n"), start=1):
        assert len(headers) > 60_000
        answer = parse(await bench.send(START + HOST + LENGTH + headers + b"\r\n" + BODY))
        assert answer.status == 200
        assert len(worker.asked) == number
    assert len(worker.asked[0].headers) > 900
    assert worker.asked[1].header(b"x-large") == b"y" * 65_000
    await check_still_works(bench, worker, 2)


@pytest.mark.parametrize(
    "headers", [b"x-large: " + b"y" * 2**20 + b"\r\n", many(15_000), b"x" * 2**20 + b": 1\r\n", many(1)[:-2] * 1000]
)
async def test_a_megabyte_of_headers_passes_or_is_refused(bench: Replay, worker: ReplayWorker, headers: bytes) -> None:
    answer = parse(await bench.send(START + HOST + LENGTH + headers + b"\r\n" + BODY))
    assert answer.status == 200 or answer.status in REFUSALS
    assert len(worker.asked) == (answer.status == 200)
    counted = int((await bench.metrics()).get("tidegate_requests_total", 0))
    await check_still_works(bench, worker, counted)


async def test_a_target_of_a_megabyte_passes_or_is_refused(bench: Replay, worker: ReplayWorker) -> None:
    target = b"POST /v1/chat/completions?" + b"x" * 2**20 + b" HTTP/1.1\r\n"
    answer = parse(await bench.send(target + HOST + LENGTH + b"\r\n" + BODY))
    assert answer.status == 200 or answer.status in REFUSALS
    await check_still_works(bench, worker, int((await bench.metrics()).get("tidegate_requests_total", 0)))


# -- bodies over the limit -------------------------------------------------------------------------------------------


async def test_a_body_declared_over_the_limit_is_refused_before_it_is_sent(bench: Replay, worker: ReplayWorker) -> None:
    head = START + HOST + b"expect: 100-continue\r\ncontent-length: %d\r\n\r\n" % (MAX_BODY_BYTES + 1)
    answer = parse(await bench.send(head))
    assert answer.status == 413
    assert b'"code":"request_too_large"' in answer.body
    assert worker.asked == []
    await check_still_works(bench, worker, 1)


@pytest.mark.parametrize("kilobytes", [5, 64, 1024])
async def test_a_body_over_the_limit_gets_its_answer_and_leaves_the_connection_usable(
    bench: Replay, worker: ReplayWorker, kilobytes: int
) -> None:
    chunks = (b"400\r\n" + b" " * 1024 + b"\r\n") * kilobytes + b"0\r\n\r\n"
    lengths = b"content-length: %d\r\n\r\n" % (kilobytes * 1024) + b" " * (kilobytes * 1024)
    for rest in (b"transfer-encoding: chunked\r\n\r\n" + chunks, lengths):
        raw = await bench.send(START + ALIVE + rest + START + HOST + LENGTH + b"\r\n" + BODY)
        assert raw.startswith(b"HTTP/1.1 413")
        assert raw.count(b"HTTP/1.1 200") == 1
        assert raw.endswith(whole_answer())
    assert len(worker.asked) == 2
    await check_still_works(bench, worker, 4)


# -- requests that are not whole, and more than one ------------------------------------------------------------------


async def until_counted(bench: Replay) -> None:
    """The gateway has noticed that its client left; each look takes many turns of the event loop."""
    for _ in range(100):
        if (await bench.metrics()).get("tidegate_requests_total"):
            return
    raise AssertionError("it was never counted")


@pytest.mark.parametrize("framing", [LENGTH, b"transfer-encoding: chunked\r\n"], ids=["length", "chunks"])
async def test_a_client_that_leaves_inside_its_body(worker: ReplayWorker, framing: bytes, tmp_path: Path) -> None:
    async with replay({"w0": worker}, log=tmp_path / "log", models_page=MODELS_PAGE) as bench:
        await bench.send_and_leave(
            START + HOST + framing + b"\r\n" + (b"5\r\n" if b"chunked" in framing else b"") + BODY[:5]
        )
        await until_counted(bench)
        assert worker.asked == []
        await check_still_works(bench, worker, 1)
    left, good_one = bench.records()
    assert (left.outcome.kind, left.outcome.status) == (OutcomeKind.CANCELLED, 499)
    assert good_one.outcome.kind is OutcomeKind.OK


async def test_a_bad_request_spoils_nothing_for_the_next_on_its_connection(bench: Replay, worker: ReplayWorker) -> None:
    bad = START + ALIVE + b"content-length: 4\r\n\r\n{bad"
    raw = await bench.send(bad + bad + START + HOST + LENGTH + b"\r\n" + BODY)
    # Heads follow bodies without a line end between them.
    assert re.findall(rb"HTTP/1\.1 (\d+)", raw) == [b"400", b"400", b"200"]
    assert len(worker.asked) == 1
    await check_still_works(bench, worker, 3)


@pytest.mark.parametrize("upgrade", [b"websocket", b"h2c", b"TLS/1.0"])
async def test_an_upgrade_is_not_made(bench: Replay, worker: ReplayWorker, upgrade: bytes) -> None:
    asking = HOST.replace(b"connection: close", b"connection: upgrade, close") + b"upgrade: " + upgrade + b"\r\n"
    answer = parse(await bench.send(START + asking + LENGTH + b"\r\n" + BODY))
    assert answer.status in {200, 400}
    assert all(request.header(b"upgrade") is None for request in worker.asked)
    await check_still_works(bench, worker, int((await bench.metrics()).get("tidegate_requests_total", 0)))
