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
from loadtest.traces.types import TraceRequest
from loadtest.traces.workload import Workload

SPARE = 1.5
"""So many more requests of each source are read than its share of both halves: sources end at different times."""


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
    stand_in_options: str
    share: float
    """Of the workload's requests, and so the rate at a scale of 1, per second."""

    def is_there(self, data: Path | None) -> bool:
        """Whether the real trace can be read."""
        return data is not None and (data / self.file).is_file()

    def spec(self, data: Path | None) -> str:
        """Of the real trace where it is there."""
        if data is not None and self.is_there(data):
            return f"{self.kind}:{data / self.file}?{self.options}"
        return f"{self.stand_in}?{self.stand_in_options}"


def _mooncake(share: float) -> Source:
    return Source(
        kind="mooncake",
        file="traces/mooncake_conversation_trace.jsonl.gz",
        options=f"rate={share:.6g}",
        stand_in="synthetic:mooncake",
        stand_in_options=f"rate={share:.6g}",
        share=share,
    )


def _azure(share: float) -> Source:
    return Source(
        kind="azure",
        file="traces/azure2023_conv.csv.gz",
        options=f"rate={share:.6g}",
        stand_in="synthetic:azure-conv",
        stand_in_options=f"rate={share:.6g}",
        share=share,
    )


MINISWE_TURNS, TAUBENCH_TURNS, SYNTHETIC_TURNS = 20.1, 12.3, 20.8
"""Mean requests of one session."""


def _agents(share: float) -> tuple[Source, Source]:
    """Half of the requests from coding agents, half from conversations with tools."""
    half = share / 2.0
    # Twenty sessions are too few: more are drawn from them. Blocks are Mooncake's, as the core counts all in one size.
    horizon = "horizon=12000&block=512"
    stand_in = f"rate={half / SYNTHETIC_TURNS:.6g}"
    miniswe = Source(
        kind="lmcache",
        file="traces/lmcache_agent_miniswe.jsonl.gz",
        options=f"{horizon}&rate={half / MINISWE_TURNS:.6g}",
        stand_in="synthetic:miniswe",
        stand_in_options=stand_in,
        share=half,
    )
    taubench = Source(
        kind="taubench",
        file="traces/taubench_gpt4o_airline_sessions.jsonl.gz",
        options=f"{horizon}&rate={half / TAUBENCH_TURNS:.6g}",
        stand_in="synthetic:miniswe",
        stand_in_options=stand_in,
        share=half,
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
"""All by name; each has about one request per second at a scale of 1."""


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
    flat = sped_up(_read(workload, requests, seed, data), scale).flattened()[: 2 * requests]
    cut = len(flat) // 2
    return _from_zero(flat[:cut]), _from_zero(flat[cut:])


@lru_cache(maxsize=8)
def _read(workload: str, requests: int, seed: int, data: Path | None) -> Workload:
    """All sources at once, at a scale of 1."""
    sources = WORKLOADS[workload]
    whole = sum(source.share for source in sources)
    return mixed(
        {
            str(place): load_workload(
                source.spec(data),
                limit=math.ceil(SPARE * 2 * requests * source.share / whole),
                seed=seed + 1000 * place,
            )
            for place, source in enumerate(sources)
        }
    )


def _from_zero(requests: Sequence[TraceRequest]) -> tuple[TraceRequest, ...]:
    begin_s = requests[0].arrival_s if requests else 0.0
    return tuple(
        replace(request, index=index, arrival_s=request.arrival_s - begin_s) for index, request in enumerate(requests)
    )
