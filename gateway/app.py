"""The composition root: the only place where the gateway's parts are made and joined.

The rule of this module: no decisions and no singletons. Everything a part needs is handed to it here, so tests hand
it something else.
"""

import asyncio
import os
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import httpx
import structlog

from gateway import __version__
from gateway.api.admin import AdminParts, build_admin, require_guarded_admin
from gateway.api.asgi import AsgiApp
from gateway.api.auth import RequireKey
from gateway.api.dispatch import OPEN_PATHS, Dispatch
from gateway.api.hot import HotRoutes
from gateway.api.intake import Intake, SidecarMode
from gateway.api.live import Live
from gateway.api.protocol import BoundedHeads
from gateway.api.responses import StoredResponses, Whereabouts
from gateway.api.routes import Views, build_routes
from gateway.api.splice import spliced_into
from gateway.api.spliced import FrontDoor
from gateway.core.policy import Policy
from gateway.core.router import Router
from gateway.core.types import Outcome, OutcomeKind, RequestId, SloTarget, WorkerId
from gateway.core_parts import open_core, open_loads
from gateway.fleet.allow import AllowList
from gateway.fleet.members import members_of
from gateway.fleet.monitor import FleetMonitor
from gateway.fleet.registry import Registry
from gateway.policies import build_policy, prompt_reader
from gateway.reload import Reloader, allow_list, keep_following
from gateway.selection import Selected, select
from gateway.settings import LegSettings, Settings
from gateway.telemetry.decisions import DecisionLog
from gateway.telemetry.exposition import Exposition
from gateway.telemetry.loop_lag import LoopLagSampler
from gateway.telemetry.recorder import Metrics
from gateway.telemetry.request import RequestTelemetry
from gateway.telemetry.router_state import RouterState
from gateway.telemetry.state import Readers
from gateway.upstream.budget import RetryBudget
from gateway.upstream.calling import CallingCore
from gateway.upstream.exchange import Limits
from gateway.upstream.pool import UpstreamPool
from gateway.upstream.pool_state import PoolState
from gateway.upstream.services import Core, Services

if TYPE_CHECKING:
    from gateway.fleet.shared.joining import Joined
    from gateway.fleet.shared.loads import SharedLoads


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """A running gateway."""

    asgi: AsgiApp
    """What clients call."""
    http: type[BoundedHeads]
    """How clients' connections are served: uvicorn's protocol class for `asgi`."""
    admin: AsgiApp
    """What operators call."""
    live: Live
    reloader: Reloader
    router: Router
    registry: Registry
    decisions: DecisionLog
    exposition: Exposition
    pool: UpstreamPool


@asynccontextmanager
async def open_gateway(
    settings: Settings,
    *,
    clock: Callable[[], float] = time.monotonic,
    instance: str | None = None,
    policy: Policy | None = None,
    reread: Callable[[], Settings] | None = None,
    transport: httpx.AsyncBaseTransport | None = None,
    parent_loads: Path | None = None,
) -> AsyncIterator[Gateway]:
    """Make a gateway, watch its workers, and take it down again.

    Args:
        settings: the whole tree.
        clock: seconds, monotone.
        instance: a name that makes decision ids unique among replicas; random by default.
        policy: instead of the one that the settings describe.
        reread: reads the settings anew, for a reload; by default they stay what they are.
        transport: instead of the network, for probes and scrapes.
        parent_loads: the socket by which several processes of one gateway tell each other their loads, where they
            share no server.

    Raises:
        SettingsError: the policy cannot be built, a URL is none, or the admin application would be open.
        OSError: the journal file exists already, or cannot be made.
    """
    require_guarded_admin(settings)
    selected = select(settings.routing)
    policy = policy or build_policy(settings, selected.chosen)
    members, allow = members_of(settings), allow_list(settings)
    name = instance or uuid.uuid4().hex[:8]
    router = Router(policy, rng=Random(settings.routing.seed), instance=name)  # noqa: S311 (not a secret)
    async with AsyncExitStack() as stack:
        core, shared = await open_core(settings, router, name, clock, stack)
        loads = open_loads(settings, core, router, clock, stack, shared=shared, parent=parent_loads)
        telemetry = _telemetry(settings, policy, stack)
        registry = _registry(core, router, clock, allow=allow, max_prefillers=settings.sidecar.max_prefillers)
        for member in members.values():
            registry.add(member)
        live = Live.of(settings, registry.default_model)
        pool = UpstreamPool(_limits(settings.upstream.decode))
        stack.push_async_callback(pool.aclose)
        services = _services(settings, core=core, pool=pool, registry=registry, telemetry=telemetry, clock=clock)
        passed = partial(services.pending.check, router.health.is_down)
        await _watch(registry, core, settings, stack, clock=clock, transport=transport, passed=passed)
        state = RouterState(router, clock)
        exposition = _exposition(telemetry, state, PoolState(pool, registry.origins), shared, loads, stack)
        # Asked anew for every request, so that it follows the policy in force.
        sidecar, whereabouts = _sidecar(settings, registry), _whereabouts(router, live, shared)
        intake = Intake(live, sidecar=sidecar, reader=partial(prompt_reader, router), hides=whereabouts.is_hidden)
        hot = _hot(settings, services, intake, shared)
        stored = StoredResponses(services, intake, whereabouts, max_body_bytes=settings.server.max_body_bytes)
        reloader = _reloader(settings, policy, selected, reread, telemetry, core, registry, live, stack)
        routes = Dispatch(hot, stored, build_routes(_views(router, registry, live, exposition)))
        guard = _guarded(routes, live, telemetry)
        yield Gateway(
            asgi=guard,
            http=_http(settings, guard, hot),
            admin=_admin(registry, state, telemetry.decisions, reloader, live),
            live=live,
            reloader=reloader,
            router=router,
            registry=registry,
            decisions=telemetry.decisions,
            exposition=exposition,
            pool=pool,
        )


def _reloader(
    settings: Settings,
    policy: Policy,
    selected: Selected,
    reread: Callable[[], Settings] | None,
    telemetry: RequestTelemetry,
    core: CallingCore,
    registry: Registry,
    live: Live,
    stack: AsyncExitStack,
) -> Reloader:
    """It follows the policy store from here on."""
    reloader = Reloader(
        settings,
        policy,
        selected=selected,
        refused=telemetry.metrics.policy_refused,
        reread=reread or (lambda: settings),
        core=core,
        registry=registry,
        live=live,
    )
    _follow(reloader, stack)
    return reloader


def _registry(
    core: Core, router: Router, clock: Callable[[], float], *, allow: AllowList, max_prefillers: int
) -> Registry:
    in_flight = router.ledger.uses
    return Registry(core, clock=clock, in_flight=in_flight, allow=allow, max_prefillers=max_prefillers)


def _telemetry(settings: Settings, policy: Policy, stack: AsyncExitStack) -> RequestTelemetry:
    chosen = settings.telemetry
    decisions = DecisionLog(
        chosen.decision_log,
        max_bytes=chosen.decision_log_max_bytes,
        keep_files=chosen.decision_log_files,
        ring_records=chosen.recent_decisions,
    )
    decisions.start()
    stack.callback(decisions.close)
    logger = structlog.get_logger().bind() if chosen.request_log else None
    return RequestTelemetry(metrics=Metrics(slos=_slos(policy)), decisions=decisions, logger=logger)


async def _watch(
    registry: Registry,
    core: Core,
    settings: Settings,
    stack: AsyncExitStack,
    *,
    clock: Callable[[], float],
    transport: httpx.AsyncBaseTransport | None,
    passed: Callable[[], None],
) -> None:
    client = await stack.enter_async_context(httpx.AsyncClient(transport=transport, trust_env=False))
    monitor = FleetMonitor(registry, core, client, settings.fleet, clock=clock, passed=passed)
    stack.push_async_callback(monitor.stop)
    await monitor.start()


def _follow(reloader: Reloader, stack: AsyncExitStack) -> None:
    following = asyncio.create_task(keep_following(reloader))

    async def stop() -> None:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)

    stack.push_async_callback(stop)


def _limits(leg: LegSettings) -> Limits:
    return Limits(**leg.model_dump())


def _slos(policy: Policy) -> Iterable[SloTarget]:
    return (policy.slo.default, *policy.slo.classes)


def _exposition(
    telemetry: RequestTelemetry,
    state: RouterState,
    pool: PoolState,
    shared: "Joined | None",
    loads: "SharedLoads | None",
    stack: AsyncExitStack,
) -> Exposition:
    lag = LoopLagSampler(asyncio.get_running_loop())
    lag.start()
    stack.callback(lag.stop)
    readers = Readers(
        state=state,
        pool=pool,
        decision_log=telemetry.decisions,
        loop_lag=lag,
        shared=None if shared is None else lambda: shared.pins.stats,
        loads=None if loads is None else loads.stats,
    )
    commit = os.environ.get("TIDEGATE_COMMIT", "unknown")
    return Exposition(telemetry.metrics, readers, version=__version__, commit=commit)


def _views(router: Router, registry: Registry, live: Live, exposition: Exposition) -> Views:
    return Views(
        models=lambda: registry.model_cards(live.aliases),
        ready=lambda: "draining" if live.draining else _not_ready(router),
        exposition=exposition.render,
    )


def _admin(registry: Registry, state: RouterState, decisions: DecisionLog, reloader: Reloader, live: Live) -> AsgiApp:
    parts = AdminParts(
        registry=registry,
        state=state,
        decisions=decisions,
        policy=lambda: reloader.policy,
        refusal=lambda: reloader.refusal,
        move_store=reloader.move_store,
        settings=lambda: reloader.settings,
        reload=reloader.reload,
        put_routing=reloader.put_routing,
        keyring=lambda: live.keyring,
    )
    return build_admin(parts)


def _whereabouts(router: Router, live: Live, shared: "Joined | None") -> Whereabouts:
    def decoders() -> list[WorkerId]:
        found = [state.spec.worker_id for state in router.fleet if state.spec.role.decodes]
        return sorted(found, key=router.health.is_down)

    return Whereabouts(
        home=router.conversations.response_home,
        decoders=decoders,
        has_tenants=lambda: live.keyring.tenants > 1,
        find=None if shared is None else shared.sharing.find,
    )


def _not_ready(router: Router) -> str | None:
    workers = [state.spec.worker_id for state in router.fleet if state.spec.role.decodes]
    if router.health.routable(workers, may_panic=True):
        return None
    return "no worker that can serve requests is up"


def _hot(settings: Settings, services: Services, intake: Intake, shared: "Joined | None") -> HotRoutes:
    before = None if shared is None else shared.sharing.before
    return HotRoutes(services, intake, max_body_bytes=settings.server.max_body_bytes, before=before)


def _http(settings: Settings, guard: RequireKey, hot: HotRoutes) -> type[BoundedHeads]:
    if settings.server.data_plane == "asgi":
        return BoundedHeads
    return spliced_into(FrontDoor(guard=guard, reception=hot.reception))


def _guarded(routes: AsgiApp, live: Live, telemetry: RequestTelemetry) -> RequireKey:
    refused = _count_refused(telemetry)
    return RequireKey(routes, lambda: live.keyring, scope="data", open_paths=OPEN_PATHS, refused=refused)


def _sidecar(settings: Settings, registry: Registry) -> SidecarMode | None:
    if not settings.sidecar.allow:
        return None
    return SidecarMode(header=settings.sidecar.header.lower().encode("latin-1"), offer=registry.offer)


def _services(
    settings: Settings,
    *,
    core: CallingCore,
    pool: UpstreamPool,
    registry: Registry,
    telemetry: RequestTelemetry,
    clock: Callable[[], float],
) -> Services:
    upstream = settings.upstream
    return Services(
        core=core,
        expect=core.expect,
        pool=pool,
        origins=registry.origins,
        remote_origins=registry.remote_origins,
        prefill_limits=_limits(upstream.prefill),
        decode_limits=_limits(upstream.decode),
        budget=RetryBudget(ratio=upstream.retry_ratio, reserve=upstream.retry_reserve),
        max_attempts=upstream.max_attempts,
        telemetry=telemetry,
        clock=clock,
    )


def _count_refused(telemetry: RequestTelemetry) -> Callable[[RequestId, int], None]:
    def refused(request_id: RequestId, status: int) -> None:
        outcome = Outcome(kind=OutcomeKind.CLIENT_ERROR, status=status, duration_s=0.0)
        telemetry.finished(None, outcome, request_id=request_id, model=None)

    return refused
