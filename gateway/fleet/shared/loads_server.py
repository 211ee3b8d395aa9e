"""The Redis or Valkey server, as the log of all replicas' loads.

The rule of this module: whatever goes wrong is raised, and the caller bounds the time. One script with a connection of
its own, beside that of the pins, so that no request waits behind it. Its five keys have the hash tag `{prefix}`.
"""

import secrets
from collections.abc import Sequence
from importlib.resources import files
from typing import Any, Final

from redis.asyncio import Redis, RedisCluster
from redis.commands.core import AsyncScript

from gateway.core.events import WorkerLoad
from gateway.core.types import WorkerId
from gateway.fleet.shared.loads import LoadAnswer
from gateway.fleet.shared.loads_log import CHANGES, WHOLE, HeardLoads, written
from gateway.fleet.shared.pins import SharedOptions
from gateway.fleet.shared.server import new_client

SCRIPT: Final = files(__package__).joinpath("loads.lua").read_text(encoding="utf-8")
KEYS: Final = ("log", "whole", "marks", "alive", "state")
LOG_BYTES: Final = 1 << 20
"""Of the log, beyond which its beginning is cut off; some hundred gateways write so much in a few seconds."""
WHOLE_EVERY: Final = 4
"""A replica tells all that it has whenever a share of this of those bytes was written: at least half can be cut off."""


class RedisLoads:
    """One connection, from each `open` to the next `close`.

    Args:
        options: where it is.
        log_bytes: the same for all replicas.
    """

    def __init__(self, options: SharedOptions, *, log_bytes: int = LOG_BYTES) -> None:
        self._options = options
        self._keys = [f"{{{options.prefix}}}:loads:{name}" for name in KEYS]
        self._log_bytes = log_bytes
        self._replica = secrets.token_hex(8)
        self._own: dict[WorkerId, WorkerLoad] = {}
        """As last told."""
        self._whole_at = 0
        """Where the log ended when all was told."""
        self._heard = HeardLoads(self._replica)
        self._client: Redis | RedisCluster | None = None
        self._script: AsyncScript | None = None

    async def open(self) -> None:
        """Connect anew, so that a name is looked up again."""
        self._client = new_client(self._options)
        self._script = self._client.register_script(SCRIPT)
        await self._client.initialize()

    async def exchange(
        self, epoch: str, number: int, changed: Sequence[WorkerLoad], *, gone_after_s: float
    ) -> LoadAnswer:
        """One call of the script; see `LoadServer`."""
        assert self._script is not None, "open() comes first"
        self._tell(changed, is_all=number == 0)
        is_due = number == 0 or number - self._whole_at > self._log_bytes // WHOLE_EVERY
        text = written(CHANGES, self._replica, changed) if changed else ""
        whole = written(WHOLE, self._replica, self._own.values()) if is_due else ""
        args: list[str | int] = [self._replica, round(gone_after_s * 1e3), epoch, number, text, whole, self._log_bytes]
        raw: Any = await self._script(keys=self._keys, args=args)
        known, took, replicas, texts = raw
        if took < 0:
            return LoadAnswer(epoch=known.decode(), number=None, replicas=replicas, others=())
        if is_due:
            self._whole_at = took
        if number == 0:
            self._heard.begin()
        for told in texts:
            self._heard.read(told.decode())
        return LoadAnswer(epoch=known.decode(), number=took, replicas=replicas, others=self._heard.changed())

    async def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    def _tell(self, changed: Sequence[WorkerLoad], *, is_all: bool) -> None:
        if is_all:
            self._own = {}
        for load in changed:
            if any(load[1:]):
                self._own[load.worker_id] = load
            else:
                self._own.pop(load.worker_id, None)
