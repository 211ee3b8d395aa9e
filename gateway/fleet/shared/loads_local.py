"""The loads of the processes of one gateway, passed on by their parent over a Unix socket.

The rule of this module: the parent keeps what each process told last and who has not heard of it yet. A process whose
connection ends has nothing in flight any more, at once; so has one that has not called for long.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Final

import msgspec
import structlog

from gateway.core.events import LoadsElsewhere, WorkerLoad
from gateway.core.types import WorkerId
from gateway.fleet.shared.loads import LoadAnswer, SharedLoads
from gateway.fleet.shared.pins import SharedOptions

LENGTH_BYTES: Final = 4
MAX_FRAME_BYTES: Final = 16 * 2**20
"""Loads at a hundred thousand workers are less."""
RETRY_S: Final = 0.2
"""Between two tries to reach the parent."""
EPOCH: Final = "parent"
"""There is one parent, and its processes end with it."""

Numbers = tuple[int, ...]
"""A `WorkerLoad` without its worker."""
_NONE: Final[Numbers] = (0,) * (len(WorkerLoad._fields) - 1)


class Told(msgspec.Struct, frozen=True, array_like=True):
    """What a process says in one call."""

    number: int
    gone_after_s: float
    changed: list[list[str | int]]


class Heard(msgspec.Struct, frozen=True, array_like=True):
    """What it is answered; see `LoadAnswer`."""

    number: int | None
    replicas: int
    others: list[list[str | int]]


class _Member:
    """One process."""

    def __init__(self, unheard: Iterable[str]) -> None:
        self.loads: dict[str, Numbers] = {}
        self.unheard = set(unheard)
        """Workers where anything of another process has changed since this one's last call."""
        self.number = 0
        self.until_s = 0.0


class LoadHub:
    """What all processes have in flight.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._members: dict[int, _Member] = {}

    def exchange(self, name: int, told: Told) -> Heard:
        """One call of a process; `name` is its own for as long as it is connected."""
        self._forget_the_silent(but=name)
        if told.number == 0:
            self.leave(name)
            self._members[name] = _Member(self._workers())
        member = self._members.get(name)
        if member is None or told.number != member.number:
            return Heard(None, len(self._members), [])
        for worker, *numbers in told.changed:
            self._set(name, member, str(worker), tuple(map(int, numbers)))
        member.number += 1
        member.until_s = self._clock() + told.gone_after_s
        unheard, member.unheard = member.unheard, set()
        others: list[list[str | int]] = [[worker, *self._sum(worker, but=name)] for worker in sorted(unheard)]
        return Heard(member.number, len(self._members), others)

    def leave(self, name: int) -> None:
        """A process has nothing in flight any more."""
        gone = self._members.pop(name, None)
        if gone is not None:
            for member in self._members.values():
                member.unheard |= gone.loads.keys()

    def _forget_the_silent(self, *, but: int) -> None:
        now_s = self._clock()
        for name in [name for name, member in self._members.items() if member.until_s < now_s and name != but]:
            self.leave(name)

    def _workers(self) -> set[str]:
        return {worker for member in self._members.values() for worker in member.loads}

    def _set(self, name: int, member: _Member, worker: str, load: Numbers) -> None:
        if load == member.loads.get(worker, _NONE):
            return
        if any(load):
            member.loads[worker] = load
        else:
            del member.loads[worker]
        for other, its in self._members.items():
            if other != name:
                its.unheard.add(worker)

    def _sum(self, worker: str, *, but: int) -> Sequence[int]:
        loads = [member.loads.get(worker, _NONE) for name, member in self._members.items() if name != but]
        return [sum(column) for column in zip(_NONE, *loads, strict=True)]


class LocalLoads:
    """A process's connection to its parent: a `LoadServer`.

    Args:
        path: the parent's socket.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._decoder: Final = msgspec.msgpack.Decoder(Heard)

    async def open(self) -> None:
        """Connect anew."""
        self._streams = await asyncio.open_unix_connection(self._path)

    async def exchange(
        self,
        epoch: str,  # noqa: ARG002 (there is one)
        number: int,
        changed: Sequence[WorkerLoad],
        *,
        gone_after_s: float,
    ) -> LoadAnswer:
        """One call; see `LoadServer`."""
        assert self._streams is not None, "open() comes first"
        reader, writer = self._streams
        _send(writer, Told(number, gone_after_s, [[*load] for load in changed]))
        heard = self._decoder.decode(await _receive(reader))
        others = [WorkerLoad(WorkerId(str(worker)), *map(int, numbers)) for worker, *numbers in heard.others]
        return LoadAnswer(epoch=EPOCH, number=heard.number, replicas=heard.replicas, others=others)

    async def close(self) -> None:
        """Disconnect."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


@asynccontextmanager
async def loads_passed_on(path: Path, clock: Callable[[], float]) -> AsyncIterator[None]:
    """The parent's side, on a socket that is made at `path`.

    Raises:
        OSError: it cannot be made.
    """
    hub, names = LoadHub(clock), count()
    decoder = msgspec.msgpack.Decoder(Told)
    talks: set[asyncio.Task[None]] = set()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        name = next(names)
        try:
            while True:
                _send(writer, hub.exchange(name, decoder.decode(await _receive(reader))))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the process has ended
        except (msgspec.MsgspecError, ValueError, TypeError) as error:
            structlog.get_logger().error("processes.loads_unreadable", error=repr(error))
        finally:
            hub.leave(name)
            writer.close()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(talk(reader, writer))
        talks.add(task)
        task.add_done_callback(talks.discard)

    server = await asyncio.start_unix_server(begin, path)
    try:
        yield
    finally:
        server.close()
        for task in [*talks]:
            task.cancel()
        await asyncio.gather(*talks, return_exceptions=True)


def shared_locally(
    path: Path,
    load_s: float,
    *,
    clock: Callable[[], float],
    loads: Callable[[], Iterable[WorkerLoad]],
    heard: Callable[[LoadsElsewhere], None],
) -> SharedLoads:
    """A process's side, to be started; see `SharedLoads`."""
    options = SharedOptions(url=f"unix://{path}", load_s=load_s, retry_s=RETRY_S)
    return SharedLoads(LocalLoads(path), options, clock=clock, loads=loads, heard=heard)


def _send(writer: asyncio.StreamWriter, message: Told | Heard) -> None:
    data = msgspec.msgpack.encode(message)
    writer.write(len(data).to_bytes(LENGTH_BYTES, "big") + data)


async def _receive(reader: asyncio.StreamReader) -> bytes:
    length = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "big")
    if length > MAX_FRAME_BYTES:
        raise ValueError(f"a message of {length} bytes")
    return await reader.readexactly(length)
