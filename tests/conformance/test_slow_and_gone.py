"""Clients that read slowly, write slowly, or leave: they hold only what is theirs."""

from collections.abc import Iterable
from random import Random

import pytest

from tests.conformance.planes import CHAT, Client, Plane, body, idle, request, settle
from tests.conformance.wires import ANSWER_BYTES, Said, WorkerWire, answer, chunks, endless, singles

pytestmark = pytest.mark.asyncio(loop_scope="session")

SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"' + b"x" * 4000 + b'"},"finish_reason":null}]}\n\n'
READ = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
LAST = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
END = chunks(LAST)
STREAM_BYTES = 45 * 2**20
MOST_BUFFERED_BYTES = 2 * 2**20


def told() -> Iterable[bytes]:
    yield SSE
    yield from endless(READ, STREAM_BYTES)
    yield END


async def until_paused(plane: Plane) -> WorkerWire:
    """The connection whose worker is read no further."""
    await settle(lambda: any(wire.is_paused for wire in plane.worker.wires), what="a worker is paused")
    await idle()
    (paused,) = [wire for wire in plane.worker.wires if wire.is_paused]
    return paused


@pytest.mark.parametrize("edited", [False, True], ids=["as it comes", "edited"])
async def test_a_stream_that_nobody_reads_stays_at_the_worker(plane: Plane, edited: bool) -> None:
    plane.worker.script = lambda _: Said(reads=told())
    client = plane.client()
    client.wire.reads = False
    client.send(request(body(stream=True, stream_options={"include_usage": not edited})))
    wire = await until_paused(plane)
    taken_in_bytes = wire.said_bytes
    assert taken_in_bytes < MOST_BUFFERED_BYTES
    assert client.wire.most_waiting_bytes < MOST_BUFFERED_BYTES
    # Others are served meanwhile.
    plane.worker.script = lambda _: Said(reads=[answer(ANSWER_BYTES)])
    assert (await plane.ask(request())).body == ANSWER_BYTES
    assert wire.is_paused
    client.wire.read_on()
    (whole,) = await _whole(client)
    assert len(whole.body) == STREAM_BYTES // len(READ) * len(EVENT) + len(LAST)
    assert whole.body.endswith(LAST)
    client.wire.leave()


async def _whole(client: Client) -> list[object]:
    for _ in range(20):
        try:
            return list(await client.whole())
        except AssertionError:
            continue
    raise AssertionError("the stream never ended")


async def test_an_answer_that_waits_unread_holds_the_next_one_back(plane: Plane) -> None:
    large = answer(b'{"text":"' + b"x" * 300_000 + b'"}')
    plane.worker.script = lambda _: Said(reads=[large])
    client = plane.client()
    client.wire.reads = False
    client.send(request() + request())
    await settle(lambda: len(plane.worker.asked) == 1)
    await idle()
    plane.worker.script = lambda _: Said(reads=told())
    await idle()
    assert client.wire.most_waiting_bytes < MOST_BUFFERED_BYTES
    client.wire.reset()
    await client.closed()


async def test_a_client_that_writes_slowly_holds_nobody_up(plane: Plane) -> None:
    slow, content = plane.client(), request(nonce=b"slow")
    for piece in singles(content[:-1]):
        slow.send(piece)
        assert plane.worker.asked == []
        if len(piece) % 50 == 0:
            assert (await plane.ask(request())).status == 200
    assert (await plane.ask(request(nonce=b"quick"))).header(b"x-nonce") == b"quick"
    slow.send(content[-1:])
    (answered,) = await slow.whole()
    assert answered.header(b"x-nonce") == b"slow"
    slow.wire.leave()


async def test_a_client_that_reads_byte_by_byte_gets_all(plane: Plane) -> None:
    plane.worker.script = lambda _: Said(reads=[SSE, *[READ] * 50, END])
    client = plane.client()
    client.wire.reads = False
    client.send(request(body(stream=True)))
    await until_paused(plane)
    taken_bytes = 0
    while not (client.answers and client.answers[-1].whole):
        client.wire.read_on()
        client.wire.reads = False
        await idle(10)
        assert len(client.wire.taken) > taken_bytes
        taken_bytes = len(client.wire.taken)
    assert client.answers[0].body == EVENT * 50 + LAST
    client.wire.leave()


# -- clients that leave -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("resets", [False, True], ids=["closes", "resets"])
async def test_a_client_may_leave_at_any_moment(plane: Plane, resets: bool) -> None:
    """Wherever it does, its worker's connection is closed, its books are, and other clients' are not touched."""
    reads = [SSE[:20], SSE[20:], READ[:30], READ[30:], END]
    whole = request(body(stream=True))
    head = whole.index(b"\r\n\r\n") + 4
    cuts = [whole[:10], whole[10 : head - 1], whole[head - 1 : -5], whole[-5:]]
    rng = Random(7)
    for case in range(60):
        plane.outcomes.clear()
        sent, turns = rng.randint(0, len(cuts)), rng.randint(0, 12)
        plane.worker.script = lambda _: Said(reads=[piece for read in reads for piece in (b"", read)])
        client = plane.client()
        client.send(*cuts[:sent])
        await idle(turns)
        _leave(client, resets=resets)
        await client.closed()
        await plane.check_settled()
        await idle()
        kinds = [outcome.kind for outcome in plane.outcomes]
        assert kinds in ([], ["cancelled"], ["ok"]), case
        assert bool(kinds) == (sent >= 3), case


def _leave(client: Client, *, resets: bool) -> None:
    if resets:
        client.wire.reset()
    else:
        client.wire.leave()


async def test_the_worker_of_a_client_that_left_is_hung_up_on(plane: Plane) -> None:
    plane.worker.script = lambda _: None
    client = plane.client()
    client.send(request())
    await settle(lambda: plane.worker.asked)
    (wire,) = plane.worker.by
    client.wire.leave()
    await settle(lambda: wire.over)
    assert wire.aborted
    assert [(outcome.kind, outcome.status) for outcome in plane.outcomes] == [("cancelled", 499)]


async def test_those_that_wait_behind_are_forgotten_with_it(plane: Plane) -> None:
    plane.worker.script = lambda _: None
    client = plane.client()
    client.send(request() + request() + b"GET /livez HTTP/1.1\r\nhost: gateway\r\n\r\n" + request())
    await settle(lambda: plane.worker.asked)
    client.wire.reset()
    await client.closed()
    await settle(lambda: plane.outcomes)
    await idle()
    assert len(plane.worker.asked) == 1
    assert [outcome.kind for outcome in plane.outcomes] == ["cancelled"]


async def test_the_worker_goes_first(plane: Plane) -> None:
    """A connection that a worker closed while it was idle costs no client anything."""
    assert (await plane.ask(request())).status == 200
    for wire in plane.worker.wires:
        wire.leave()
    assert (await plane.ask(request())).status == 200


@pytest.mark.parametrize("target", [CHAT, b"/v1/completions", b"/v1/embeddings", b"/v1/messages"])
async def test_every_route_of_the_engines_goes_the_same_way(plane: Plane, target: bytes) -> None:
    content = {b"/v1/completions": body(prompt="hello"), b"/v1/embeddings": body(input="hello")}.get(
        target, body(max_tokens=4)
    )
    answered = await plane.ask(request(content, nonce=b"n", start=b"POST " + target + b" HTTP/1.1"))
    assert (answered.status, answered.header(b"x-nonce")) == (200, b"n")
    (asked,) = plane.worker.asked
    assert asked.start == b"POST " + target + b" HTTP/1.1"
