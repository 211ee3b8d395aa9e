"""What can be compared by name.

The rule of this module: a preset says where, how hard and what must come out; a quick one looks at fewer cells with
less of everything, and is no claim.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from loadtest.compare.bounds import HEADLINE, Bound
from loadtest.compare.cells import LLAMA_70B, LOADS, SLOS, Place, all_places
from loadtest.compare.effort import BROAD, FULL, QUICK, Effort
from loadtest.compare.limits import HOME, everywhere_else, neighbours
from loadtest.compare.live import LiveEffort

HEADLINE_PLACES = tuple(
    Place(workload="mix", pools=pools, engine=LLAMA_70B, slo=SLOS[LLAMA_70B][0]) for pools in ("2P2D", "1P3D")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """One comparison."""

    name: str
    about: str
    places: Sequence[Place] = ()
    loads: Sequence[float] = ()
    bounds: Sequence[Bound] = ()
    abroad: Sequence[Place] = ()
    """Where what was learned at home is judged too: of the preset that measures limits."""
    measures_limits: bool = False
    live: LiveEffort | None = None
    """What is served on a running fleet at the first place: of the preset that learns there."""
    effort: Effort = FULL
    broad: Effort | None = None
    """With which cells are looked at that no single bound is about; None spares no effort there either."""
    is_quick: bool = False

    def efforts(self, place: Place) -> Iterator[tuple[Effort, Sequence[float]]]:
        """How hard to look at a place, and under which loads."""
        if self.broad is None:
            yield self.effort, self.loads
            return
        claimed = [load for load in self.loads if any(bound.is_at(place, load) for bound in self.bounds)]
        for effort, loads in (self.effort, claimed), (self.broad, [load for load in self.loads if load not in claimed]):
            if loads:
                yield effort, loads


_FULL = (
    Preset(
        name="headline",
        about="all cells: 4 workloads x 4 pools x 2 models x 2 SLO classes x 3 loads",
        places=tuple(all_places()),
        loads=LOADS,
        bounds=HEADLINE,
        broad=BROAD,
    ),
    Preset(
        name="bounds",
        about="the headline's two places alone, at its three loads",
        places=HEADLINE_PLACES,
        loads=LOADS,
        bounds=HEADLINE,
    ),
    Preset(
        name="limits",
        about="what the paper left open: decision cost, output lengths, load, errors, staleness, other places",
        abroad=tuple(everywhere_else()),
        measures_limits=True,
        broad=BROAD,
    ),
    Preset(
        name="live",
        about="learned on a running gateway before an emulated fleet, from a cold start, and judged there",
        places=(HOME,),
        loads=(1.0,),
        live=LiveEffort(),
    ),
)
_QUICK_HEADLINE = Preset(
    name="headline",
    about="the headline's two places at a load of 100 %",
    places=HEADLINE_PLACES,
    loads=(1.0,),
    bounds=HEADLINE,
    effort=QUICK,
    is_quick=True,
)
_QUICK = (
    _QUICK_HEADLINE,
    replace(_QUICK_HEADLINE, name="bounds"),
    Preset(
        name="limits",
        about="the same with little traffic; other places are those that differ from home in one way",
        abroad=tuple(neighbours()),
        measures_limits=True,
        effort=QUICK,
        is_quick=True,
    ),
    Preset(
        name="live",
        about="the same with a few laps of few requests",
        places=(HOME,),
        loads=(1.0,),
        live=LiveEffort(learn_requests=150, reference_laps=1, budget=4, judge_requests=300, rounds=2),
        effort=QUICK,
        is_quick=True,
    ),
)
PRESETS: Mapping[str, Preset] = MappingProxyType({preset.name: preset for preset in _FULL})
QUICK_PRESETS: Mapping[str, Preset] = MappingProxyType({preset.name: preset for preset in _QUICK})
