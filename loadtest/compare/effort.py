"""How hard a comparison tries.

The rule of this module: `FULL` is what a claim rests on; `QUICK` is the same machinery with less of everything and
proves nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from gateway.core.path.rules import DynamoRule
from loadtest.compare.baselines import dynamo_grid, scouts
from policy_store.learn.factorial import FactorialPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Sizes and seeds."""

    requests: int = 3000
    """Of each half."""
    seeds: Sequence[int] = (0, 1, 2, 3, 4)
    """Of the judging halves."""
    learn_seed: int = 100
    rules: Sequence[DynamoRule] = field(default_factory=dynamo_grid)
    """Among which Dynamo's is tuned."""
    screen: int | None = 1000
    """Requests of the first look at a whole grid."""
    budget: int = 32
    """Weights that a policy by price tries."""
    scan: FactorialPlan = field(default_factory=lambda: FactorialPlan(turns=120, passes=2))
    table_requests: int = 30_000
    """That a table serves while it learns; a scan that has begun is finished."""
    draws: int = 1000
    """Of the bootstrap."""

    @property
    def proves(self) -> bool:
        """Whether a claim may rest on it."""
        return len(self.seeds) >= 5 and self.requests >= 3000


FULL = Effort()
QUICK = Effort(
    requests=1200,
    seeds=(0, 1),
    rules=tuple(scouts()),
    screen=None,
    budget=8,
    scan=FactorialPlan(turns=40, turn=100, passes=1),
    table_requests=6000,
    draws=300,
)
