"""What serves conversations: policies, and the fleets that they need.

The rule of this module: an arm is data. What tells two arms apart beside their policy is said by their fleets: all have
the same GPUs, but for caps on their power.
"""

from dataclasses import dataclass, replace

from gateway.core.conversation.rules import ConversationRules, Mode, Pinning
from gateway.core.path.base import PathPolicy
from gateway.core.path.price import PriceWeights
from gateway.core.path.priced import JointPolicy
from gateway.core.path.rules import AlwaysLocal, AlwaysRemote, DynamoMode, DynamoRule
from gateway.core.policy import Policy
from gateway.core.types import SloTarget
from loadtest.compare.arms import DYNAMO_PLACING, OUR_PLACING, Placing
from loadtest.fleet.pools import Pools, parse_pools
from loadtest.learning.prices import fleet_costs
from loadtest.learning.simulated import SimulatedFleet
from loadtest.simulator.lengths import Lengths

ENGINE = "h100-llama70b-tp4-fp8"
SLO = SloTarget(name="standard", ttft_s=2.0, tpot_s=0.040)
DECODE_CAP = "@cap50"
"""Half of the TDP, as Splitwise caps its decode machines; decoding draws more than that."""
DECODE_CHUNKS = "@chunk512"
"""Appends are computed in pieces, between which others decode: methods.md 3.2 [D]; else a step takes up to 8,192."""

NO_HOLD = ConversationRules(mode=Mode.OFF)
CONSERVE = ConversationRules(mode=Mode.CONSERVE)
PLAIN_FIFO = replace(CONSERVE, evict_after_s=None, presumes_over=False)
"""Nothing is given up for a new conversation; it waits its turn."""
AFFINITY = ConversationRules(mode=Mode.AFFINITY, pinning=Pinning.LOAD)
FALLBACK = DynamoRule()
"""Of policies by price, where a price is missing: never here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One way to serve conversations."""

    name: str
    path: PathPolicy
    rules: ConversationRules = NO_HOLD
    placing: Placing = OUR_PLACING
    uses_prices: bool = True
    lengths: Lengths = Lengths.ROLLING
    prefill_caches: bool = True
    """Whether prefill workers keep prefixes."""
    options: str = ""
    """Of the decode pool's engine, as they stand behind its name."""
    is_aggregated: bool = False
    """All workers do both."""

    def fleet(self, place: "Place") -> SimulatedFleet:
        """What it runs on there."""
        split = parse_pools(place.pools)
        return SimulatedFleet(
            pools=Pools(both=split.prefill + split.decode) if self.is_aggregated else split,
            engine=ENGINE,
            decode_engine=ENGINE + self.options if self.options else None,
            slo=SLO,
            lengths=self.lengths,
            prefill_caches=self.prefill_caches,
            kv_share=place.kv_share,
            has_power=True,
        )

    def policy(self) -> Policy:
        """How it decides."""
        costs = fleet_costs(ENGINE, ENGINE + self.options if self.options else None, has_power=True)
        return Policy(
            path=self.path,
            costs=costs if self.uses_prices else None,
            prefill_placement=self.placing.prefill,
            decode_placement=self.placing.decode,
            conversation=self.rules,
        )

    @property
    def key(self) -> str:
        """All that its runs depend on, but its name."""
        return repr(replace(self, name=""))


def joint(weights: PriceWeights) -> JointPolicy:
    """The route that costs least."""
    return JointPolicy(weights=weights, baseline=FALLBACK)


PER_TURN = Arm(name="per turn", path=joint(PriceWeights()), lengths=Lengths.NOISY)
"""Each turn by itself where it is predicted to cost least: prices, and lengths that are wrong by up to half."""
PER_TURN_COLD = replace(PER_TURN, name="per turn, no retention", prefill_caches=False)
REMOTE = Arm(name="always remote", path=AlwaysRemote(), uses_prices=False)
REMOTE_COLD = replace(REMOTE, name="always remote, no retention", prefill_caches=False)
"""Plain disaggregation: every turn's whole prompt is computed anew and moved."""
LOCAL = Arm(name="all local", path=AlwaysLocal(), uses_prices=False, is_aggregated=True)
CONSERVE_ARM = Arm(name="conserve", path=FALLBACK, rules=CONSERVE)
CONSERVE_CAPPED = replace(CONSERVE_ARM, name="conserve, capped decoders", options=DECODE_CAP)
CONSERVE_CHUNKED = replace(CONSERVE_ARM, name="conserve, chunked appends", options=DECODE_CHUNKS)
CONSERVE_FIFO = replace(CONSERVE_ARM, name="conserve, plain FIFO", rules=PLAIN_FIFO)


def dynamo(rule: DynamoRule) -> Arm:
    """Dynamo's rule under its own placement."""
    return Arm(name="dynamo, tuned", path=rule, placing=DYNAMO_PLACING, uses_prices=False)


def combined(weights: PriceWeights) -> Arm:
    """Pins by load, and the path by price; KV is not promised, so nobody waits."""
    return Arm(name="combined", path=joint(weights), rules=AFFINITY)


DYNAMO_RULES = tuple(
    DynamoRule(
        mode=DynamoMode.ISL_OR_LOAD,
        eff_isl_threshold=tokens,
        eff_isl_ratio_threshold=ratio,
        prefill_busy_threshold=busy,
    )
    for tokens in (128, 512, 2048)
    for ratio in (0.2, 0.7)
    for busy in (0.25, 1.0, 4.0)
)
"""Among which Dynamo's is tuned: its default tokens and share, and lower ones, as most turns of agents add little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where conversations are served."""

    workload: str
    pools: str
    kv_share: float = 1.0
    """Of each engine's KV cache; less makes memory scarce."""

    @property
    def label(self) -> str:
        """`workload/pools`."""
        return f"{self.workload}/{self.pools}"
