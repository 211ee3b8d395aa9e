"""What is compared: a path policy with the placement beneath it.

The rule of this module: an arm is data that makes a whole policy; equal arms have equal keys, whatever they are called.
"""

from dataclasses import dataclass

from gateway.core.forecast import FleetCosts
from gateway.core.path.base import PathPolicy
from gateway.core.placement import Placement
from gateway.core.policy import DEFAULT_DECODE_PLACEMENT, DEFAULT_PREFILL_PLACEMENT, Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Placing:
    """How workers are chosen where the path policy does not."""

    name: str
    prefill: Placement
    decode: Placement


OUR_PLACING = Placing(name="tidegate", prefill=DEFAULT_PREFILL_PLACEMENT, decode=DEFAULT_DECODE_PLACEMENT)
DYNAMO_PLACING = Placing(
    name="dynamo",
    prefill=Placement(weights=(("dynamo_prefill_cost", 1.0),)),
    decode=Placement(weights=(("dynamo_decode_cost", 1.0),)),
)
PLACINGS = (DYNAMO_PLACING, OUR_PLACING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One policy under comparison."""

    name: str
    path: PathPolicy
    costs: FleetCosts | None = None
    """Only where the path policy goes by prices."""
    placing: Placing = OUR_PLACING

    def policy(self) -> Policy:
        """Its policy."""
        return Policy(
            path=self.path,
            costs=self.costs,
            prefill_placement=self.placing.prefill,
            decode_placement=self.placing.decode,
        )

    @property
    def key(self) -> str:
        """All that its decisions depend on."""
        return repr((self.path, self.costs, self.placing))
