"""Sends a trace to a server, each request at its own time.

The rule of this module: open loop. When a request is sent depends on the schedule alone, never on how others
fare, so a slow server cannot slow the load down and hide its own queue (no coordinated omission). Only a session's
next turn waits, for the answer that it goes on from: it is due when its tools or its user are done, and its latencies
count from then.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

import msgspec

from loadtest.client.attempt import ROUTES, Attempt, auth_headers, request_body
from loadtest.client.http import HttpClient, Origin
from loadtest.client.options import LoadOptions
from loadtest.client.records import Record
from loadtest.traces.prompts import PromptBuilder
from loadtest.traces.types import TraceRequest
from loadtest.traces.workload import Driver, OpenLoop, Workload

Clock = Callable[[], float]
Sleep = Callable[[float], Awaitable[object]]

MODELS_TIMEOUT_S = 30.0
WARM_UP_REQUEST = TraceRequest(index=-1, arrival_s=0.0, input_tokens=64, output_tokens=4)
"""Unlike any prompt of the trace, so that it leaves the caches cold."""


class LoadError(Exception):
    """The run cannot start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a run is, in requests."""

    total: int
    sent: int
    done: int
    failed: int


class _Model(msgspec.Struct, frozen=True):
    id: str


class _ModelList(msgspec.Struct, frozen=True):
    data: list[_Model]


async def first_model(url: str, *, api_key: str | None = None) -> str:
    """The first model that `GET {url}/models` lists.

    Raises `LoadError` where it lists none and `HttpError` where it cannot be reached.
    """
    target = f"{_base_path(url)}/models"
    client = HttpClient(Origin.of(url))
    try:
        async with asyncio.timeout(MODELS_TIMEOUT_S):
            status, body = await client.get(target, headers=auth_headers(api_key))
        return msgspec.json.decode(body, type=_ModelList).data[0].id
    except TimeoutError as error:
        raise LoadError(f"GET {target} did not answer within {MODELS_TIMEOUT_S:g} s") from error
    except (msgspec.MsgspecError, IndexError) as error:
        raise LoadError(f"GET {target} named no model (status {status})") from error
    finally:
        client.close()


async def warm_up(options: LoadOptions) -> None:
    """Sends `options.warm_up` small requests one after another; how they fare is not kept."""
    client = HttpClient(Origin.of(options.url))
    prompts = PromptBuilder(options.seed)
    try:
        for number in range(1, options.warm_up + 1):
            request = replace(WARM_UP_REQUEST, index=-number)
            body = request_body(options, request, prompts.text(request))
            await Attempt(options, request, time.perf_counter).run(client, _target(options), body)
    finally:
        client.close()


async def open_loop(
    requests: Iterable[TraceRequest],
    prepare: Callable[[TraceRequest], Callable[[], object]],
    *,
    start_s: float,
    speed: float,
    clock: Clock,
    sleep: Sleep,
) -> None:
    """Starts every request at `start_s` + its arrival / `speed`, or at once where that has passed.

    `prepare` does the work that must not delay the sending, before the wait; what it returns starts the request
    and must not block.
    """
    for request in requests:
        start = prepare(request)
        due_s = start_s + request.arrival_s / speed
        await sleep(max(0.0, due_s - clock()))
        while (early_s := due_s - clock()) > 0:  # a loop may round its timers to milliseconds
            await sleep(early_s)
        start()


async def run_load(
    options: LoadOptions,
    load: Sequence[TraceRequest] | Workload,
    *,
    on_progress: Callable[[Progress], object] | None = None,
    stop: asyncio.Event | None = None,
    clock: Clock = time.perf_counter,
    sleep: Sleep = asyncio.sleep,
) -> list[Record]:
    """Runs a trace against a server and returns one record for every request that was started, in their order.

    Requests are sent in open loop, a workload's sessions in closed loop: after a failed answer they go on, as they do
    in a simulation.

    When `stop` is set or `max_duration_s` is over, nothing more is sent and what is under way is cancelled;
    the records so far are returned all the same.
    """
    driver: Driver | OpenLoop
    if isinstance(load, Workload):
        driver = load.driver()
        total = len(driver.requests)
    else:
        driver, total = OpenLoop(load), len(load)
    run = _Run(options, driver, total, on_progress, clock, sleep)
    try:
        await _until_stopped(run.replay(), stop or asyncio.Event(), options.max_duration_s)
    finally:
        run.client.close()
    return [attempt.record() for attempt in run.attempts]


class _Run:
    """The state of one run."""

    def __init__(
        self,
        options: LoadOptions,
        driver: Driver | OpenLoop,
        total: int,
        on_progress: Callable[[Progress], object] | None,
        clock: Clock,
        sleep: Sleep,
    ) -> None:
        self.options = options
        self.client = HttpClient(Origin.of(options.url))
        self.attempts: list[Attempt] = []
        self._target = _target(options)
        self._prompts = PromptBuilder(options.seed)
        self._driver = driver
        self._progress = Progress(total=total, sent=0, done=0, failed=0)
        self._on_progress = on_progress
        self._clock = clock
        self._sleep = sleep
        self._start_s = clock()

    async def replay(self) -> None:
        """The whole schedule, to the end of its last answer."""
        self._start_s = self._clock()
        async with asyncio.TaskGroup() as group:
            await self._send((request for _, request in self._driver.first_arrivals()), group)

    async def _send(self, requests: Iterable[TraceRequest], group: asyncio.TaskGroup) -> None:
        await open_loop(
            requests,
            lambda request: self._prepare(request, group),
            start_s=self._start_s,
            speed=self.options.speed,
            clock=self._clock,
            sleep=self._sleep,
        )

    def _prepare(self, request: TraceRequest, group: asyncio.TaskGroup) -> Callable[[], None]:
        body = self._body(request)

        def start() -> None:
            attempt = Attempt(self.options, request, self._now)
            self.attempts.append(attempt)
            self._report(sent=1)
            group.create_task(self._see_through(attempt, body, group))

        return start

    async def _see_through(self, attempt: Attempt, body: bytes, group: asyncio.TaskGroup) -> None:
        await attempt.run(self.client, self._target, body)
        self._report(done=1, failed=int(attempt.failed))
        for due_s, following in self._driver.answered(attempt.request, self._now() * self.options.speed):
            group.create_task(self._send((replace(following, arrival_s=due_s),), group))

    def _body(self, request: TraceRequest) -> bytes:
        return request_body(self.options, request, self._prompts.text(request))

    def _now(self) -> float:
        return self._clock() - self._start_s

    def _report(self, *, sent: int = 0, done: int = 0, failed: int = 0) -> None:
        was = self._progress
        self._progress = replace(was, sent=was.sent + sent, done=was.done + done, failed=was.failed + failed)
        if self._on_progress is not None:
            self._on_progress(self._progress)


async def _until_stopped(work: Awaitable[None], stop: asyncio.Event, max_duration_s: float | None) -> None:
    """Awaits the work, and cancels it when told to stop or out of time."""
    task = asyncio.ensure_future(work)
    stopped = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((task, stopped), timeout=max_duration_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
        if not task.done():
            task.cancel()
    await asyncio.wait((task,))
    if not task.cancelled():
        task.result()


def _target(options: LoadOptions) -> str:
    return _base_path(options.url) + ROUTES[options.endpoint]


def _base_path(url: str) -> str:
    return urlsplit(url).path.rstrip("/")
