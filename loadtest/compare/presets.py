"""What can be compared by name.

The rule of this module: a preset says where, how hard and what must come out; a quick one looks at fewer cells with
less of everything, and is no claim.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from loadtest.compare.bounds import HEADLINE, Bound
from loadtest.compare.cells import LLAMA_70B, LOADS, SLOS, Place, all_places
from loadtest.compare.effort import FULL, QUICK, Effort
from loadtest.compare.limits import everywhere_else, neighbours

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
    effort: Effort = FULL
    is_quick: bool = False


_FULL = (
    Preset(
        name="headline",
        about="all cells: 4 workloads x 4 pools x 2 models x 2 SLO classes x 3 loads",
        places=tuple(all_places()),
        loads=LOADS,
        bounds=HEADLINE,
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
)
PRESETS: Mapping[str, Preset] = MappingProxyType({preset.name: preset for preset in _FULL})
QUICK_PRESETS: Mapping[str, Preset] = MappingProxyType({preset.name: preset for preset in _QUICK})
