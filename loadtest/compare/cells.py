"""The points at which policies are compared.

The rule of this module: a cell is data. What a load of 100 % is depends on the place, and is measured there.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType

from gateway.core.types import SloTarget
from loadtest.compare.traffic import WORKLOADS

LLAMA_8B, LLAMA_70B = "h100-llama8b", "h100-llama70b-tp4"
POOLS = ("2P2D", "1P3D", "1P1D", "3P1D")
LOADS = (1.0, 0.75, 0.4)
"""Shares of the saturating rate."""
SLOS: Mapping[str, tuple[SloTarget, ...]] = MappingProxyType(
    {
        LLAMA_70B: (
            SloTarget(name="standard", ttft_s=2.0, tpot_s=0.040),
            SloTarget(name="fluent", ttft_s=4.0, tpot_s=0.025),
        ),
        LLAMA_8B: (
            SloTarget(name="standard", ttft_s=1.0, tpot_s=0.025),
            SloTarget(name="fluent", ttft_s=2.0, tpot_s=0.015),
        ),
    }
)
"""Two classes for each model, as the better path depends on the target: `standard` bounds TPOT at two to three times
what a lone decode step takes, `fluent` at less than two thirds of that and lets the first token take twice as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A cell but for its load."""

    workload: str
    pools: str
    engine: str
    slo: SloTarget

    @property
    def label(self) -> str:
        """`workload/pools/engine/slo`."""
        return f"{self.workload}/{self.pools}/{self.engine}/{self.slo.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One comparison."""

    place: Place
    load: float
    """Share of the place's saturating rate."""

    @property
    def label(self) -> str:
        """`workload/pools/engine/slo/LOAD`."""
        return f"{self.place.label}/{self.load:.0%}"


def all_places() -> Iterator[Place]:
    """Every place: the mix on the larger model comes first, as the preset's bounds are about it."""
    workloads = sorted(WORKLOADS, key=lambda name: name != "mix")
    for engine, workload, place, pools in product((LLAMA_70B, LLAMA_8B), workloads, (0, 1), POOLS):
        yield Place(workload=workload, pools=pools, engine=engine, slo=SLOS[engine][place])
