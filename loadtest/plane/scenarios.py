"""The loads, as the load generator's own options.

The rule of this module: data only. What a claim needs is beside its load.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from loadtest.plane.building import HIDES_VARIABLE, MEMBERS_VARIABLE, RESTLESS

ASKS_FOR_USAGE = ',"stream_options":{"include_usage":true}'


class Unit(StrEnum):
    """What CPU time is divided by."""

    REQUEST = "request"
    EVENT = "SSE event"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One load."""

    name: str
    title: str
    options: tuple[str, ...]
    unit: Unit
    members: str = ""
    """Further members of each request, with a comma before each."""
    hides_usage: bool = False
    """Whether the gateway, which must know it and asks by itself, hides the usage: it alone does that work."""
    least_ratio: float | None = None
    """How many times less CPU time than vllm-router the gateway must take; None where nothing is claimed."""
    least_seconds: float = 0.0
    """A shorter load would be over before it is at its full size."""

    @property
    def environment(self) -> dict[str, str]:
        """What the load generator is told beside its options."""
        return {MEMBERS_VARIABLE: self.members, **({HIDES_VARIABLE: "1"} if self.hides_usage else {})}


PLAIN = Scenario(
    name="plain", title="plain requests, 32 clients", options=("-c", "32"), unit=Unit.REQUEST, least_ratio=1.5
)
BURST = Scenario(
    name="burst",
    title="bursts of 64 events, 32 clients",
    options=("-s", "-n", "64", "-c", "32"),
    unit=Unit.EVENT,
    members=ASKS_FOR_USAGE,
    least_ratio=2.0,
)
RESTLESS_BURST = Scenario(
    name="restless",
    title="bursts, each event new beside its text too",
    options=BURST.options,
    unit=Unit.EVENT,
    members=ASKS_FOR_USAGE + RESTLESS,
)
HIDDEN = Scenario(
    name="hidden",
    title="bursts, usage not asked for",
    options=BURST.options,
    unit=Unit.EVENT,
    hides_usage=True,
)
PACED_1000 = Scenario(
    name="paced-1000",
    title="1,000 streams, an event each 50 ms",
    options=("-s", "-n", "64", "-i", "50", "-c", "1000", "-R", "1"),
    unit=Unit.EVENT,
    members=ASKS_FOR_USAGE,
    least_ratio=1.0,
    least_seconds=4.0,
)
PACED_40 = Scenario(
    name="paced-40",
    title="40 streams, an event each 10 ms",
    options=("-s", "-n", "64", "-i", "10", "-c", "40", "-R", "0.5"),
    unit=Unit.EVENT,
    members=ASKS_FOR_USAGE,
)
CPU_SCENARIOS = (PLAIN, BURST, HIDDEN, RESTLESS_BURST, PACED_1000, PACED_40)
"""Those of which CPU time is told."""
LATENCY = Scenario(
    name="latency", title="100 requests/s, open loop", options=("-c", "32", "-r", "100"), unit=Unit.REQUEST
)
MEMORY = "memory"
MEMORY_STREAMS = (1000, 2000)
ALL_NAMES = (*(scenario.name for scenario in CPU_SCENARIOS), LATENCY.name, MEMORY)


def memory_options(streams: int) -> tuple[str, ...]:
    """So many streams that come within some seconds and outlast any measurement, an event a second each."""
    return ("-s", "-n", "3600", "-i", "1000", "-c", str(streams), "-R", f"{ramp_s(streams):g}", "-d", "3600")


def ramp_s(streams: int) -> float:
    """How long it takes until all have begun."""
    return streams / 500.0


def scenarios_named(names: Sequence[str]) -> list[Scenario]:
    """Those of `CPU_SCENARIOS` that are named."""
    return [scenario for scenario in CPU_SCENARIOS if scenario.name in names]
