"""Whether a learned policy may take the place of the rule that it was held against.

The rule of this module: a gain in one figure is no leave for a loss in another. Only what was learned on is looked at.
"""

from collections.abc import Sequence
from dataclasses import fields

from policy_store.learn.prices import Score, Tails, Tried

ALLOWED_LOSS = 0.01
"""Of a latency as a share of the rule's; of attainment in points."""
LATENCIES = tuple(field.name for field in fields(Tails))


def spares(score: Score, rule: Score) -> bool:
    """Whether no figure is worse than the rule's by more than is allowed; one that is not known of the rule is not."""
    if score.attained_ratio < rule.attained_ratio - ALLOWED_LOSS:
        return False
    pairs = [(getattr(score, name), getattr(rule, name)) for name in LATENCIES]
    return all(own <= (1.0 + ALLOWED_LOSS) * its for own, its in pairs if its > 0)


def adopted(tried: Sequence[Tried[Score]], rule: Score) -> Tried[Score]:
    """The best that spares every figure, or where none does, the best.

    Args:
        tried: the best first, at least one.
        rule: how the rule did on the same traffic.
    """
    return next((one for one in tried if spares(one.score, rule)), tried[0])
