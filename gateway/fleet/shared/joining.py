"""Joining the replicas that share pins.

The rule of this module: parts are made and joined here; nothing is asked of the server before it is started.
"""

from collections.abc import Callable
from dataclasses import dataclass

from gateway.core.events import Event
from gateway.core.loads_elsewhere import loads_of
from gateway.core.router import Router
from gateway.fleet.shared.hearing import Hearing
from gateway.fleet.shared.loads import SharedLoads
from gateway.fleet.shared.loads_server import RedisLoads
from gateway.fleet.shared.pins import SharedOptions
from gateway.fleet.shared.server import RedisServer
from gateway.fleet.shared.sharing import Sharing
from gateway.fleet.shared.store import SharedPins
from gateway.fleet.shared.telling import TellingCore
from gateway.settings import Settings, SettingsError
from gateway.upstream.calling import CallingCore, ReleasingCore


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """A replica's side of the shared state."""

    core: CallingCore
    """What the rest of the gateway calls."""
    sharing: Sharing
    pins: SharedPins
    """To be started, and stopped when no request is left."""
    loads: SharedLoads | None
    """The same; None where they are not shared."""

    async def start(self) -> None:
        """Begin, and wait until the server has been tried once."""
        if self.loads is not None:
            self.loads.start()
        await self.pins.start()

    async def stop(self) -> None:
        """Send what is queued, if the server takes it in time, and end."""
        if self.loads is not None:
            await self.loads.stop()
        await self.pins.stop()


class Joining:
    """What a replica needs to join the others.

    Args:
        settings: the whole tree, with a URL in `shared`.
        clock: seconds; the core's clock.

    Raises:
        SettingsError: the URL cannot be used.
    """

    def __init__(self, settings: Settings, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._options = _options(settings)
        try:
            self._server = RedisServer(self._options, clock=clock)
        except ValueError:
            # The library's words may hold a part of the URL, and with it of a password.
            words = "this is no URL of a Redis or Valkey server (redis://, rediss:// or unix://)"
            raise SettingsError(f"shared.url: {words}") from None

    def join(self, core: ReleasingCore, router: Router) -> Joined:
        """The replica with this core: the router, recorded or not, and the same to be read."""
        clock, options = self._clock, self._options

        def observe(event: Event) -> None:
            calling.observe(event)

        hearing = Hearing(router, observe, clock=clock, refresh_s=options.refresh_s)
        pins = SharedPins(
            self._server,
            options,
            clock=clock,
            snapshot=hearing.snapshot,
            moved=hearing.moved,
            occupancy=hearing.occupancy,
        )
        calling = CallingCore(TellingCore(core, router, pins))
        loads = None
        if options.load_s is not None:
            loads = SharedLoads(
                RedisLoads(options), options, clock=clock, loads=lambda: loads_of(router.ledger), heard=observe
            )
        return Joined(core=calling, sharing=Sharing(router, pins, observe, clock=clock), pins=pins, loads=loads)


def _options(settings: Settings) -> SharedOptions:
    chosen = settings.shared
    assert chosen.url is not None
    return SharedOptions(
        url=chosen.url.get_secret_value(),
        prefix=chosen.prefix,
        is_cluster=chosen.cluster,
        deadline_s=chosen.deadline_s,
        # Of the start: all replicas need the same, and a reload reaches one after the other.
        idle_ttl_s=settings.routing.conversation.idle_ttl_s,
        max_responses=settings.routing.conversation.capacity,
        retry_s=chosen.retry_s,
        refresh_s=chosen.refresh_s,
        flush_s=chosen.flush_s,
        load_s=chosen.load_s,
        batch_steps=chosen.batch_steps,
        max_queued=chosen.max_queued,
    )
