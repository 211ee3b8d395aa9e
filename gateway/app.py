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
from random import Random

import httpx
import structlog

from gateway import __version__
from gateway.api.dispatch import AsgiApp, Dispatch
from gateway.api.hot import HotRoutes
from gateway.api.routes import Views, build_routes
from gateway.core.policy import Policy
from gateway.core.router import Router
from gateway.core.types import SloTarget, WorkerId
from gateway.fleet.monitor import FleetMonitor
from gateway.fleet.registry import Registry
from gateway.policies import build_policy
from gateway.settings import LegSettings, Settings, SettingsError
from gateway.telemetry.decisions import DecisionLog
from gateway.telemetry.exposition import Exposition
from gateway.telemetry.journal import JournalWriter
from gateway.telemetry.loop_lag import LoopLagSampler
from gateway.telemetry.recorded_core import RecordedCore
from gateway.telemetry.recorder import Metrics
from gateway.telemetry.request import RequestTelemetry
from gateway.telemetry.router_state import RouterState
from gateway.telemetry.state import Readers
from gateway.upstream.budget import RetryBudget
from gateway.upstream.exchange import Limits
from gateway.upstream.origin import Origin, parse_origin
from gateway.upstream.pool import UpstreamPool
from gateway.upstream.pool_state import PoolState
from gateway.upstream.services import Core, Services


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """A running gateway."""

    asgi: AsgiApp
    router: Router
    registry: Registry
    decisions: DecisionLog
    pool: UpstreamPool


@asynccontextmanager
async def open_gateway(
    settings: Settings,
    *,
    clock: Callable[[], float] = time.monotonic,
    instance: str | None = None,
    policy: Policy | None = None,
    transport: httpx.AsyncBaseTransport | None = None,
) -> AsyncIterator[Gateway]:
    """Make a gateway, watch its workers, and take it down again.

    Args:
        settings: the whole tree.
        clock: seconds, monotone.
        instance: a name that makes decision ids unique among replicas; random by default.
        policy: instead of the one that the settings describe.
        transport: instead of the network, for probes and scrapes.

    Raises:
        SettingsError: the policy cannot be built, or a worker's URL is none.
        OSError: the journal file exists already, or cannot be made.
    """
    policy = policy or build_policy(settings)
    origins = worker_origins(settings)
    name = instance or uuid.uuid4().hex[:8]
    router = Router(policy, rng=Random(settings.routing.seed), instance=name)  # noqa: S311 (not a secret)
    registry = Registry(settings.workers)
    async with AsyncExitStack() as stack:
        core = _core(router, name, settings, stack)
        telemetry = _telemetry(settings, policy, stack)
        pool = UpstreamPool(_limits(settings.upstream.decode))
        stack.push_async_callback(pool.aclose)
        services = Services(
            core=core,
            pool=pool,
            origins=origins,
            prefill_limits=_limits(settings.upstream.prefill),
            decode_limits=_limits(settings.upstream.decode),
            budget=RetryBudget(ratio=settings.upstream.retry_ratio, reserve=settings.upstream.retry_reserve),
            max_attempts=settings.upstream.max_attempts,
            telemetry=telemetry,
            clock=clock,
        )
        await _watch(registry, core, settings, stack, clock=clock, transport=transport)
        lag = LoopLagSampler(asyncio.get_running_loop())
        lag.start()
        stack.callback(lag.stop)
        readers = Readers(
            state=RouterState(router, clock),
            pool=PoolState(pool, origins),
            decision_log=telemetry.decisions,
            loop_lag=lag,
        )
        exposition = Exposition(
            telemetry.metrics, readers, version=__version__, commit=os.environ.get("TIDEGATE_COMMIT", "unknown")
        )
        views = Views(models=registry.model_cards, ready=lambda: _not_ready(router), exposition=exposition.render)
        hot = HotRoutes(
            services,
            max_body_bytes=settings.server.max_body_bytes,
            session_headers=settings.routing.session_headers,
        )
        yield Gateway(
            asgi=Dispatch(hot, build_routes(views)),
            router=router,
            registry=registry,
            decisions=telemetry.decisions,
            pool=pool,
        )


def _core(router: Router, instance: str, settings: Settings, stack: AsyncExitStack) -> Core:
    if settings.telemetry.journal is None:
        return router
    journal = stack.enter_context(JournalWriter(settings.telemetry.journal))
    return RecordedCore(router, journal, seed=settings.routing.seed, instance=instance)


def _telemetry(settings: Settings, policy: Policy, stack: AsyncExitStack) -> RequestTelemetry:
    chosen = settings.telemetry
    decisions = DecisionLog(
        chosen.decision_log, max_bytes=chosen.decision_log_max_bytes, keep_files=chosen.decision_log_files
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
) -> None:
    client = await stack.enter_async_context(httpx.AsyncClient(transport=transport, trust_env=False))
    monitor = FleetMonitor(registry, core, client, settings.fleet, clock=clock)
    stack.push_async_callback(monitor.stop)
    await monitor.start()


def worker_origins(settings: Settings) -> dict[WorkerId, Origin]:
    """Where each worker listens.

    Raises:
        SettingsError: a worker's URL is none.
    """
    origins: dict[WorkerId, Origin] = {}
    for worker in settings.workers:
        try:
            origins[WorkerId(worker.id)] = parse_origin(worker.url)
        except ValueError as error:
            raise SettingsError(f"workers.{worker.id}.url: {error}") from error
    return origins


def _limits(leg: LegSettings) -> Limits:
    return Limits(**leg.model_dump())


def _slos(policy: Policy) -> Iterable[SloTarget]:
    return (policy.slo.default, *policy.slo.classes)


def _not_ready(router: Router) -> str | None:
    workers = [(state.spec.worker_id, 0) for state in router.fleet if state.spec.role.decodes]
    if router.health.routable(workers, may_panic=True):
        return None
    return "no worker that can serve requests is up"
