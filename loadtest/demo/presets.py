"""What the demonstrations run.

The rule of this module: a preset is data, and all of its numbers are shown to whoever runs it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from gateway.core.types import SloTarget
from loadtest.fleet.pools import Pools
from loadtest.report.slo import parse_slo
from loadtest.traces.synthetic import SyntheticMix, synthetic_trace, uniform_mix
from loadtest.traces.types import TraceRequest

Traffic = Callable[[int, int], list[TraceRequest]]
"""(requests, seed) -> the trace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One run of the demonstration."""

    name: str
    routing: Mapping[str, Any]
    """The gateway's `routing` settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A fleet, a traffic, and what is compared on them."""

    title: str
    pools: Pools
    engine: str
    traffic: Traffic
    traffic_words: str
    requests: int
    speed: float
    arms: Sequence[Arm]
    slos: Sequence[SloTarget]
    worker_overrides: Mapping[str, Any] = field(default_factory=dict)


LOCAL = Arm(name="local", routing={"policy": "local"})
REMOTE = Arm(name="remote", routing={"policy": "remote"})
DYNAMO = Arm(name="dynamo", routing={"policy": "dynamo"})


def _conversations(requests: int, seed: int) -> list[TraceRequest]:
    mix = SyntheticMix(rate_rps=3.0, isl_scale=0.5, gap_scale=0.15)
    return synthetic_trace(mix, requests, seed=seed)


def _long_prompts(requests: int, seed: int) -> list[TraceRequest]:
    return uniform_mix(requests, isl_tokens=6000, osl_tokens=250, rate_rps=2.0, seed=seed)


PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        "mixed": Preset(
            title="Mixed conversations on two prefill and two decode workers",
            pools=Pools(prefill=2, decode=2),
            engine="h100-llama70b-tp4",
            traffic=_conversations,
            traffic_words=(
                "conversations with the Mooncake trace's statistics, prompts and messages at half length, 3 requests/s,"
                " turns 0.15 of the time apart"
            ),
            requests=300,
            speed=4.0,
            arms=(LOCAL, REMOTE, DYNAMO),
            slos=(parse_slo("ttft=2s,tpot=40ms"),),
        ),
        "reversal": Preset(
            title="The winner depends on the SLO: one prefill worker, three decode workers",
            pools=Pools(prefill=1, decode=3),
            engine="h100-llama70b-tp4",
            traffic=_long_prompts,
            traffic_words="unrelated prompts of about 6,000 tokens, 250 tokens of output, 2 requests/s",
            requests=200,
            speed=4.0,
            arms=(LOCAL, REMOTE),
            # The one prefill worker queues, which costs remote TTFT; local prefills stall decoding, which costs TPOT.
            slos=(parse_slo("ttft=2s,tpot=40ms"), parse_slo("ttft=6s,tpot=19ms")),
        ),
    }
)
"""All demonstrations by name."""
