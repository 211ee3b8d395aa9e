"""What each cell's two paths are worth, as far as is known.

The rule of this module: a value moves only by an outcome of that cell and path. Formulas: methods.md 1.2 [D].
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.core.types import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class BanditPlan:
    """How values move and how much is explored; the defaults are those of methods.md 1.3."""

    eps0: float = 0.10
    eps_min: float = 0.02
    n_half: float = 500.0
    """Requests of a cell after which its exploration has halved."""
    alpha_min: float = 0.02
    """About a 50-request memory."""
    switch_margin: float = 0.1
    """By how much the other path's value must be larger to take the cell over [D]. A value counts the cell's own
    requests only, and with a short memory: what a path does to others, scanning has seen and running does not."""

    def epsilon(self, requests: int) -> float:
        """How much a cell explores after so many of its requests."""
        return max(self.eps_min, self.eps0 / (1.0 + requests / self.n_half))


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One path of one cell."""

    value: float = 0.0
    requests: int = 0

    def updated(self, reward: float, alpha_min: float) -> "Arm":
        """The arm after one more outcome."""
        requests = self.requests + 1
        alpha = max(1.0 / requests, alpha_min)
        return Arm(value=self.value + alpha * (reward - self.value), requests=requests)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Both paths of one entry of the table, and the one that is taken."""

    incumbent: Path
    baseline: Path
    """What the baseline rule would mostly do here: it wins a tie."""
    local: Arm = Arm()
    remote: Arm = Arm()

    @property
    def requests(self) -> int:
        """Outcomes of both paths."""
        return self.local.requests + self.remote.requests

    def arm(self, path: Path) -> Arm:
        """One of the two."""
        return self.local if path is Path.LOCAL else self.remote

    def with_arm(self, path: Path, arm: Arm) -> "Cell":
        """The cell with one arm replaced."""
        local, remote = (arm, self.remote) if path is Path.LOCAL else (self.local, arm)
        return Cell(incumbent=self.incumbent, baseline=self.baseline, local=local, remote=remote)

    def with_incumbent(self, path: Path) -> "Cell":
        """The cell with another path taken."""
        return Cell(incumbent=path, baseline=self.baseline, local=self.local, remote=self.remote)

    def rewarded(self, path: Path, reward: float, plan: BanditPlan) -> "Cell":
        """The cell after one outcome, its incumbent chosen anew.

        An arm that has never been tried takes nothing over.
        """
        cell = self.with_arm(path, self.arm(path).updated(reward, plan.alpha_min))
        return cell.with_incumbent(cell.greedy(plan.switch_margin))

    def greedy(self, margin: float = 0.0) -> Path:
        """The path of the larger value; the baseline's on a tie of values, the incumbent within the margin."""
        if not (self.local.requests and self.remote.requests):
            return self.incumbent
        lead = self.local.value - self.remote.value
        if lead == 0.0:
            return self.baseline
        if abs(lead) <= margin:
            return self.incumbent
        return Path.LOCAL if lead > 0 else Path.REMOTE


def incumbents(cells: Sequence[Cell]) -> tuple[Path, ...]:
    """The table's actions."""
    return tuple(cell.incumbent for cell in cells)
