"""Which of a cell's two paths is better, from what was seen of both.

The rule of this module: all requests judge a path first, for one cell's prefills slow the others' decoding; the cell's
own attainment only breaks a tie, and the baseline's path a tie of both (methods.md 1.3, step 3 [D]).
"""

import math
from dataclasses import dataclass

from gateway.core.types import Path
from policy_store.learn.bandit import Arm, Cell


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """Attainment with local minus with remote."""

    difference: float
    error: float
    """Its standard error."""

    def plus(self, other: "Contrast") -> "Contrast":
        """The sum of two that are independent of one another."""
        return Contrast(difference=self.difference + other.difference, error=math.hypot(self.error, other.error))

    def times(self, factor: float) -> "Contrast":
        """So many times as much."""
        return Contrast(difference=self.difference * factor, error=self.error * abs(factor))

    def winner(self, tie_errors: float) -> Path | None:
        """The better path; None where the difference is at most so many standard errors."""
        if abs(self.difference) <= tie_errors * self.error:
            return None
        return Path.LOCAL if self.difference > 0.0 else Path.REMOTE


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the scan of one cell came to."""

    cell: int
    chosen: Path
    whole: Contrast
    """Of all requests."""
    local: Arm
    remote: Arm
    """The cell's own attainment by path."""

    def seeded(self, cell: Cell) -> Cell:
        """The cell with what was seen of its own requests, and the path that was chosen."""
        return cell.with_arm(Path.LOCAL, self.local).with_arm(Path.REMOTE, self.remote).with_incumbent(self.chosen)


def judged_by(
    cell: Cell, whole: Contrast, local: Arm, remote: Arm, *, tie_errors: float, others: Contrast | None = None
) -> Path:
    """The better path: by all requests, else by the cell's own, else the baseline's.

    Args:
        cell: whose paths they are.
        whole: of all requests.
        local: the cell's own attainment by path.
        remote: likewise.
        tie_errors: a difference of at most so many standard errors is a tie.
        others: what one of the cell's requests does to all others, where that is known from elsewhere; it is added to
            what it does to itself.
    """
    own = None
    if local.requests and remote.requests:
        difference = contrast(local.value, local.requests, remote.value, remote.requests)
        own = (difference if others is None else difference.plus(others)).winner(tie_errors)
    return whole.winner(tie_errors) or own or cell.baseline


def contrast(local: float, locals_: int, remote: float, remotes: int) -> Contrast:
    """Of two attainments over so many requests each, as if requests met their SLO independently of each other.

    They do not, as neighbours share a queue: the error is the least that it can be. One request more that met it and
    one that missed are assumed on either side, or a single request would have no error at all.
    """
    return Contrast(difference=local - remote, error=math.hypot(_error(local, locals_), _error(remote, remotes)))


def _error(attained: float, requests: int) -> float:
    assumed = (attained * requests + 1.0) / (requests + 2.0)
    return math.sqrt(assumed * (1.0 - assumed) / requests)
