"""Connections that nobody would write, by the million: `python -m tests.conformance.fuzz --inputs 1000000`.

One input is a few connections at once, whose bytes are good requests or damaged ones, cut anywhere, and a worker whose
answers may be damaged too. Whatever comes: nothing is raised, nothing hangs, nothing is left, and no client gets a byte
that was meant for another one. An input is known by its number: a failure names it, and `--first` begins with it.
"""

import argparse
import asyncio
import itertools
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from random import Random
from typing import Any

from tests.conformance.planes import CHAT, Client, Plane, body, idle, plane_of, request
from tests.conformance.wires import Said, chunks
from tests.recordings.exchanges import Message

MOST_TURNS = 3_000
NONCE = b"nonce-%d-%d-"
TOKENS = (
    b"\r\n", b"\n", b"\r", b"\0", b":", b" ", b"\t", b"0\r\n\r\n", b"5\r\nhello\r\n", b"content-length: 3\r\n",
    b"content-length: 99999999999\r\n", b"transfer-encoding: chunked\r\n", b"connection: close\r\n",
    b"connection: upgrade\r\nupgrade: websocket\r\n", b"expect: 100-continue\r\n", b"HTTP/1.0", b"HTTP/1.1", b"GET ",
    b"POST /v1/completions ", b"HTTP/1.1 200 OK\r\n", b"\xff\xfe", b"ffffffffffffffff\r\n", b"data: [DONE]\n\n", b"{",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Talk:
    """What one client does."""

    pieces: list[bytes]
    marks: list[bytes]
    """The random part of each request's nonce, by which it is known whatever is done to the rest."""
    nonces: list[bytes]
    """Of its good requests that a worker answers, in order."""
    damaged: bool
    leaves_after: int | None
    """So many pieces; None leaves when all is over."""
    stops_reading: bool


# -- what clients and workers say --------------------------------------------------------------------------------------


def talk_of(rng: Random, number: int) -> Talk:
    """One client."""
    raw, marks, nonces = b"", [], []
    for count in range(rng.randint(1, 4)):
        # Far from every other, also where the source of chance gives nothing but zeros.
        mark = sha256(b"%d %d %d" % (number, count, rng.getrandbits(64))).hexdigest()[:16]
        marks.append(mark.encode())
        nonce = NONCE % (number, count) + marks[-1]
        kind = rng.randrange(8)
        raw += _request(rng, kind, nonce)
        if kind < 6:
            nonces.append(nonce)
    damaged = rng.random() < 0.7
    if damaged:
        raw = _damaged(rng, raw)
    pieces = _cut(rng, raw)
    return Talk(
        pieces=pieces,
        marks=marks,
        nonces=nonces,
        damaged=damaged,
        leaves_after=rng.randint(0, len(pieces)) if rng.random() < 0.2 else None,
        stops_reading=rng.random() < 0.1,
    )


def _request(rng: Random, kind: int, nonce: bytes) -> bytes:
    content = body(user=nonce.decode(), stream=kind == 5)
    match kind:
        case 6:
            return b"GET /livez HTTP/1.1\r\nhost: gateway\r\n\r\n"
        case 7:
            return request(b"{bad", nonce=nonce)
        case 0 | 1:
            head = b"POST " + CHAT + b" HTTP/1.1\r\nhost: gateway\r\nx-nonce: " + nonce
            at = rng.randrange(1, len(content))
            framed = chunks(content[:at], content[at:], extension=rng.choice((b"", b";a=b")))
            return head + b"\r\ntransfer-encoding: chunked\r\n\r\n" + framed
        case _:
            return request(content, nonce=nonce)


def _damaged(rng: Random, raw: bytes) -> bytes:
    data = bytearray(raw)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        at = rng.randrange(len(data) + 1)
        until = min(len(data), at + rng.choice((1, 1, 2, 8, 64)))
        match rng.randrange(6):
            case 0:
                data[at:until] = rng.randbytes(until - at)
            case 1:
                del data[at:until]
            case 2:
                data[at:at] = rng.choice(TOKENS)
            case 3:
                data[at:until] = rng.choice(TOKENS)
            case 4:
                data[at:at] = data[at:until] * rng.choice((1, 2, 100))
            case _:
                del data[at:]
        data = data or bytearray(b"\r")
    return bytes(data)


def _cut(rng: Random, raw: bytes) -> list[bytes]:
    if rng.random() < 0.3:
        return [raw]
    places = sorted(rng.randrange(len(raw) + 1) for _ in range(rng.choice((1, 2, 5, 30))))
    ends = [0, *places, len(raw)]
    return [raw[begin:end] for begin, end in itertools.pairwise(ends) if end > begin]


def script_of(rng: Random, *, damages: bool) -> Callable[[Message], Said | None]:
    """A worker that repeats the nonce of each request's head and body, if it has any."""

    def script(asked: Message) -> Said | None:
        if damages and rng.random() < 0.05:
            return None
        echo = b'{"nonce":"%b","body":' % (asked.header(b"x-nonce") or b"") + asked.body + b"}"
        raw, closes = _framed(rng, asked, echo)
        if damages and rng.random() < 0.2:
            raw, closes = _damaged(rng, raw), rng.random() < 0.7
        reads = _cut(rng, raw)
        return Said(reads=[b"", *reads] if rng.random() < 0.5 else reads, closes=closes)

    return script


def _framed(rng: Random, asked: Message, echo: bytes) -> tuple[bytes, bool]:
    start = b"HTTP/1.1 200 OK\r\nx-nonce: %b\r\n" % (asked.header(b"x-nonce") or b"")
    if b'"stream": true' in asked.body:
        events = (b"data: " + echo + b"\n\n", b"data: [DONE]\n\n")
        return start + b"content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n" + chunks(*events), False
    match rng.randrange(4):
        case 0:
            at = rng.randrange(1, len(echo))
            return start + b"transfer-encoding: chunked\r\n\r\n" + chunks(echo[:at], echo[at:]), False
        case 1:
            return start + b"\r\n" + echo, True
        case _:
            return start + b"content-length: %d\r\n\r\n" % len(echo) + echo, False


# -- one input ---------------------------------------------------------------------------------------------------------


async def check_input(plane: Plane, rng: Random) -> None:
    """Run one input.

    Raises:
        AssertionError: something is not as it has to be.
    """
    # Whatever is asked of `rng` is asked before anything is begun: a source may end.
    talks = [talk_of(rng, number) for number in range(rng.randint(1, 3))]
    damages, order, words = rng.random() < 0.4, Random(rng.getrandbits(32)), Random(rng.getrandbits(32))
    plane.begin()
    plane.worker.script = script_of(words, damages=damages)
    clients = [plane.client() for _ in talks]
    with _nothing_raised():
        await _talk(order, talks, clients)
        await _quiet(plane, clients)
        for client in clients:
            client.wire.reset()
        await plane.check_settled()
        await idle(3)
    assert all(client.wire.over for client in clients)
    for talk, client in zip(talks, clients, strict=True):
        others = [mark for other in talks if other is not talk for mark in other.marks]
        _check_received(talk, client, others, damages=damages)


async def _talk(rng: Random, talks: list[Talk], clients: list[Client]) -> None:
    """All at once, piece by piece, in any order."""
    left = [list(talk.pieces) for talk in talks]
    for talk, client in zip(talks, clients, strict=True):
        client.wire.reads = not talk.stops_reading
    while any(left):
        number = rng.choice([number for number, pieces in enumerate(left) if pieces])
        talk, client = talks[number], clients[number]
        client.send(left[number].pop(0))
        if len(talk.pieces) - len(left[number]) == talk.leaves_after:
            left[number].clear()
            rng.choice((client.wire.leave, client.wire.reset))()
        if rng.random() < 0.5:
            await idle(rng.randrange(8))
    for client in clients:
        client.wire.read_on()


async def _quiet(plane: Plane, clients: list[Client]) -> None:
    """Until nothing is written any more for a while."""
    seen, since = -1, 0
    for _ in range(MOST_TURNS):
        now = sum(client.wire.writes for client in clients) + len(plane.worker.asked) + len(plane.outcomes)
        seen, since = (seen, since + 1) if now == seen else (now, 0)
        if since > 40:
            return
        await asyncio.sleep(0)
    raise AssertionError("it goes on and on")


def _check_received(talk: Talk, client: Client, others: list[bytes], *, damages: bool) -> None:
    # An answer has the nonce of the request's body and of its head, so what is another's shows.
    received = bytes(client.wire.taken)
    for mark in others:
        assert mark not in received, "another's nonce"
    if talk.damaged or damages:
        return
    found = [answer.header(b"x-nonce") for answer in client.answers if answer.header(b"x-nonce") and answer.whole]
    if talk.leaves_after is None:
        assert found == talk.nonces
    else:
        assert found == talk.nonces[: len(found)]
    for answer in client.answers:
        nonce = answer.header(b"x-nonce")
        if nonce and answer.whole:
            assert answer.body.count(nonce) == 2, "an answer that is not its request's"


@contextmanager
def _nothing_raised() -> Iterator[None]:
    """Neither in a callback nor in an application."""
    raised: list[Any] = []
    loop, logger, handler = asyncio.get_running_loop(), logging.getLogger("uvicorn.error"), logging.Handler()
    former = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: raised.append(context))
    # An answer that is broken off is an error to uvicorn, and none here.
    handler.addFilter(lambda record: record.exc_info is not None)
    handler.emit = raised.append  # type: ignore[method-assign] # all that it is to do
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        loop.set_exception_handler(former)
    assert raised == [], raised


# -- by the million ----------------------------------------------------------------------------------------------------


async def _run(kind: Any, *, inputs: int, first: int, seed: int) -> None:
    async with plane_of(kind) as plane:
        for number in range(first, first + inputs):
            try:
                await check_input(plane, Random(f"{seed}-{number}"))
            except BaseException:
                print(f"input {number} of seed {seed} on {kind}")
                raise
            if (number - first + 1) % 10_000 == 0:
                print(f"{number - first + 1} inputs on {kind}", flush=True)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=10_000, help="for each data plane")
    parser.add_argument("--first", type=int, default=0, help="number of the first one")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data-plane", choices=["auto", "asgi"], action="append", help="both by default")
    chosen = parser.parse_args()
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    for kind in chosen.data_plane or ["auto", "asgi"]:
        asyncio.run(_run(kind, inputs=chosen.inputs, first=chosen.first, seed=chosen.seed))


if __name__ == "__main__":
    main()
