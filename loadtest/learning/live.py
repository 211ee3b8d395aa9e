"""A live gateway as a learning environment: replayed traffic, its admin application, and its decision log.

The rule of this module: the gateway is asked as any client and any operator would ask it. Arrivals follow the trace in
open loop; while the learner thinks, requests under way go on and the trace's clock stands still.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

import msgspec

from gateway.core.forecast import FleetCosts
from gateway.core.path.base import PathPolicy
from gateway.core.types import SloTarget
from gateway.wire.decision_record import decode_record
from loadtest.client.attempt import ROUTES, Attempt, request_body
from loadtest.client.http import Collected, HttpClient, Origin
from loadtest.client.options import LoadOptions
from loadtest.client.runner import open_loop
from loadtest.learning.log_rows import LogRows
from loadtest.learning.publish import routing_of
from loadtest.learning.traffic import laps
from loadtest.traces.prompts import PromptBuilder
from loadtest.traces.types import TraceRequest
from policy_store.learn.environment import ServedRow

Answer = TypeVar("Answer")

ADMIN_TIMEOUT_S = 30.0
LOG_TRIES, LOG_PAUSE_S = 100, 0.05
"""The log is written a moment after an answer's last byte; so often and so long apart is it looked for."""


class LiveError(Exception):
    """The gateway did not take a policy, or does not log what it serves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveGateway:
    """Where it is, and how it is asked."""

    load: LoadOptions
    """How traffic is put to it; with `speed` engine seconds per real second."""
    admin_url: str
    decision_log: Path
    """The file that it writes."""
    bundles: Path
    """A directory that it can read, for the policies that it is given."""
    slo: SloTarget
    """In engine seconds."""
    costs: FleetCosts | None = None
    """What the engines take, in the gateway's seconds: needed to give it a policy by price."""
    routing: Mapping[str, Any] = field(default_factory=dict)
    """Routing settings that every policy is given with, such as the weights of placement."""


class LiveEnvironment:
    """Serves a trace over and over through a running gateway. Close it: what is under way is cancelled then.

    Args:
        gateway: what serves.
        requests: the trace, in order of arrival; see `loadtest.learning.traffic.laps`.
    """

    def __init__(self, gateway: LiveGateway, requests: Sequence[TraceRequest]) -> None:
        self._gateway = gateway
        self._requests = laps(requests)
        self._served = 0
        self._log = LogTail(gateway.decision_log)
        self._rows = LogRows(gateway.slo, gateway.load.speed)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="replay", daemon=True)
        self._thread.start()
        self._replay = self._run(_started(gateway.load))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def served(self) -> int:
        """Requests sent so far."""
        return self._served

    def serve(self, policy: PathPolicy, requests: int) -> list[ServedRow]:
        """See `Environment`; a row is given once every earlier request has ended too.

        Raises:
            LiveError: the gateway refused the policy.
            CannotPublish: no settings and no bundle say the same as the policy.
            OSError: the bundle cannot be written, or the log cannot be read.
        """
        return self.serve_with(self._gateway.routing, policy, requests)

    def serve_with(self, routing: Mapping[str, Any], policy: PathPolicy, requests: int) -> list[ServedRow]:
        """As `serve`, with other routing settings beside the policy's own."""
        gateway = self._gateway
        own = routing_of(policy, gateway.bundles, gateway.costs)
        self._run(self._replay.put_policy(gateway.admin_url, {**routing, **own}))
        self._run(self._replay.send(list(islice(self._requests, requests))))
        self._served += requests
        return self._collect()

    def finish(self) -> list[ServedRow]:
        """Wait until all that is under way has ended, and give its rows. The trace's clock stands still meanwhile.

        Raises:
            LiveError: the log does not say how requests ended.
        """
        self._run(self._replay.ended())
        rows = self._collect()
        for _ in range(LOG_TRIES):
            if self._rows.next_order >= self._served:
                return rows
            time.sleep(LOG_PAUSE_S)
            rows += self._collect()
        raise LiveError(f"{self._gateway.decision_log} says nothing of request {self._rows.next_order}")

    def take_lags(self) -> list[float]:
        """How late requests were sent since the last call, in real seconds; of those that have ended."""
        return self._replay.take_lags()

    def close(self) -> None:
        """Cancel what is under way and end the thread."""
        if self._thread.is_alive():
            self._run(self._replay.close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _collect(self) -> list[ServedRow]:
        prefix = f"{self._gateway.load.run_id}-"
        for line in self._log.lines():
            record = decode_record(line)
            name = record.request_id
            if name.startswith(prefix) and name.removeprefix(prefix).isdecimal():
                self._rows.add(int(name.removeprefix(prefix)), record)
        for index in self._replay.unseen():
            self._rows.skip(index)
        return self._rows.take()

    def _run(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


class LogTail:
    """Reads what a growing file gained since the last look; a line that is still being written waits."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = path.stat().st_size if path.exists() else 0

    def lines(self) -> list[bytes]:
        """The whole lines since the last call. A log that rotates between two looks loses some."""
        if not self._path.exists():
            return []
        size = self._path.stat().st_size
        if size < self._offset:
            self._offset = 0
        with self._path.open("rb") as file:
            file.seek(self._offset)
            found = file.read().splitlines(keepends=True)
        whole = [line for line in found if line.endswith(b"\n")]
        self._offset += sum(map(len, whole))
        return whole


async def _started(options: LoadOptions) -> "_Replay":
    return _Replay(options)


class _Replay:
    """The client's side, in the loop's thread."""

    def __init__(self, options: LoadOptions) -> None:
        self._options = options
        self._client = HttpClient(Origin.of(options.url))
        self._prompts = PromptBuilder(options.seed)
        self._tasks: set[asyncio.Task[None]] = set()
        self._unseen: list[int] = []
        self._lags_s: list[float] = []
        self._start_s = time.perf_counter()
        """When the arrivals that are being sent count from."""
        self._end_s: float | None = None
        """Real and the trace's time of the last arrival, of which the next one keeps its distance."""
        self._last_s = 0.0

    async def put_policy(self, admin_url: str, routing: Mapping[str, Any]) -> None:
        """Let the gateway decide by another policy."""
        client, sink = HttpClient(Origin.of(admin_url)), Collected()
        target = f"{urlsplit(admin_url).path.rstrip('/')}/policy"
        try:
            async with asyncio.timeout(ADMIN_TIMEOUT_S):
                headers = {"content-type": "application/json"}
                await client.send("PUT", target, sink, headers=headers, body=msgspec.json.encode(routing))
        finally:
            client.close()
        if sink.status != 200:
            raise LiveError(f"PUT {target} answered {sink.status}: {bytes(sink.body[:400]).decode(errors='replace')}")

    async def send(self, requests: Sequence[TraceRequest]) -> None:
        """Start every request at its time, as far from the last one of before as in the trace."""
        if not requests:
            return
        start_s = time.perf_counter() if self._end_s is None else self._end_s
        start_s = max(start_s, time.perf_counter() - (requests[0].arrival_s - self._last_s) / self._options.speed)
        shift_s, self._start_s = self._last_s, start_s
        await open_loop(
            [replace(request, arrival_s=request.arrival_s - shift_s) for request in requests],
            self._prepare,
            start_s=start_s,
            speed=self._options.speed,
            clock=time.perf_counter,
            sleep=asyncio.sleep,
        )
        self._last_s, self._end_s = requests[-1].arrival_s, time.perf_counter()

    def unseen(self) -> list[int]:
        """Requests since the last call that never reached the gateway."""
        found, self._unseen = self._unseen, []
        return found

    def take_lags(self) -> list[float]:
        """Lags since the last call."""
        found, self._lags_s = self._lags_s, []
        return found

    async def ended(self) -> None:
        """Wait for all that is under way."""
        await asyncio.gather(*self._tasks)

    async def close(self) -> None:
        """Cancel what is under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._client.close()

    def _prepare(self, request: TraceRequest) -> Callable[[], None]:
        body = request_body(self._options, request, self._prompts.text(request))

        def start() -> None:
            task = asyncio.get_running_loop().create_task(self._see_through(request, body))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        return start

    async def _see_through(self, request: TraceRequest, body: bytes) -> None:
        start_s = self._start_s
        attempt = Attempt(self._options, request, lambda: time.perf_counter() - start_s)
        target = urlsplit(self._options.url).path.rstrip("/") + ROUTES[self._options.endpoint]
        await attempt.run(self._client, target, body)
        record = attempt.record()
        if record.status is None:
            self._unseen.append(request.index)
        if record.lag_s is not None:
            self._lags_s.append(record.lag_s)
