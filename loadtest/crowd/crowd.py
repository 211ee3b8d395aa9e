"""Keeping many streams open at once.

The rule of this module: a closed loop; as one stream ends another begins, until time is up, and then all are seen to
their end. Whether a client leaves, and after how long, is drawn beforehand.
"""

import asyncio
import time
from collections import Counter
from dataclasses import dataclass
from random import Random

from loadtest.client.attempt import Attempt, request_body
from loadtest.client.http import HttpClient, Origin
from loadtest.client.options import LoadOptions
from loadtest.client.records import Record
from loadtest.traces.prompts import PromptBuilder
from loadtest.traces.types import TraceRequest

LEFT = "left"
"""The outcome of a stream whose client left on purpose."""
OK = "ok"
START_WITHIN_S = 1.0
"""All places begin within this: a thousand connections in one instant would only measure the listen backlog."""
FAILED_PAUSE_S = 1.0
"""How long a place rests after a stream that failed; without, a moment of refusals would become a flood of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrowdOptions:
    """How big the crowd is and how it behaves."""

    load: LoadOptions
    streams: int
    duration_s: float
    """After so long no stream begins any more."""
    leave_ratio: float
    leave_within_s: float
    """A client that leaves does so at a uniformly drawn time up to this, before, during or after the first byte."""
    input_tokens: int
    output_tokens: int
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CrowdResult:
    """What became of all streams."""

    started: int
    outcomes: Counter[str]
    """`ok`, `left`, or the kind of error."""
    short: int
    """Streams that ended well but brought another number of tokens than asked for."""
    peak_concurrent: int


class _Crowd:
    def __init__(self, options: CrowdOptions) -> None:
        self.options = options
        self.outcomes: Counter[str] = Counter()
        self.short = 0
        self.open = 0
        self.peak = 0
        self._rng = Random(options.seed)  # noqa: S311 (not a secret)
        self._prompts = PromptBuilder(options.seed)
        self._client = HttpClient(Origin.of(options.load.url))
        self._started = 0
        self._start_s = time.perf_counter()

    async def run(self) -> CrowdResult:
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self.options.streams):
                    group.create_task(self._one_place())
        finally:
            self._client.close()
        return CrowdResult(started=self._started, outcomes=self.outcomes, short=self.short, peak_concurrent=self.peak)

    async def _one_place(self) -> None:
        await asyncio.sleep(self._rng.uniform(0.0, START_WITHIN_S))
        while self._now_s() < self.options.duration_s:
            if await self._one_stream() not in (OK, LEFT):
                await asyncio.sleep(FAILED_PAUSE_S)

    async def _one_stream(self) -> str:
        """Begin a stream and see it to its end; its outcome."""
        request = TraceRequest(
            index=self._started,
            arrival_s=self._now_s(),
            input_tokens=self.options.input_tokens,
            output_tokens=self.options.output_tokens,
        )
        self._started += 1
        leaves = self._rng.random() < self.options.leave_ratio
        leave_s = self._rng.uniform(0.0, self.options.leave_within_s) if leaves else None
        attempt = Attempt(self.options.load, request, self._now_s)
        body = request_body(self.options.load, request, self._prompts.text(request))
        self.open += 1
        self.peak = max(self.peak, self.open)
        left = await self._see_through(attempt, body, leave_s)
        self.open -= 1
        return self._count(attempt.record(), left)

    async def _see_through(self, attempt: Attempt, body: bytes, leave_s: float | None) -> bool:
        try:
            async with asyncio.timeout(leave_s):
                await attempt.run(self._client, "/v1/chat/completions", body)
        except TimeoutError:
            return True
        return False

    def _count(self, record: Record, left: bool) -> str:
        outcome = LEFT if left else record.error_kind or OK
        self.outcomes[outcome] += 1
        self.short += outcome == OK and record.output_tokens != self.options.output_tokens
        return outcome

    def _now_s(self) -> float:
        return time.perf_counter() - self._start_s


async def run_crowd(options: CrowdOptions) -> CrowdResult:
    """Run a crowd to its end."""
    return await _Crowd(options).run()
