"""DolphinRouting's learning: warm up, fit, scan, run, and fit again when the traffic has changed.

The rule of this module: it decides what is served next and by which policy; how each step is done stands in a module of
its own. No clock, no I/O, and chance only by the plan's seed. Rebuilt from a summary; the steps are methods.md 1.3 [D].
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from gateway.core.path.base import PathPolicy
from gateway.core.path.table import Guards
from policy_store.learn.bandit import BanditPlan, Cell, incumbents
from policy_store.learn.clusters import ClusterPlan, fit_clusters
from policy_store.learn.course import Course, Phase, Regret, Stretch
from policy_store.learn.drift import Drift, DriftPlan, drift
from policy_store.learn.environment import Environment, ServedRow, attainment
from policy_store.learn.factorial import FactorialPlan, scan_at_once
from policy_store.learn.refit import carried_over, match
from policy_store.learn.regimes import RegimePlan, fit_regimes
from policy_store.learn.scan import ScanPlan, scan
from policy_store.learn.tables import LearnedPolicy, Table, first_cells, shares
from policy_store.learn.verdict import Verdict

WARMUP_TRIES = 10
"""Warming up gives up after so many times the requests that it needs."""
WARMUP_TURN = 250
"""Requests served between two looks at how many have ended."""


class LearningError(Exception):
    """There is nothing to learn from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DolphinPlan:
    """All hyper-parameters; the defaults are those of methods.md 1.3."""

    n_fit: int = 2000
    """Requests of the fit window."""
    clusters: ClusterPlan = field(default_factory=ClusterPlan)
    regimes: RegimePlan | None = None
    """None learns the paper's static table, else an action per cluster and load regime."""
    scan: ScanPlan | FactorialPlan | None = None
    """One cell after the other, as methods.md says, or all at once; None is the first for a static table, and the
    second for one with regimes, whose many small cells take too long one by one."""
    bandit: BanditPlan = field(default_factory=BanditPlan)
    drift: DriftPlan = field(default_factory=DriftPlan)
    run_block: int = 50
    """Requests between two updates of the table while it runs."""
    refit_every: int = 10_000
    guards: Guards = field(default_factory=Guards)
    seed: int = 0

    @property
    def scanning(self) -> ScanPlan | FactorialPlan:
        """How cells are scanned."""
        if self.scan is not None:
            return self.scan
        return ScanPlan() if self.regimes is None else FactorialPlan(seed=self.seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What a restart needs to go on: the table's shape, and what is known of each cell."""

    table: Table
    cells: tuple[Cell, ...]
    version: int
    """Grows with every fit."""

    def policy(self) -> LearnedPolicy:
        """The table as it stands, exploring nothing."""
        return self.table.policy(incumbents(self.cells))

    def exploring(self, plan: BanditPlan) -> LearnedPolicy:
        """The table as it runs while learning goes on."""
        return self.table.policy(incumbents(self.cells), [plan.epsilon(cell.requests) for cell in self.cells])


@dataclass(frozen=True, slots=True, kw_only=True)
class Refit:
    """A fit after the first."""

    at: int
    """How many requests had been served."""
    drift: Drift
    is_due: bool
    """True where it came by the clock of requests, false where drift called for it."""
    carried: int
    """Clusters that took over an old one's values."""
    fresh: int
    """Clusters that start from the baseline's path and are scanned."""


class Dolphin:
    """Learns one table in one environment.

    Args:
        environment: serves the traffic.
        baseline: decides during warm-up, and wherever the table cannot.
        plan: hyper-parameters.
        learned: what an earlier learner knew; learning goes on from there instead of warming up.
    """

    def __init__(
        self, environment: Environment, baseline: PathPolicy, plan: DolphinPlan, *, learned: Learned | None = None
    ) -> None:
        self.plan = plan
        self.phase = Phase.WARMUP if learned is None else Phase.RUN
        self.verdicts: list[Verdict] = []
        self.refits: list[Refit] = []
        self._baseline = baseline
        self._course = Course(environment, keep_rows=max(plan.n_fit, plan.drift.window))
        self._learned = learned
        self._warm: list[ServedRow] = []
        self._to_scan: tuple[float, ...] = ()
        """The share of each cell that is to be scanned, 0 for the others."""
        self._fitted_at = self._course.served
        """Earlier requests had cells of another table."""
        self._since_fit = self._since_look = 0
        """Requests run since the last fit, and since drift was last looked for."""

    @property
    def learned(self) -> Learned:
        """What is known.

        Raises:
            LearningError: nothing has been fitted yet.
        """
        if self._learned is None:
            raise LearningError("nothing has been fitted yet")
        return self._learned

    @property
    def stretches(self) -> Sequence[Stretch]:
        """What was served, in order."""
        return self._course.stretches

    def regret(self) -> Regret:
        """What scanning cost."""
        return self._course.regret()

    def learn(self, requests: int) -> Learned:
        """Go on until at least so many more requests have been served; a scan that has begun is finished.

        Raises:
            LearningError: the environment gives nothing to learn from, or the requests end before the first fit.
        """
        until = self._course.served + requests
        while self._course.served < until:
            self.step()
        if self._learned is None:
            raise LearningError(
                f"{requests:,} requests are too few to learn from: a fit takes over {self.plan.n_fit:,}"
            )
        return self._learned

    def step(self) -> None:
        """One step of the machine: a whole warm-up, fit or scan, or one block of running."""
        match self.phase:
            case Phase.WARMUP:
                self._warm_up()
            case Phase.FIT:
                self._fit()
            case Phase.SCAN:
                self._scan()
            case Phase.RUN:
                self._run()
            case Phase.REFIT:
                self._refit(is_due=self._since_fit >= self.plan.refit_every)

    def _warm_up(self) -> None:
        needed = self.plan.n_fit
        first = self._course.served
        while len(self._warm) < needed:
            if self._course.served - first >= WARMUP_TRIES * needed:
                words = f"of {self._course.served - first} requests only {len(self._warm)} ended with finite features"
                raise LearningError(words)
            turn = min(WARMUP_TURN, needed)
            rows = self._course.serve(Phase.WARMUP, self._baseline, turn)
            self._warm += [row for row in rows if row.has_numbers]
        self.phase = Phase.FIT

    def _fit(self) -> None:
        plan, rows = self.plan, self._warm
        clustering = fit_clusters([row.features for row in rows], plan.clusters, seed=plan.seed)
        regimes = None if plan.regimes is None else fit_regimes(rows, plan.regimes)
        table = Table(clustering=clustering, regimes=regimes, baseline=self._baseline, guards=plan.guards)
        self._adopt(Learned(table=table, cells=tuple(first_cells(table, rows)), version=1))
        self._to_scan = shares(table, rows)
        self.phase = Phase.SCAN

    def _scan(self) -> None:
        learned, plan, course = self.learned, self.plan.scanning, self._course
        if isinstance(plan, FactorialPlan):
            cells, verdicts = scan_at_once(course, learned.table, learned.cells, shares=self._to_scan, plan=plan)
        else:
            attained = attainment(course.recent)
            cells, verdicts = scan(
                course,
                learned.table,
                learned.cells,
                shares=self._to_scan,
                attained=0.5 if attained is None else attained,
                plan=plan,
            )
        self.verdicts += verdicts
        self._learned = Learned(table=learned.table, cells=tuple(cells), version=learned.version)
        self.phase = Phase.RUN

    def _run(self) -> None:
        learned, plan = self.learned, self.plan
        rows = self._course.serve(Phase.RUN, learned.exploring(plan.bandit), plan.run_block)
        cells = list(learned.cells)
        for row in rows:
            if row.is_learnable and row.cell is not None and row.order >= self._fitted_at:
                cells[row.cell] = cells[row.cell].rewarded(row.path, float(bool(row.attained)), plan.bandit)
        self._learned = Learned(table=learned.table, cells=tuple(cells), version=learned.version)
        self._since_fit += plan.run_block
        self._since_look += plan.run_block
        if self._since_fit >= plan.refit_every or self._has_drifted():
            self.phase = Phase.REFIT

    def _has_drifted(self) -> bool:
        """Looked for once per window, so that every look is at other requests."""
        if self._since_look < self.plan.drift.window:
            return False
        self._since_look = 0
        return self._drift().exceeds(self.plan.drift)

    def _drift(self) -> Drift:
        window = list(self._course.recent)[-self.plan.drift.window :]
        return drift(self.learned.table.clustering, [row.features for row in window if row.has_numbers])

    def _refit(self, *, is_due: bool) -> None:
        before, plan, moved = self.learned, self.plan, self._drift()
        # After a shift the fit window must not be the traffic of before it.
        newest = plan.n_fit if is_due else plan.drift.window
        window = [row for row in self._course.recent if row.has_numbers][-newest:]
        if window:
            clustering = fit_clusters([row.features for row in window], plan.clusters, seed=plan.seed)
            old = before.table
            table = Table(clustering=clustering, regimes=old.regimes, baseline=old.baseline, guards=old.guards)
            matched = match(old.clustering, clustering)
            cells = carried_over(before.cells, first_cells(table, self._warm), matched, table.per_cluster)
            self._adopt(Learned(table=table, cells=tuple(cells), version=before.version + 1))
            self._to_scan = tuple(
                0.0 if cell // table.per_cluster in matched else share
                for cell, share in enumerate(shares(table, window))
            )
            fresh = len(clustering.model) - len(matched)
            refit = Refit(at=self._course.served, drift=moved, is_due=is_due, carried=len(matched), fresh=fresh)
            self.refits.append(refit)
        self._since_fit = self._since_look = 0
        self.phase = Phase.SCAN if any(self._to_scan) else Phase.RUN

    def _adopt(self, learned: Learned) -> None:
        self._learned = learned
        self._fitted_at = self._course.served
