"""`python -m loadtest.plane.cancel`: clients that leave at random moments, plain and streamed, local and remote.

Each leaves at a moment drawn beforehand, and what it had under way at a worker must end within 100 ms; afterwards the
gateway holds nothing of them, and its connections answer others rightly. Exit status 1 where something does not hold,
2 where a part did not start.
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from time import perf_counter

import msgspec
import uvloop

from loadtest.client.http import Collected, HttpClient, HttpError, Origin
from loadtest.fleet.processes import FleetError
from loadtest.plane.departures import Departure, Fate, cancel_checks, distribution, fates
from loadtest.plane.proxies import ALWAYS_REMOTE, API_KEY, MODEL, MODES, serving, tidegate
from loadtest.plane.scripted import PREFILL_S, WHOLE_S, Seen, scripted_pair
from loadtest.plane.state import GatewayState, settled
from loadtest.replicas.checks import Check, check_lines

CLIENTS = 200
START_WITHIN_S = 2.0
ASKED_AFTERWARDS = 50
SETTLE_S = 10.0
LONG_PROMPT = "word " * 100
"""With it a prompt has several KV blocks, and goes remote; without, it fills none."""
HEADERS = {"content-type": "application/json", "authorization": f"Bearer {API_KEY}"}
TARGET = "/v1/chat/completions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """One client, drawn beforehand."""

    mark: str
    is_remote: bool
    streams: bool
    starts_s: float
    stays_s: float

    @property
    def body(self) -> bytes:
        """Its request."""
        return body(self.mark, is_remote=self.is_remote, streams=self.streams)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a run showed."""

    fates: Sequence[Fate]
    checks: Sequence[Check]


def main(argv: Sequence[str] | None = None) -> None:
    """Run, print, and exit with 1 where something does not hold."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.plane.cancel", description=__doc__)
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--mode", choices=MODES, default=MODES[0], help="the gateway's data plane")
    parser.add_argument("--core", type=int, default=0, help="the gateway's")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    try:
        found = uvloop.run(play(arguments.clients, mode=arguments.mode, core=arguments.core, seed=arguments.seed))
    except FleetError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        sys.exit(2)
    print(*distribution(found.fates), *check_lines(found.checks), sep="\n")
    sys.exit(not all(check.holds for check in found.checks))


async def play(clients: int, *, mode: str, core: int, seed: int) -> Found:
    """Let them come and leave; raises FleetError."""
    seen = Seen()
    async with scripted_pair(seen) as workers:
        with tempfile.TemporaryDirectory(prefix="tidegate-cancel-") as name, ExitStack() as stack:
            proxy = tidegate(workers, Path(name), mode=mode, settings=ALWAYS_REMOTE)
            # In threads: the workers are in this loop, and are asked meanwhile.
            await asyncio.to_thread(stack.enter_context, serving(proxy, Path(name), core=core))
            client = HttpClient(Origin.of(proxy.url))
            departures = await leave_all(client, draw(clients, seed))
            state = await asyncio.to_thread(_rest, proxy.url)
            right = await _answered_right(client, ASKED_AFTERWARDS)
            client.close()
            await asyncio.to_thread(stack.close)
    found = fates(departures, seen.calls)
    checks = cancel_checks(found, leaving=clients, state=state, answered_right=right, asked=ASKED_AFTERWARDS)
    return Found(fates=found, checks=checks)


def draw(clients: int, seed: int) -> list[Client]:
    """All kinds in turn, each client for a part of the time that its answer takes."""
    rng = Random(seed)  # noqa: S311 (not a secret)
    return [
        Client(
            mark=f"c{number}",
            is_remote=(is_remote := bool(number % 2)),
            streams=bool(number // 2 % 2),
            starts_s=rng.uniform(0.0, START_WITHIN_S),
            stays_s=rng.uniform(0.0, WHOLE_S + PREFILL_S * is_remote),
        )
        for number in range(clients)
    ]


async def leave_all(client: HttpClient, drawn: Sequence[Client]) -> list[Departure]:
    """Those who left before their answer was whole."""
    came = await asyncio.gather(*(_come_and_leave(client, one) for one in drawn))
    return [departure for departure in came if departure is not None]


async def _come_and_leave(client: HttpClient, one: Client) -> Departure | None:
    await asyncio.sleep(one.starts_s)
    try:
        async with asyncio.timeout(one.stays_s):
            await client.send("POST", TARGET, Collected(), headers=HEADERS, body=one.body)
    except TimeoutError:
        return Departure(mark=one.mark, left_s=perf_counter())
    except HttpError:
        pass  # it did not leave by itself, and is missed
    return None


async def _answered_right(client: HttpClient, count: int) -> int:
    return sum(await asyncio.gather(*(_is_right(client, number) for number in range(count))))


async def _is_right(client: HttpClient, number: int) -> bool:
    """Whether an answer is whole, and that of its own request."""
    mark = f"a{number}"
    answer = Collected()
    asked = body(mark, is_remote=bool(number % 2), streams=bool(number // 2 % 2))
    try:
        await client.send("POST", TARGET, answer, headers=HEADERS, body=asked)
    except HttpError:
        return False
    told: bytes = bytes(answer.body)
    others = [word for word in _marks(told) if word != mark]
    return answer.status == 200 and mark.encode() in told and not others


def _marks(told: bytes) -> list[str]:
    pieces = told.split(b'"content":"')[1:]
    return [piece.partition(b'"')[0].decode().strip() for piece in pieces]


def body(mark: str, *, is_remote: bool, streams: bool) -> bytes:
    """A request whose prompt begins with its mark."""
    content = f"{mark} {LONG_PROMPT}" if is_remote else f"{mark} a"
    asked: Mapping[str, object] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": content}],
        "max_tokens": 16,
        "stream": streams,
    }
    return msgspec.json.encode(asked)


def _rest(url: str) -> GatewayState:
    return settled(url, lambda state: state.is_empty, within_s=SETTLE_S)


if __name__ == "__main__":
    main()
