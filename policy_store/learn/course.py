"""The course of learning: what was served by which policy, and what it cost to find out.

The rule of this module: every request is served through here and counts to the stretch that routed it, whenever it
ends. So the price of exploring is known, and not only its gain.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from gateway.core.path.base import PathPolicy
from gateway.core.types import Path
from policy_store.learn.environment import Environment, ServedRow


class Phase(StrEnum):
    """The steps of learning (methods.md 1.3); nothing is served while fitting."""

    WARMUP = "warmup"
    FIT = "fit"
    SCAN = "scan"
    RUN = "run"
    REFIT = "refit"


@dataclass(slots=True, kw_only=True)
class Stretch:
    """Consecutive requests of one policy."""

    phase: Phase
    first: int
    """The order of the first of them."""
    requests: int
    cell: int | None = None
    """The cell that is scanned, and the path that is tried."""
    path: Path | None = None
    met: int = 0
    missed: int = 0
    """Outcomes that could be judged, so far."""

    @property
    def end(self) -> int:
        """The order of the first request after them."""
        return self.first + self.requests

    @property
    def attained(self) -> float | None:
        """None while nothing has been judged."""
        judged = self.met + self.missed
        return self.met / judged if judged else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Regret:
    """What scanning cost, against what came after it (methods.md 1.4, figure B)."""

    warmup: float | None
    scan: float | None
    run: float | None
    """Attainments by phase; None where nothing was judged."""
    scan_requests: int

    @property
    def missed_for_scanning(self) -> float | None:
        """SLOs that scanning missed beyond what the learned table would have; negative where scanning did better."""
        if self.scan is None or self.run is None:
            return None
        return (self.run - self.scan) * self.scan_requests


class Course:
    """Serves through an environment and keeps the record."""

    def __init__(self, environment: Environment, *, keep_rows: int) -> None:
        self._environment = environment
        self._firsts: list[int] = []
        self.stretches: list[Stretch] = []
        self.recent: deque[ServedRow] = deque(maxlen=keep_rows)
        """The newest rows, in the order of their ends."""

    @property
    def served(self) -> int:
        """The order of the next request."""
        return self._environment.served

    def serve(
        self, phase: Phase, policy: PathPolicy, requests: int, *, cell: int | None = None, path: Path | None = None
    ) -> list[ServedRow]:
        """Serve a stretch; the rows of all requests that ended meanwhile, whichever stretch routed them."""
        self._firsts.append(self.served)
        self.stretches.append(Stretch(phase=phase, first=self.served, requests=requests, cell=cell, path=path))
        rows = self._environment.serve(policy, requests)
        for row in rows:
            self._count(row)
        self.recent.extend(rows)
        return rows

    def regret(self) -> Regret:
        """By phase, of all outcomes so far."""
        scans = [stretch for stretch in self.stretches if stretch.phase is Phase.SCAN]
        return Regret(
            warmup=self._attained(Phase.WARMUP),
            scan=self._attained(Phase.SCAN),
            run=self._attained(Phase.RUN),
            scan_requests=sum(stretch.requests for stretch in scans),
        )

    def _count(self, row: ServedRow) -> None:
        place = bisect_right(self._firsts, row.order) - 1
        if row.attained is None or place < 0:
            return
        stretch = self.stretches[place]
        if row.attained:
            stretch.met += 1
        else:
            stretch.missed += 1

    def _attained(self, phase: Phase) -> float | None:
        return attained_over([stretch for stretch in self.stretches if stretch.phase is phase])


def attained_over(stretches: Sequence[Stretch]) -> float | None:
    """The attainment of several stretches together; None where nothing was judged."""
    met = sum(stretch.met for stretch in stretches)
    judged = met + sum(stretch.missed for stretch in stretches)
    return met / judged if judged else None
