"""The arms to beat: fixed rules, Dynamo's and llm-d's as they come and as they are best.

The rule of this module: a rule is tuned on the requests that a policy learns from, under the placement that it will
have, over a grid that holds its defaults; what attains most is taken, and the shorter TTFT tail among equals.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product

from gateway.core.path.base import PathPolicy
from gateway.core.path.rules import AlwaysLocal, AlwaysRemote, DynamoMode, DynamoRule, LlmdRule
from loadtest.compare.arms import DYNAMO_PLACING, OUR_PLACING, Arm, Placing
from loadtest.compare.serving import Served
from policy_store.learn.prices import Score

DYNAMO, DYNAMO_TUNED, LLMD_TUNED = "dynamo", "dynamo-tuned", "llmd-tuned"
"""With Dynamo's own placement; the other arms are named after the placement that they have."""

EFF_ISL_TOKENS = (512, 2048, 8192, 16_384)
RATIOS = (0.7, 1.0)
"""Dynamo takes none above 1: a prompt without any hit is never local for its length."""
BUSY = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
GUARDS = (0.9, 0.7)
"""Tried last, with what was best without one: a guard only ever takes local prefills away."""
LLMD_TOKENS = (256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768)
SCREENED = 3
"""All of a grid is tried on one part in so many of the requests, and one rule in so many goes on to all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """The best rule of a grid, and how it did on the learning half."""

    arm: Arm
    score: Score
    tried: int
    """Rules in all."""


TryArm = Callable[[Arm, int | None], Served]
"""Serve the learning half, or its first so many requests."""


def dynamo_grid() -> list[DynamoRule]:
    """Policy x eff_isl_threshold x ratio x prefill_busy_threshold, where they mean something."""
    found: list[DynamoRule] = []
    for tokens, ratio in product(EFF_ISL_TOKENS, RATIOS):
        rule = DynamoRule(eff_isl_threshold=tokens, eff_isl_ratio_threshold=ratio)
        found.append(rule)
        found += [replace(rule, mode=DynamoMode.ISL_OR_LOAD, prefill_busy_threshold=busy) for busy in BUSY]
    found += [DynamoRule(mode=DynamoMode.PREFILL_LOAD, prefill_busy_threshold=busy) for busy in BUSY]
    return found


def scouts() -> list[DynamoRule]:
    """A few of the grid, with which the saturating rate is looked for."""
    loads = [DynamoRule(mode=DynamoMode.ISL_OR_LOAD, prefill_busy_threshold=busy) for busy in BUSY]
    return [DynamoRule(), DynamoRule(eff_isl_threshold=8192, eff_isl_ratio_threshold=1.0), *loads]


def llmd_grid() -> list[LlmdRule]:
    """llm-d's default, which never disaggregates, and minima of uncached tokens."""
    return [LlmdRule(), *(LlmdRule(non_cached_tokens=tokens) for tokens in LLMD_TOKENS)]


def tune(name: str, paths: Sequence[PathPolicy], placing: Placing, serve: TryArm, *, screen: int | None) -> Tuned:
    """The best of some rules.

    Args:
        name: of the arm.
        paths: the grid.
        placing: beneath each of them.
        serve: tries one.
        screen: requests of the first look at all of the grid; None tries all on everything.
    """
    arms = [Arm(name=name, path=path, placing=placing) for path in paths]
    if screen is not None and len(arms) > SCREENED:
        looked = sorted(arms, key=lambda arm: _rank(serve(arm, screen).score()), reverse=True)
        arms = looked[: max(2, -(-len(arms) // SCREENED))]
    scored = [(arm, serve(arm, None).score()) for arm in arms]
    arm, score = max(scored, key=lambda one: _rank(one[1]))
    return Tuned(arm=arm, score=score, tried=len(paths))


def fixed_arms() -> list[Arm]:
    """What is not tuned, under both placements."""
    paths: tuple[tuple[str, PathPolicy], ...] = (
        ("local", AlwaysLocal()),
        ("remote", AlwaysRemote()),
        (DYNAMO, DynamoRule()),
    )
    return [Arm(name=named(name, placing), path=path, placing=placing) for name, path in paths for placing in PLACINGS]


def tuned_arms(serve: TryArm, *, screen: int | None, rules: Sequence[DynamoRule]) -> list[Tuned]:
    """What is tuned, under both placements; the tuned Dynamo rule under Dynamo's own comes first."""
    dynamo = [tune_dynamo(rules, placing, serve, screen=screen) for placing in PLACINGS]
    llmd = [tune(named(LLMD_TUNED, placing), llmd_grid(), placing, serve, screen=screen) for placing in PLACINGS]
    return [*dynamo, *llmd]


def tune_dynamo(rules: Sequence[DynamoRule], placing: Placing, serve: TryArm, *, screen: int | None) -> Tuned:
    """The best of Dynamo's rules, then the best guard for it, if any."""
    name = named(DYNAMO_TUNED, placing)
    open_ = tune(name, rules, placing, serve, screen=screen)
    rule = open_.arm.path
    assert isinstance(rule, DynamoRule)
    guarded = [replace(rule, decode_busy_threshold=guard) for guard in GUARDS]
    best = tune(name, [rule, *guarded], placing, serve, screen=None)
    return replace(best, tried=open_.tried + len(guarded))


PLACINGS = (DYNAMO_PLACING, OUR_PLACING)


def named(name: str, placing: Placing) -> str:
    """A rule's name with the placement that it has, where that is not the peer's own."""
    return name if placing is DYNAMO_PLACING else f"{name}, our placement"


def _rank(score: Score) -> tuple[float, float, float]:
    return score.attained_ratio, -score.ttft_p90_s, -score.tpot_p90_s
