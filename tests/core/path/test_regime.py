import math
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.path.base import PolicyError
from gateway.core.path.regime import RegimePolicy, Regimes
from gateway.core.path.rules import AlwaysLocal
from gateway.core.path.table import KMeans, Scaler
from gateway.core.types import Path, PathChoice, Reason
from tests.core.factories import question, view

WIDTH = 4
# Two clusters by prompt length alone: about 10 tokens, and about 1000.
SHORT, LONG = (math.log1p(10), 0.0, 0.0, 0.0), (math.log1p(1000), 0.0, 0.0, 0.0)
GRID = Regimes(prefill_backlog_tokens=(8_000.0,), decode_requests=(4.0, 16.0))
LOCAL, REMOTE = Path.LOCAL, Path.REMOTE
ACTIONS = ((REMOTE, REMOTE, REMOTE, LOCAL, LOCAL, REMOTE), (REMOTE,) * 6)


def policy(**changes: Any) -> RegimePolicy:
    fields: dict[str, Any] = {
        "scaler": Scaler(mean=(0.0,) * WIDTH, std=(1.0, 1e9, 1e9, 1e9)),
        "clusters": KMeans(centroids=(SHORT, LONG)),
        "regimes": GRID,
        "actions": ACTIONS,
        "baseline": AlwaysLocal(),
        **changes,
    }
    return RegimePolicy(**fields)


def choose(
    of: RegimePolicy, isl: int, *, backlog: int = 0, batch: int = 0, seed: int = 0, **changes: Any
) -> PathChoice:
    prefill = view("p0", prefill_tokens=backlog)
    decode = view("d0", inflight_requests=batch, **changes)
    return of.choose(question(isl, prefill=prefill, decode=decode), Random(seed))


@pytest.mark.parametrize(
    ("backlog", "batch", "regime"),
    [(0, 0, 0), (8_000, 4, 0), (8_000, 5, 1), (8_000, 17, 2), (8_001, 4, 3), (8_001, 16, 4), (10**9, 10**9, 5)],
)
def test_a_load_at_a_threshold_belongs_below_it(backlog: int, batch: int, regime: int) -> None:
    assert GRID.assign(backlog, batch) == regime


@given(st.integers(0, 10**6), st.integers(0, 1000))
def test_every_load_has_a_regime(backlog: int, batch: int) -> None:
    assert 0 <= GRID.assign(backlog, batch) < len(GRID) == 6


def test_without_thresholds_there_is_one_regime() -> None:
    assert len(Regimes()) == 1
    assert Regimes().assign(10**9, 10**9) == 0


def test_the_path_depends_on_the_load() -> None:
    idle, queued = choose(policy(), 12), choose(policy(), 12, backlog=20_000)
    assert (idle.path, idle.cluster, idle.reason) == (REMOTE, 0, Reason.CLUSTER)
    assert (queued.path, queued.cluster, queued.reason) == (LOCAL, 3, Reason.CLUSTER)


def test_the_cell_counts_the_regimes_of_every_cluster_before() -> None:
    assert choose(policy(), 900, backlog=20_000, batch=5).cluster == 6 + 4


def test_guards_come_before_the_table() -> None:
    full = choose(policy(), 12, backlog=20_000, kv_resident_ratio=0.91)
    long = choose(policy(max_local_tokens=11), 12, backlog=20_000)
    assert (full.path, full.reason, full.cluster, full.propensity) == (REMOTE, Reason.GUARD_DECODE_KV, None, 1.0)
    assert (long.path, long.reason, long.cluster, long.propensity) == (REMOTE, Reason.GUARD_LONG_PROMPT, None, 1.0)


def test_features_that_are_no_numbers_go_to_the_baseline() -> None:
    asked = question(12, osl=math.nan)
    assert policy().choose(asked, Random(0)).reason is Reason.ALWAYS_LOCAL


def test_each_cell_explores_at_its_own_rate() -> None:
    rates = ((0.5, 0.0, 0.0, 0.0, 0.0, 0.0), (0.0,) * 6)
    exploring = policy(epsilon=rates)
    drawn = [choose(exploring, 12, seed=seed) for seed in range(400)]
    other = [choice for choice in drawn if choice.path is LOCAL]
    assert 60 <= len(other) <= 140  # a quarter of 400
    assert {(choice.reason, choice.propensity) for choice in other} == {(Reason.EXPLORATION, 0.25)}
    assert {choice.propensity for choice in drawn if choice.path is REMOTE} == {0.75}
    assert choose(exploring, 12, backlog=20_000).propensity == 1.0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"actions": ACTIONS[:1]}, "actions"),
        ({"actions": ((LOCAL,) * 5, (LOCAL,) * 6)}, "actions"),
        ({"epsilon": ((0.1,) * 6,)}, "exploration rates"),
        ({"epsilon": ((0.1,) * 5, (0.1,) * 6)}, "exploration rates"),
        ({"epsilon": ((1.1,) * 6, (0.1,) * 6)}, "exploration rates"),
        ({"max_local_tokens": -1}, "max_local_tokens"),
    ],
)
def test_parts_that_do_not_agree_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(PolicyError, match=words):
        policy(**changes)


@pytest.mark.parametrize("values", [(1.0, 1.0), (2.0, 1.0), (math.nan,), (math.inf,)])
def test_thresholds_are_finite_and_rise(values: tuple[float, ...]) -> None:
    with pytest.raises(PolicyError, match="decode_requests"):
        Regimes(decode_requests=values)
