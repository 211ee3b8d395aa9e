"""A calibration of a live worker, from its pages to the engine file.

The rule of this module: it joins the parts in their order; each of them is tested without a socket.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from loadtest.calibrate.http_target import HttpTarget, read_page
from loadtest.calibrate.limits import (
    MOVED_BYTES,
    RUNNING,
    CacheConfig,
    CalibrationError,
    Limits,
    metric_sum,
    read_cache_config,
    read_model,
    server_url,
)
from loadtest.calibrate.outcome import engine_file
from loadtest.calibrate.plan import Plan, make_plan
from loadtest.calibrate.prober import Measured, Prober, Texts
from loadtest.calibrate.target import AskError
from loadtest.engine.engine_file import Calibration, EngineFile


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationOptions:
    """What to calibrate, and how."""

    url: str
    name: str
    """What the engine will be called."""
    prefill_url: str | None = None
    """The other end of the transfers to measure; None measures none."""
    model: str | None = None
    """None takes the first that the worker serves."""
    budget_requests: int = 1000
    speed: float = 1.0
    """An emulated worker's speed factor; all times are multiplied by it."""
    seed: int = 0
    """Of the prompts: with one that this worker has seen they are found in its cache."""
    max_batched_tokens: int = 8192
    max_running: int = 256
    plans_ahead: bool = True
    """Whether it schedules asynchronously, as vLLM does by default; no probe can tell on an idle worker."""
    kv_bytes_per_token: int | None = None
    """None takes what the workers tell, if anything."""
    timeout_s: float = 600.0
    """Longest time of one request."""
    api_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationResult:
    """What came of it."""

    file: EngineFile
    measured: Measured


async def calibrate(
    options: CalibrationOptions,
    *,
    on_plan: Callable[[Plan], object] | None = None,
    on_sent: Callable[[int], object] | None = None,
) -> CalibrationResult:
    """Probe, fit and judge; `on_sent` is told of requests as they are sent.

    Raises:
        CalibrationError: the worker cannot be reached, is busy, or does not answer as asked.
    """
    try:
        limits, cache = await _limits(options)
    except AskError as error:
        raise CalibrationError(str(error)) from error
    plan = make_plan(limits, budget=options.budget_requests, transfers=options.prefill_url is not None)
    if on_plan is not None:
        on_plan(plan)
    worker = _target(options, options.url, limits.model)
    sender = None if options.prefill_url is None else _target(options, options.prefill_url, limits.model)
    try:
        before = await _moved_bytes(worker)
        prober = Prober(worker, limits, Texts(options.seed), prefill_worker=sender, on_sent=on_sent)
        measured = await prober.run(plan)
        moved_bytes = await _moved_bytes(worker) - before
    except AskError as error:
        raise CalibrationError(str(error)) from error
    finally:
        for target in (worker, sender):
            if target is not None:
                target.close()
    moved = round(moved_bytes / measured.moved_tokens) if moved_bytes and measured.moved_tokens else None
    file = engine_file(
        options.name,
        limits,
        measured.observations,
        kv_bytes_per_token=options.kv_bytes_per_token or moved or cache.kv_bytes_per_token,
        calibration=_calibration(options, limits, measured),
    )
    return CalibrationResult(file=file, measured=measured)


async def _limits(options: CalibrationOptions) -> tuple[Limits, CacheConfig]:
    url = server_url(options.url)
    pages = [
        await read_page(url, name, api_key=options.api_key, timeout_s=options.timeout_s)
        for name in ("/v1/models", "/metrics")
    ]
    model, max_model_len = read_model(pages[0], options.model)
    metrics = pages[1].decode()
    running = metric_sum(metrics, RUNNING)
    if running:
        raise CalibrationError(f"{url} is serving {running:g} requests of others: their work would be in every time")
    cache = read_cache_config(metrics)
    limits = Limits(
        model=model,
        block_tokens=cache.block_tokens,
        total_blocks=cache.total_blocks,
        max_model_len=max_model_len,
        max_batched_tokens=options.max_batched_tokens,
        max_running=options.max_running,
        plans_ahead=options.plans_ahead,
    )
    return limits, cache


def _target(options: CalibrationOptions, url: str, model: str) -> HttpTarget:
    return HttpTarget(
        server_url(url), model=model, api_key=options.api_key, speed=options.speed, timeout_s=options.timeout_s
    )


async def _moved_bytes(worker: HttpTarget) -> float:
    """Bytes that NIXL brought to this worker; 0 where it does not count them."""
    return metric_sum(await worker.metrics(), MOVED_BYTES) or 0.0


def _calibration(options: CalibrationOptions, limits: Limits, measured: Measured) -> Calibration:
    return Calibration(
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        url=server_url(options.url),
        prefill_url=None if options.prefill_url is None else server_url(options.prefill_url),
        model=limits.model,
        speed=options.speed,
        requests=measured.requests,
        budget_requests=options.budget_requests,
        measurements=measured.repeats,
        failed_probes=len(measured.failures),
    )
