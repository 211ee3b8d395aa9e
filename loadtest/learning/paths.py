"""Learning a path policy from a trace, and judging it on what it has not seen.

The rule of this module: the first part of the trace teaches rule and policy alike, the rest judges them; equal traffic,
plans and seeds give equal bundles.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import joblib

from gateway.core.path.base import PathPolicy
from gateway.core.path.priced import JointPolicy, PricedPolicy
from gateway.core.path.rules import DynamoRule
from loadtest.engine.presets import UnknownEngine
from loadtest.experiment.compare import Estimate, estimate
from loadtest.learning.adoption import adopted
from loadtest.learning.kinds import Kind
from loadtest.learning.prices import BASELINE, Trial, try_weights
from loadtest.learning.rules import TunedRule, tune
from loadtest.learning.simulated import SimulatedEnvironment
from loadtest.traces.types import TraceError
from policy_store.bundle import Bundle, new_bundle, write_bundle
from policy_store.faults import StoreError
from policy_store.learn.dolphin import Dolphin, DolphinPlan, LearningError
from policy_store.learn.prices import Goal, Score, learn_weights
from policy_store.learn.regimes import RegimePlan
from policy_store.path_models import model_of
from policy_store.store import FileStore

CANNOT = (TraceError, UnknownEngine, LearningError, StoreError, ValueError, OSError)
"""What is wrong with the options, not with the program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PathPlan:
    """What to learn, from what, and how hard to try."""

    kind: Kind
    trial: Trial
    """The learning part of the traffic."""
    judging: Sequence[Trial]
    """The rest of it, once per seed."""
    budget: int = 48
    """Weights to try, for a policy by price."""
    requests: int = 30_000
    """To serve while learning, for a table."""
    seed: int = 0
    jobs: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One policy on the judging traffic, by seed."""

    name: str
    scores: Sequence[Score]

    def over_seeds(self, metric: str) -> Estimate | None:
        """Mean and interval of a figure."""
        return estimate(getattr(score, metric) for score in self.scores)

    def beside(self, other: "Judged", metric: str) -> Estimate | None:
        """The difference from another policy's figure, seed by seed: of latencies as a share of the other's."""
        pairs = [(getattr(a, metric), getattr(b, metric)) for a, b in zip(self.scores, other.scores, strict=True)]
        if metric == "attained_ratio":
            return estimate(own - its for own, its in pairs)
        return estimate(own / its - 1.0 for own, its in pairs if its)


@dataclass(frozen=True, slots=True, kw_only=True)
class PathResult:
    """What came of it."""

    bundle: Bundle
    rule: TunedRule
    judged: Sequence[Judged] = field(default_factory=tuple)
    """The learned policy first, then the tuned rule, then Dynamo's defaults."""


def learn_paths(plan: PathPlan) -> PathResult:
    """Tune the rule, learn the policy, judge both.

    Raises:
        LearningError: there is too little traffic for a table.
        ValueError: too small a budget.
    """
    rule = tune(plan.trial, jobs=plan.jobs)
    policy = _learn(plan, rule)
    contenders: dict[str, PathPolicy] = {
        str(plan.kind): policy,
        "dynamo, tuned": rule.rule,
        "dynamo, defaults": DynamoRule(),
    }
    judged = [Judged(name=name, scores=_judge(plan, path)) for name, path in contenders.items()]
    costs = plan.trial.costs() if plan.kind in (Kind.PRICED, Kind.JOINT) else None
    bundle = new_bundle(model_of(policy, costs), provenance=_provenance(plan, rule))
    return PathResult(bundle=bundle, rule=rule, judged=judged)


def _learn(plan: PathPlan, rule: TunedRule) -> PathPolicy:
    match plan.kind:
        case Kind.JOINT | Kind.PRICED:
            jointly = plan.kind is Kind.JOINT
            tried = learn_weights(
                lambda asked: try_weights(plan.trial, asked, jointly=jointly, jobs=plan.jobs),
                Goal(reference=rule.score),
                budget=plan.budget,
                seed=plan.seed,
            )
            kind = JointPolicy if jointly else PricedPolicy
            return kind(weights=adopted(tried, rule.score).weights, baseline=BASELINE)
        case Kind.TABLE | Kind.TABLE_REGIME:
            environment = SimulatedEnvironment(plan.trial.fleet, plan.trial.traffic.load(), seed=plan.seed)
            regimes = RegimePlan() if plan.kind is Kind.TABLE_REGIME else None
            learner = Dolphin(environment, rule.rule, DolphinPlan(regimes=regimes, seed=plan.seed))
            return learner.learn(plan.requests).policy()


def _judge(plan: PathPlan, path: PathPolicy) -> Sequence[Score]:
    scores: Sequence[Score] = joblib.Parallel(n_jobs=plan.jobs)(
        joblib.delayed(trial.score)(path) for trial in plan.judging
    )
    return scores


def _provenance(plan: PathPlan, rule: TunedRule) -> dict[str, str]:
    trial = plan.trial
    slo = trial.fleet.slo
    return {
        "trace": trial.traffic.trace,
        "requests": f"{trial.traffic.requests or 'all'} from {trial.traffic.first}",
        "rate_scale": f"{trial.traffic.rate_scale:g}",
        "engine": trial.fleet.engine,
        "pools": str(trial.fleet.pools),
        "slo": f"ttft={slo.ttft_s}s,tpot={slo.tpot_s}s",
        "seed": str(plan.seed),
        "rule_to_beat": rule.words,
    }


def split(trial: Trial, share: float, seeds: Sequence[int]) -> tuple[Trial, list[Trial]]:
    """The first part of a trial's traffic to learn from, and the rest to judge by, once per seed.

    A seed moves arrivals within the trace's ticks.

    Raises:
        TraceError: the trace cannot be read.
    """
    traffic = trial.traffic
    total = len(traffic.load())
    cut = round(share * total)
    rest = replace(traffic, first=traffic.first + cut, requests=total - cut)
    judging = [replace(trial, traffic=replace(rest, seed=seed)) for seed in seeds]
    return replace(trial, traffic=replace(traffic, requests=cut)), judging


def keep(bundle: Bundle, *, out: Path, store: Path | None) -> Path:
    """Add the bundle to a policy store, or write it below `out`; where it lies now.

    Raises:
        StoreError: the store cannot take it.
        OSError: it cannot be written.
    """
    if store is None:
        out.mkdir(parents=True, exist_ok=True)
        return write_bundle(bundle, out)
    opened = FileStore(store)
    return opened.directory(opened.add(bundle))
