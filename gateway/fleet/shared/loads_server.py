"""The Redis or Valkey server, as the sum of all replicas' loads.

The rule of this module: whatever goes wrong is raised, and the caller bounds the time. One script with a connection of
its own, beside that of the pins, so that no request waits behind it. Its five keys have the hash tag `{prefix}`. A call
takes the server about 0.1 ms, and 0.4 where it takes five loads and gives a hundred.
"""

import secrets
from collections.abc import Sequence
from importlib.resources import files
from typing import Any, Final

from redis.asyncio import Redis, RedisCluster
from redis.commands.core import AsyncScript

from gateway.core.events import WorkerLoad
from gateway.core.types import WorkerId
from gateway.fleet.shared.loads import GONE_INTERVALS, LoadAnswer
from gateway.fleet.shared.pins import SharedOptions
from gateway.fleet.shared.server import new_client

SCRIPT: Final = files(__package__).joinpath("loads.lua").read_text(encoding="utf-8")
KEYS: Final = ("sums", "told", "changed", "alive", "state")


class RedisLoads:
    """One connection, from each `open` to the next `close`.

    Args:
        options: where it is; `load_s` must be set.
    """

    def __init__(self, options: SharedOptions) -> None:
        assert options.load_s is not None
        self._options = options
        self._keys = [f"{{{options.prefix}}}:loads:{name}" for name in KEYS]
        self._gone_ms = round(GONE_INTERVALS * options.load_s * 1e3)
        self._replica = secrets.token_hex(8)
        self._client: Redis | RedisCluster | None = None
        self._script: AsyncScript | None = None

    async def open(self) -> None:
        """Connect anew, so that a name is looked up again."""
        self._client = new_client(self._options)
        self._script = self._client.register_script(SCRIPT)
        await self._client.initialize()

    async def exchange(self, epoch: str, number: int, changed: Sequence[WorkerLoad]) -> LoadAnswer:
        """One call of the script; see `LoadServer`."""
        assert self._script is not None, "open() comes first"
        told = [text for load in changed for text in (load.worker_id, _written(load))]
        raw: Any = await self._script(keys=self._keys, args=[self._replica, self._gone_ms, epoch, number, *told])
        known, took, replicas, flat = raw
        return LoadAnswer(
            epoch=known.decode(),
            number=None if took < 0 else took,
            replicas=replicas,
            sums=[_read(worker, load) for worker, load in zip(flat[::2], flat[1::2], strict=True)],
        )

    async def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None


def _written(load: WorkerLoad) -> str:
    return " ".join(map(str, load[1:])) if any(load[1:]) else ""


def _read(worker: bytes, load: bytes) -> WorkerLoad:
    return WorkerLoad(WorkerId(worker.decode()), *map(int, load.split()))
