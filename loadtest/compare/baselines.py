"""The arms to beat: fixed rules, Dynamo's and llm-d's as they come and as they are best.

The rule of this module: a rule is tuned on the requests that a policy learns from, under the placement that it will
have, over a grid that holds its defaults; what attains most is taken, and the shorter TTFT tail among equals.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gateway.core.path.base import PathPolicy
from gateway.core.path.rules import AlwaysLocal, AlwaysRemote, DynamoMode, DynamoRule, LlmdRule
from loadtest.compare.arms import DYNAMO_PLACING, Arm, Placing
from loadtest.compare.serving import Served
from loadtest.learning.dynamo_grid import FINE, looked_around
from policy_store.learn.prices import Score

DYNAMO, DYNAMO_TUNED, LLMD_TUNED = "dynamo", "dynamo-tuned", "llmd-tuned"
"""With Dynamo's own placement; the other arms are named after the placement that they have."""
FIXED = ("local", "remote", DYNAMO)
"""Rules that are not tuned."""

GUARDS = (0.9, 0.7)
"""Tried last, with what was best without one: a guard only ever takes local prefills away."""
LLMD_TOKENS = (256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768)
SCREENED = 3
"""After a look at some of the requests, one rule in so many goes on to more of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """The best rule of a grid, and how it did on the learning half."""

    arm: Arm
    score: Score
    tried: int
    """Rules in all."""


TryArm = Callable[[Arm, int | None], Served]
"""Serve the learning half, or its first so many requests."""


def scouts() -> list[DynamoRule]:
    """A few of the fine grid, with which the saturating rate is looked for."""
    loads = [DynamoRule(mode=DynamoMode.ISL_OR_LOAD, prefill_busy_threshold=busy) for busy in FINE.busy]
    return [DynamoRule(), DynamoRule(eff_isl_threshold=8192, eff_isl_ratio_threshold=1.0), *loads]


def llmd_grid() -> list[LlmdRule]:
    """llm-d's default, which never disaggregates, and minima of uncached tokens."""
    return [LlmdRule(), *(LlmdRule(non_cached_tokens=tokens) for tokens in LLMD_TOKENS)]


def tune(name: str, paths: Sequence[PathPolicy], placing: Placing, serve: TryArm, *, screens: Sequence[int]) -> Tuned:
    """The best of some rules.

    Args:
        name: of the arm.
        paths: the grid.
        placing: beneath each of them.
        serve: tries one.
        screens: requests of the looks at the grid before all of them; after each, the best of what is left go on.
    """
    arms = [Arm(name=name, path=path, placing=placing) for path in paths]
    for screen in screens:
        if len(arms) > SCREENED:
            scores = [_rank(serve(arm, screen).score()) for arm in arms]
            looked = sorted(zip(scores, arms, strict=True), key=lambda one: one[0], reverse=True)
            arms = [arm for _, arm in looked[: max(2, -(-len(arms) // SCREENED))]]
    scored = [(arm, serve(arm, None).score()) for arm in arms]
    arm, score = max(scored, key=lambda one: _rank(one[1]))
    return Tuned(arm=arm, score=score, tried=len(paths))


def fixed_arms(names: Sequence[str], placings: Sequence[Placing]) -> list[Arm]:
    """What is not tuned, of `FIXED`, under each placement."""
    rules: tuple[PathPolicy, ...] = (AlwaysLocal(), AlwaysRemote(), DynamoRule())
    paths = dict(zip(FIXED, rules, strict=True))
    return [Arm(name=named(name, placing), path=paths[name], placing=placing) for name in names for placing in placings]


def tuned_arms(
    serve: TryArm, *, screens: Sequence[int], rules: Sequence[DynamoRule], placings: Sequence[Placing]
) -> list[Tuned]:
    """What is tuned, under each placement; the tuned Dynamo rule under Dynamo's own comes first."""
    dynamo = [tune_dynamo(rules, placing, serve, screens=screens) for placing in placings]
    llmd = [tune(named(LLMD_TUNED, placing), llmd_grid(), placing, serve, screens=screens) for placing in placings]
    return [*dynamo, *llmd]


def tune_dynamo(rules: Sequence[DynamoRule], placing: Placing, serve: TryArm, *, screens: Sequence[int]) -> Tuned:
    """The best of Dynamo's rules, then of its neighbours, then the best guard for it, if any."""
    name = named(DYNAMO_TUNED, placing)
    best = tune(name, rules, placing, serve, screens=screens)
    best = looked_around(best, _dynamo, lambda best, others: _better(best, others, serve))
    return _better(best, [replace(_dynamo(best), decode_busy_threshold=guard) for guard in GUARDS], serve)


def _better(best: Tuned, others: Sequence[DynamoRule], serve: TryArm) -> Tuned:
    """The best of a tuned rule and of others."""
    found = tune(best.arm.name, others, best.arm.placing, serve, screens=())
    tried = best.tried + found.tried
    return replace(found if _rank(found.score) > _rank(best.score) else best, tried=tried)


def _dynamo(tuned: Tuned) -> DynamoRule:
    assert isinstance(tuned.arm.path, DynamoRule)
    return tuned.arm.path


def named(name: str, placing: Placing) -> str:
    """A rule's name with the placement that it has, where that is not the peer's own."""
    return name if placing == DYNAMO_PLACING else f"{name}, our placement"


def _rank(score: Score) -> tuple[float, float, float]:
    return score.attained_ratio, -score.ttft_p90_s, -score.tpot_p90_s
