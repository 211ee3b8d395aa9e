"""A policy: every learned table and tunable of the core, as one frozen, versioned object.

The rule of this module: a policy is checked wholly when it is built and never changes afterwards; a new one is
built beside the old one and then takes its place.
"""

from dataclasses import dataclass, field

from gateway.core.candidates import LEAST
from gateway.core.conversation.rules import ConversationRules
from gateway.core.forecast import FleetCosts
from gateway.core.health import HealthPolicy
from gateway.core.output_length.predictor import OutputLengthModel
from gateway.core.path.base import PathPolicy, PolicyError
from gateway.core.path.rules import DynamoRule
from gateway.core.placement import Placement
from gateway.core.types import SloDefaults, SloTarget

DEFAULT_SLO = SloTarget(name="default", ttft_s=2.0, tpot_s=0.04)
DEFAULT_PREFILL_PLACEMENT = Placement(weights=(("prefill_work", 3.0), ("few_requests", 1.0)))
DEFAULT_DECODE_PLACEMENT = Placement(
    weights=(("prefix_hit", 1.0), ("prefill_work", 1.0), ("few_requests", 1.0), ("kv_free", 1.0))
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """All that a router needs to know before the first event."""

    version: str = "built-in"
    description: str = field(default="", compare=False, repr=False)
    """The settings that it was built from, as JSON: enough to build it again."""
    path: PathPolicy = field(default_factory=DynamoRule)
    costs: FleetCosts | None = None
    """What the workers' engines take; None where nobody said."""
    output_length: OutputLengthModel | None = None
    """Predicts how long answers will be; without one the rolling means stand."""
    prefill_placement: Placement = DEFAULT_PREFILL_PLACEMENT
    decode_placement: Placement = DEFAULT_DECODE_PLACEMENT
    conversation: ConversationRules = field(default_factory=ConversationRules)
    health: HealthPolicy = field(default_factory=HealthPolicy)
    slo: SloDefaults = field(default_factory=lambda: SloDefaults(default=DEFAULT_SLO))
    slo_objective: float = 0.99
    sample_max_age_s: float = 10.0
    """A scraped sample older than this is not used."""
    index_blocks_per_worker: int = 200_000
    """Upper bound of the prefix index per worker, in blocks of text."""
    max_candidates: int | None = 64
    """A decision looks at so many workers of a pool at most, however large it is; None: at all of them."""
    load_sample: int | None = None
    """So many of them are there for no other reason than their load; None: as many as there is room for, or none where
    the gateway has workers of its own."""
    replicas: int = 1
    """Gateways that share these workers and tell each other nothing of their requests."""
    replica: int | None = None
    """Which of them this one is, from 0: of every pool it prefers its own part. None: nobody said."""
    overflow_tokens: int = 40_000
    """Once each worker of its own part has more prompt tokens to compute, it looks at some of the others' too."""
    default_kv_block_tokens: int = 16
    """Assumed where a worker does not say."""

    def __post_init__(self) -> None:
        names = [slo.name for slo in self.slo.classes]
        if len(set(names)) != len(names):
            raise PolicyError("two SLO classes have the same name")
        unknown = {name for _, name in self.slo.by_model} - set(names)
        if unknown:
            raise PolicyError(f"models refer to unknown SLO classes: {', '.join(sorted(unknown))}")
        if not 0.0 < self.slo_objective < 1.0:
            raise PolicyError("slo_objective must lie between 0 and 1")
        if self.index_blocks_per_worker < 1 or self.default_kv_block_tokens < 1:
            raise PolicyError("index_blocks_per_worker and default_kv_block_tokens must be at least 1")
        if self.max_candidates is not None and self.max_candidates < LEAST:
            raise PolicyError(f"max_candidates must be at least {LEAST}")
        if self.load_sample is not None and self.load_sample < 1:
            raise PolicyError("load_sample must be at least 1")
        if self.overflow_tokens < 0:
            raise PolicyError("overflow_tokens must be at least 0")
        if self.replicas < 1 or (self.replica is not None and self.replica < 0):
            raise PolicyError("replicas must be at least 1, and replica at least 0")
