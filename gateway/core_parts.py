"""The core as the rest of the gateway calls it, and with whom it shares what it knows.

The rule of this module: parts are made and joined, and taken down again by the stack that is handed over. Libraries
that only sharing needs are loaded only where something is shared.
"""

from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.core.loads_elsewhere import loads_of
from gateway.core.router import Router
from gateway.settings import Settings
from gateway.telemetry.journal import JournalWriter
from gateway.telemetry.recorded_core import RecordedCore
from gateway.upstream.calling import CallingCore, ReleasingCore

if TYPE_CHECKING:
    from gateway.fleet.shared.joining import Joined, Joining
    from gateway.fleet.shared.loads import SharedLoads


def _joining(settings: Settings, clock: Callable[[], float]) -> "Joining | None":
    if settings.shared.url is None:
        return None
    from gateway.fleet.shared.joining import Joining  # noqa: PLC0415 (the library costs most of a second)

    return Joining(settings, clock=clock)


async def open_core(
    settings: Settings, router: Router, instance: str, clock: Callable[[], float], stack: AsyncExitStack
) -> tuple[CallingCore, "Joined | None"]:
    """What the rest of the gateway calls, and what is shared with other replicas."""
    joining = _joining(settings, clock)
    recorded = _recorded(router, instance, settings, stack)
    if joining is None:
        return CallingCore(recorded), None
    joined = joining.join(recorded, router)
    stack.push_async_callback(joined.stop)
    await joined.start()
    return joined.core, joined


def open_loads(
    settings: Settings,
    core: CallingCore,
    router: Router,
    clock: Callable[[], float],
    stack: AsyncExitStack,
    *,
    shared: "Joined | None",
    parent: Path | None,
) -> "SharedLoads | None":
    """What tells others of this one's load: replicas by the server that they share, else processes by their parent."""
    if shared is not None:
        return shared.loads
    if parent is None or settings.shared.load_s is None:
        return None
    from gateway.fleet.shared.loads_local import shared_locally  # noqa: PLC0415 (one process alone needs none of it)

    in_flight = partial(loads_of, router.ledger)
    loads = shared_locally(parent, settings.shared.load_s, clock=clock, loads=in_flight, heard=core.observe)
    loads.start()
    stack.push_async_callback(loads.stop)
    return loads


def _recorded(router: Router, instance: str, settings: Settings, stack: AsyncExitStack) -> ReleasingCore:
    if settings.telemetry.journal is None:
        return router
    journal = stack.enter_context(JournalWriter(settings.telemetry.journal))
    return RecordedCore(router, journal, seed=settings.routing.seed, instance=instance)
