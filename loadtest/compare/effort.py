"""How hard a comparison tries.

The rule of this module: `FULL` is what a claim rests on; `QUICK` is the same machinery with less of everything and
proves nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from gateway.core.path.rules import DynamoRule
from loadtest.compare.arms import DYNAMO_PLACING, PLACINGS, Placing
from loadtest.compare.baselines import DYNAMO, FIXED, scouts
from loadtest.learning.dynamo_grid import FINE
from policy_store.learn.factorial import FactorialPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Sizes and seeds."""

    requests: int = 3000
    """Of each half."""
    seeds: Sequence[int] = (0, 1, 2, 3, 4)
    """Of the judging halves."""
    learn_seed: int = 100
    rules: Sequence[DynamoRule] = field(default_factory=FINE.rules)
    """Among which Dynamo's is tuned."""
    screens: Sequence[int] = (1000,)
    """Requests of the looks at a grid before all of them; after each a third goes on."""
    placings: Sequence[Placing] = PLACINGS
    """Beneath the rules."""
    fixed: Sequence[str] = FIXED
    """What is not tuned."""
    shows_built_in: bool = True
    """Also judge what is learned as it was before it had learned."""
    learners: Sequence[str] = ("table", "table-regime", "priced", "joint")
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
BROAD = Effort(
    requests=1000,
    screens=(150, 300),
    placings=(DYNAMO_PLACING,),
    fixed=(DYNAMO,),
    shows_built_in=False,
    learners=("joint",),
    budget=12,
)
"""For a look at very many cells: rules under Dynamo's own placement, and one learned policy, from less traffic."""
QUICK = Effort(
    requests=1200,
    seeds=(0, 1),
    rules=tuple(scouts()),
    screens=(),
    budget=8,
    scan=FactorialPlan(turns=40, turn=100, passes=1),
    table_requests=6000,
    draws=300,
)
