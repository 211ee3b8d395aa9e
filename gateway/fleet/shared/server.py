"""The Redis or Valkey server, as the shared state sees it.

The rule of this module: whatever goes wrong is raised, and the caller bounds the time. One script is all that it runs
there. It touches five keys, given to it as such, with the hash tag `{prefix}`: so they are in one slot, and in a
Cluster the node that has this slot does all the work. A call with one step takes it about 100 µs and each further step
20, a made response 50; a pin is about 240 bytes and a response 270. Needs Redis 5 or any Valkey.
"""

import secrets
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any, Final

from redis.asyncio import Redis, RedisCluster
from redis.asyncio.client import PubSub
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.commands.core import AsyncScript
from redis.exceptions import ConnectionError as LostConnection
from redis.exceptions import RedisError

from gateway.core.conversation.identity import ConversationId
from gateway.core.types import WorkerId
from gateway.fleet.shared.codec import Reply, Step, arguments, message_of, reply_of
from gateway.fleet.shared.pins import Pin, SharedOptions

SCRIPT: Final = files(__package__).joinpath("pins.lua").read_text(encoding="utf-8")

Heard = Callable[[ConversationId, Pin | None], None]


class RedisServer:
    """One connection for calls and one that listens, from each `open` to the next `close`.

    Args:
        options: where it is.
        clock: seconds; the clock of the pins' `last_seen_s`.

    Raises:
        ValueError: the URL cannot be used.
    """

    def __init__(self, options: SharedOptions, *, clock: Callable[[], float]) -> None:
        self._options = options
        self._clock = clock
        slot = f"{{{options.prefix}}}"
        self._keys = [f"{slot}:{name}" for name in ("pins", "seen", "sums", "responses", "made")]
        self._channel = f"{slot}:moved"
        self._caller = secrets.token_hex(8)
        # It connects when it is first used, which this one never is: it finds out whether the URL can be used.
        self._client: Redis | RedisCluster = self._tried_client()
        self._script: AsyncScript = self._client.register_script(SCRIPT)
        self._listener: PubSub | None = None

    async def open(self) -> None:
        """Connect anew, so that a name is looked up again, and be subscribed before anything else is done."""
        self._client = new_client(self._options)
        self._script = self._client.register_script(SCRIPT)
        await self._client.initialize()  # a Cluster's client must know the slots before it can subscribe
        self._listener = self._client.pubsub()
        await self._listener.subscribe(self._channel)
        while (message := await self._listener.get_message(timeout=None)) is None or message["type"] != "subscribe":
            pass

    async def run(self, steps: Sequence[Step], *, workers: Sequence[WorkerId] | None, sweep: int) -> Reply:
        """One call of the script.

        Args:
            steps: what it does, in order.
            workers: whose occupancy to read; None reads that of all.
            sweep: how many expired pins to remove at most.
        """
        options = self._options
        settings = (round(options.idle_ttl_s * 1e3), sweep, self._channel, self._caller)
        kept = (round(options.response_ttl_s * 1e3), options.max_responses)
        raw: Any = await self._script(
            keys=self._keys, args=[*settings, *kept, *arguments(steps, workers=workers, now_s=self._clock())]
        )
        return reply_of(raw, self._clock())

    async def listen(self, heard: Heard) -> None:
        """Pass on what other replicas move (to which pin) and close (None), until the connection is lost."""
        assert self._listener is not None, "open() comes first"
        while True:
            message = await self._listener.get_message(timeout=None)
            if message is None or message["type"] != "message":
                # It was subscribed once more, so the library has connected anew: what was published meanwhile is lost.
                raise LostConnection("the subscription broke off")
            news = message_of(message["data"], caller=self._caller.encode(), now_s=self._clock())
            if news is not None:
                heard(*news)

    async def close(self) -> None:
        """Close both connections."""
        if self._listener is not None:
            await self._listener.aclose()  # type: ignore[no-untyped-call]  # the library has no annotation there
            self._listener = None
        await self._client.aclose()

    def _tried_client(self) -> Redis | RedisCluster:
        """A client of whose URL every part is understood."""
        try:
            client = new_client(self._options)
            if isinstance(client, Redis):
                client.connection_pool.make_connection()  # type: ignore[no-untyped-call]  # no annotation there either
        except (TypeError, RedisError) as error:
            raise ValueError(str(error)) from error
        return client


def new_client(options: SharedOptions) -> Redis | RedisCluster:
    """A client that tries once: who waits for it decides whether there is time for more."""
    retry = Retry(NoBackoff(), 0)
    if options.is_cluster:
        return RedisCluster.from_url(options.url, retry=retry, protocol=2)
    return Redis.from_url(options.url, retry=retry, protocol=2)
