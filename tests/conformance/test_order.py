"""Several requests on one connection: each is answered in its turn, whichever way it goes."""

import asyncio
import logging
from unittest.mock import Mock

import pytest

from tests.conformance.planes import CHAT, Plane, body, idle, request, settle
from tests.conformance.wires import ANSWER_BYTES, halves

pytestmark = pytest.mark.asyncio(loop_scope="session")

LIVENESS = b"GET /livez HTTP/1.1\r\nhost: gateway\r\n\r\n"
BAD = b"POST " + CHAT + b" HTTP/1.1\r\nhost: gateway\r\ncontent-length: 1\r\n\r\n{"


def nonces(count: int) -> list[bytes]:
    return [b"n%d" % number for number in range(count)]


async def test_both_kinds_one_after_the_other(plane: Plane) -> None:
    client = plane.client()
    for number in range(1, 7):
        client.send(request(nonce=b"n%d" % number) if number % 2 else LIVENESS)
        answers = await client.whole(number)
        assert answers[-1].status == 200
        assert answers[-1].header(b"x-nonce") == (b"n%d" % number if number % 2 else None)
    client.wire.leave()


async def test_both_kinds_at_once(plane: Plane) -> None:
    client = plane.client()
    client.send(b"".join(request(nonce=nonce) + LIVENESS + BAD for nonce in nonces(5)))
    answers = await client.whole(15)
    assert [answer.status for answer in answers] == [200, 200, 400] * 5
    assert [answer.header(b"x-nonce") for answer in answers[::3]] == nonces(5)
    assert plane.state.total_requests == 15
    client.wire.leave()


async def test_both_kinds_cut_anywhere(plane: Plane) -> None:
    for pieces in halves(request(nonce=b"a") + LIVENESS + request(nonce=b"b")):
        client = plane.client()
        client.send(*pieces)
        first, second, third = await client.whole(3)
        assert (first.header(b"x-nonce"), third.header(b"x-nonce")) == (b"a", b"b")
        assert second.status == 200
        client.wire.leave()


async def test_the_next_one_waits_for_the_answer_before_it(plane: Plane) -> None:
    plane.worker.hold = True
    client = plane.client()
    client.send(request(nonce=b"a") + LIVENESS + request(nonce=b"b"))
    await settle(lambda: plane.worker.asked)
    await idle()
    assert len(plane.worker.asked) == 1
    assert client.answers == []
    plane.worker.release()
    await client.whole(2)
    await settle(lambda: len(plane.worker.asked) == 2)
    plane.worker.release()
    answers = await client.whole(3)
    assert [answer.header(b"x-nonce") for answer in answers] == [b"a", None, b"b"]
    client.wire.leave()


async def test_many_that_are_refused_at_once(plane: Plane, caplog: pytest.LogCaptureFixture) -> None:
    client = plane.client()
    client.send(BAD * 1000)
    answers = await client.whole(1000)
    assert {answer.status for answer in answers} == {400}
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
    client.wire.leave()


async def test_no_more_is_read_than_the_next_one(plane: Plane) -> None:
    plane.worker.hold = True
    client = plane.client()
    client.send(request())
    assert not client.wire.is_paused
    client.send(request(), request(), request())
    assert client.wire.is_paused
    await idle()
    # Over ASGI an application that listens for its client's leaving has uvicorn read on.
    assert len(client.protocol.pipeline) == (1 if plane.kind == "auto" else 3)
    client.wire.reset()
    await client.closed()


async def test_a_client_that_wants_the_close_gets_it(plane: Plane) -> None:
    client = plane.client()
    client.send(request(None, b"connection: close", nonce=b"a") + request(nonce=b"b"))
    (answer,) = await client.whole()
    assert answer.header(b"connection") == b"close"
    await client.closed()
    assert len(plane.worker.asked) == 1


async def test_an_idle_connection_is_closed_and_a_busy_one_is_not(plane: Plane) -> None:
    plane.config.timeout_keep_alive = 0
    idler, busy = plane.client(), plane.client()
    idler.send(request())
    await idler.whole()
    plane.worker.hold = True
    busy.send(request())
    await settle(lambda: len(plane.worker.asked) == 2)
    # Its timer is due now; the loop looks at the clock when it turns.
    await settle(lambda: idler.wire.over)
    assert not busy.wire.is_closing()
    plane.worker.release()
    await busy.whole()
    await busy.closed()


async def test_a_connection_that_was_idle_is_not_closed_for_that_later(plane: Plane) -> None:
    plane.config.timeout_keep_alive = 0.0
    due, loop = [], asyncio.get_running_loop()
    client = plane.client()
    with pytest.MonkeyPatch.context() as patched:
        # Its timer goes off when the test says so.
        patched.setattr(loop, "call_later", lambda delay_s, call: due.append(call) or Mock())
        patched.setattr(loop, "time", lambda: 1000.0)
        client.send(request())
        await client.whole(1)
        assert due
        plane.worker.hold = True
        client.send(request())
        cancelled = plane.kind == "asgi"
        for call in due[: 0 if cancelled else None]:
            call()
        await settle(lambda: len(plane.worker.asked) == 2)
        assert not client.wire.is_closing()
        plane.worker.release()
        await client.whole(2)
    client.wire.leave()


async def test_too_many_at_once_are_turned_away(plane: Plane) -> None:
    plane.config.limit_concurrency = 1
    client, other = plane.client(), plane.client()
    client.send(request())
    (answer,) = await client.whole()
    assert (answer.status, answer.body) == (503, b"Service Unavailable")
    assert plane.worker.asked == []
    other.wire.leave()
    await client.closed()


async def test_the_server_waits_for_answers_and_then_closes(plane: Plane) -> None:
    plane.worker.hold = True
    idler, busy = plane.client(), plane.client()
    busy.send(request())
    await settle(lambda: plane.worker.asked)
    assert len(plane.state.tasks) == 1
    for connection in list(plane.state.connections):
        connection.shutdown()
    await idler.closed()
    plane.worker.release()
    (answer,) = await busy.whole()
    assert (answer.status, answer.header(b"connection"), answer.body) == (200, b"close", ANSWER_BYTES)
    await busy.closed()


@pytest.mark.parametrize("began", [False, True], ids=["before its head", "inside its body"])
async def test_a_server_that_ends_at_once_breaks_answers_off(plane: Plane, began: bool) -> None:
    plane.worker.hold = True
    client = plane.client()
    client.send(request())
    await settle(lambda: plane.worker.asked)
    (worker_wire,) = plane.worker.by
    if began:
        worker_wire.send(b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\nfew")
        await settle(lambda: client.answers)
    for task in plane.state.tasks:
        task.cancel()
    await client.closed()
    (answer,) = client.answers
    assert (answer.status, answer.whole) == ((200, False) if began else (500, True))
    assert began or answer.header(b"connection") == b"close"
    assert worker_wire.over
    assert [outcome.kind for outcome in plane.outcomes] == ["cancelled"]


async def test_a_client_that_asks_first_gets_its_interim_answer(plane: Plane) -> None:
    content = body()
    client = plane.client()
    head = request(content, b"expect: 100-continue")[: -len(content)]
    client.send(head)
    await settle(lambda: client.wire.taken)
    assert bytes(client.wire.taken) == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert plane.worker.asked == []
    client.send(content)
    await settle(lambda: client.answers[-1].status == 200 and client.answers[-1].whole)
    client.send(request(nonce=b"next"))
    await settle(lambda: client.answers[-1].header(b"x-nonce") == b"next")
    client.wire.leave()


async def test_other_methods_are_not_allowed(plane: Plane) -> None:
    client = plane.client()
    client.send(b"GET " + CHAT + b" HTTP/1.1\r\nhost: gateway\r\n\r\n")
    await settle(lambda: client.answers and client.answers[0].whole)
    assert client.answers[0].status == 405
    client.send(b"HEAD " + CHAT + b" HTTP/1.1\r\nhost: gateway\r\n\r\n")
    await settle(lambda: client.wire.taken.count(b"405") == 2)
    await idle()
    assert bytes(client.wire.taken).endswith(b"\r\n\r\n")
    client.wire.leave()


@pytest.mark.parametrize(
    "target", [CHAT + b"?api-version=1", b"/v1/chat%2Fcompletions", b"http://gateway" + CHAT, CHAT + b"/"]
)
async def test_targets_in_other_words(plane: Plane, target: bytes) -> None:
    """Whatever is made of them, both ways make the same."""
    answer = await plane.ask(request(nonce=b"n", start=b"POST " + target + b" HTTP/1.1"))
    found = target.startswith((b"http", CHAT + b"?")) or b"%2F" in target
    assert answer.status == (200 if found else 404)
    assert len(plane.worker.asked) == found
