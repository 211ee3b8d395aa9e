"""What is asked of the fleets that are compared: four kinds of traffic, each in two halves.

The rule of this module: what is learned on the first half is judged on the second. Sessions are laid out in open loop:
a policy that answers late would otherwise be given less to do, and policies would not be compared on equal requests.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

from loadtest.traces.loaders import load_workload
from loadtest.traces.mixing import mixed
from loadtest.traces.retime import sped_up
from loadtest.traces.synthetic_sessions import SESSION_RATE_RPS
from loadtest.traces.types import TraceRequest
from loadtest.traces.workload import Workload

SPARE = 1.5
"""So many more requests of each source are read than its share: sources end at different times."""
WARM_UP_S = 300.0
"""Left out at the beginning where there are sessions: so long it takes until as many end as begin. Without that the
learning half would be the lighter one, the more so the faster sessions begin."""


class Half(StrEnum):
    """Of the requests of one workload."""

    LEARN = "learn"
    JUDGE = "judge"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One trace of a workload, and what stands in for it where its file is not there."""

    kind: str
    """As in a trace spec."""
    file: str
    """Below the data folder."""
    options: str
    stand_in: str
    """The spec of the generator that was fitted to it, or to one like it."""
    share: float
    """Of the workload's requests, and so the rate at a scale of 1, per second."""
    natural_rps: float
    """Requests per second as recorded, or as sessions are begun by the loaders; the stand-in's is the same."""

    def is_there(self, data: Path | None) -> bool:
        """Whether the real trace can be read."""
        return data is not None and (data / self.file).is_file()

    def spec(self, data: Path | None) -> str:
        """Of the real trace where it is there."""
        if data is not None and self.is_there(data):
            return f"{self.kind}:{data / self.file}{self.options}"
        return self.stand_in

    def read(self, data: Path | None, requests: int, seed: int) -> Workload:
        """About so many requests, at the rate of its share; more of them change nothing about the first."""
        return sped_up(load_workload(self.spec(data), limit=requests, seed=seed), self.share / self.natural_rps)


MOONCAKE_RPS, AZURE_RPS = 3.40, 5.53
MINISWE_RPS, TAUBENCH_RPS = 20.1 * SESSION_RATE_RPS, 12.3 * SESSION_RATE_RPS
"""Mean requests of a session, times the rate at which sessions begin."""


def _mooncake(share: float) -> Source:
    return Source(
        kind="mooncake",
        file="traces/mooncake_conversation_trace.jsonl.gz",
        options="",
        stand_in="synthetic:mooncake",
        share=share,
        natural_rps=MOONCAKE_RPS,
    )


def _azure(share: float) -> Source:
    return Source(
        kind="azure",
        file="traces/azure2023_conv.csv.gz",
        options="",
        stand_in="synthetic:azure-conv",
        share=share,
        natural_rps=AZURE_RPS,
    )


def _agents(share: float) -> tuple[Source, Source]:
    """Half of the requests from coding agents, half from conversations with tools."""
    # Twenty sessions are too few: more are drawn from them. Blocks are Mooncake's, as the core counts all in one size.
    options = "?horizon=12000&block=512"
    miniswe = Source(
        kind="lmcache",
        file="traces/lmcache_agent_miniswe.jsonl.gz",
        options=options,
        stand_in="synthetic:miniswe",
        share=share / 2.0,
        natural_rps=MINISWE_RPS,
    )
    taubench = Source(
        kind="taubench",
        file="traces/taubench_gpt4o_airline_sessions.jsonl.gz",
        options=options,
        stand_in="synthetic:miniswe",
        share=share / 2.0,
        natural_rps=TAUBENCH_RPS,
    )
    return miniswe, taubench


WORKLOADS: Mapping[str, tuple[Source, ...]] = MappingProxyType(
    {
        "mooncake": (_mooncake(1.0),),
        "azure": (_azure(1.0),),
        "agents": _agents(1.0),
        "mix": (_mooncake(1 / 3), _azure(1 / 3), *_agents(1 / 3)),
    }
)
"""All by name; shares add up to 1, so each has about one request per second at a scale of 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """One half of a workload at one rate."""

    workload: str
    half: Half
    requests: int
    """Of each half."""
    scale: float
    seed: int
    """Spreads arrivals that a file rounds, draws those that it does not have, and makes a synthetic trace."""
    data: Path | None = None
    """The folder of the real traces."""

    def load(self) -> tuple[TraceRequest, ...]:
        """Its requests, the first at 0 s with index 0."""
        learn, judge = _halves(self.workload, self.requests, self.scale, self.seed, self.data)
        return learn if self.half is Half.LEARN else judge

    def sources(self) -> list[str]:
        """What is read, as trace specs."""
        return [source.spec(self.data) for source in WORKLOADS[self.workload]]


def missing(workload: str, data: Path | None) -> list[str]:
    """The files in whose place a generator stands."""
    return [source.file for source in WORKLOADS[workload] if not source.is_there(data)]


@lru_cache(maxsize=12)
def _halves(
    workload: str, requests: int, scale: float, seed: int, data: Path | None
) -> tuple[tuple[TraceRequest, ...], tuple[TraceRequest, ...]]:
    # Read for the next power of two, so that neighbouring scales share what was read.
    before = WARM_UP_S * 2.0 ** math.ceil(math.log2(scale))
    whole = sped_up(_read(workload, math.ceil(2 * requests + before), seed, data), scale)
    begin_s = WARM_UP_S if whole.sessions else 0.0
    flat = [request for request in whole.flattened() if request.arrival_s >= begin_s][: 2 * requests]
    cut = len(flat) // 2
    return _from_zero(flat[:cut]), _from_zero(flat[cut:])


@lru_cache(maxsize=8)
def _read(workload: str, requests: int, seed: int, data: Path | None) -> Workload:
    """About so many requests of all sources at once, and some to spare, at a scale of 1."""
    parts = {
        str(place): source.read(data, math.ceil(SPARE * requests * source.share), seed + 1000 * place)
        for place, source in enumerate(WORKLOADS[workload])
    }
    return mixed(parts)


def _from_zero(requests: Sequence[TraceRequest]) -> tuple[TraceRequest, ...]:
    begin_s = requests[0].arrival_s if requests else 0.0
    return tuple(
        replace(request, index=index, arrival_s=request.arrival_s - begin_s) for index, request in enumerate(requests)
    )
